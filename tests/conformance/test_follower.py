"""A follower on the wire: it registers, lives, fetches, joins the ISR, falls behind, leaves; the same against Apache Kafka.

RULES    1. Every test runs against this broker and, where Kafka's jars are, against Apache Kafka 4.3: what is asserted is
            what Kafka does, so nothing is compared but with the same lines.
         2. Each test is another broker of the one cluster, with topics of its own.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from barnabas.embedded import Broker
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest
from protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribeQuorumRequest,
    ElectedPartitions,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    QuorumPartition,
    QuorumTopic,
    ReassignablePartition,
    ReassignableTopic,
    UnregisterBrokerRequest,
)
from protocol.messages.metadata import ApiVersionsRequest, DescribeClusterRequest
from protocol.messages.quorum import BrokerHeartbeatRequest
from tests.support.batches import batch
from tests.support.controller_listener import WITH_CONTROLLER, controller_of
from tests.support.follower import Client, Follower, Seen, features
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.raw_client import RawClient
from tests.support.waiting import until

E = ErrorCode
SETTINGS: dict[str, object] = {
    "replica.lag.time.max.ms": 2000,
    "broker.session.timeout.ms": 4000,
    "broker.heartbeat.interval.ms": 500,
}
_ids = itertools.count(2)


class Cluster(NamedTuple):
    """Where broker 1 is reached."""

    bootstrap: str
    controller: str
    is_ours: bool


@pytest.fixture(scope="module", params=["barnabas", pytest.param("apache-kafka", marks=needs_kafka)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One node with a controller listener."""
    if request.param == "barnabas":
        with Broker(settings={**SETTINGS, **WITH_CONTROLLER}) as broker:
            yield Cluster(broker.bootstrap, controller_of(broker), is_ours=True)
    else:
        with ApacheKafka(SETTINGS) as kafka:
            yield Cluster(kafka.bootstrap, kafka.controller, is_ours=False)


class World:
    """One test's follower, client and topics."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client = Client(cluster.bootstrap)
        self.id = next(_ids)
        self.follower = self.another()

    def another(self) -> Follower:
        """One more process that calls itself the same broker."""
        return Follower(self.cluster.bootstrap, self.cluster.controller, self.client.cluster_id(), self.id)

    def join(self) -> World:
        """Register and become active."""
        assert self.follower.register().error_code == E.NONE
        answer = self.follower.live()
        assert (answer.error_code, answer.is_fenced) == (E.NONE, False)
        until(lambda: self.id in self.client.brokers(), "clients are told of the follower")
        return self

    def topic(self, replicas: list[int] | None = None, **settings: object) -> tuple[str, bytes]:
        """A topic of broker 1 and the follower."""
        name = f"t-{self.id}-{os.urandom(3).hex()}"
        topic_id = self.client.create(name, replicas or [1, self.id], **settings)
        if replicas is None or replicas[0] == 1:
            until(lambda: self.client.fetch(name, 0)[0] == E.NONE, f"broker 1 serves {name}")
        return name, topic_id

    def seen(self, topic: tuple[str, bytes]) -> Seen:
        """What clients are told of its partition."""
        found = self.client.seen(topic[0])
        assert found is not None
        return found

    def fetch_until(self, topic: tuple[str, bytes], offset: int, isr: list[int], **how: Any) -> Seen:
        """Live and fetch on until the ISR is this one."""

        def look() -> Seen | None:
            self.follower.live()
            self.follower.fetch(topic, offset, **how)
            seen = self.seen(topic)
            return seen if seen.isr == isr else None

        return until(look, f"the ISR of {topic[0]} is {isr}")

    def live_until(self, topic: tuple[str, bytes], isr: list[int]) -> Seen:
        """Live, but do not fetch, until the ISR is this one."""

        def look() -> Seen | None:
            self.follower.live()
            seen = self.seen(topic)
            return seen if seen.isr == isr else None

        return until(look, f"the ISR of {topic[0]} is {isr}")

    def produced(self, topic: tuple[str, bytes], acks: int = 1) -> int:
        """Three records; the error code."""
        return self.client.produce(topic[0], records(), acks)()


def records() -> bytes:
    """A batch of three."""
    return bytes(batch(int(time.time() * 1000)))


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    """A follower that has not registered."""
    made = World(cluster)
    with made.follower:
        yield made
    made.client.raw.close()


# ---- in sync ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 9, 11, 12, 13, 14, 15, 16, 17])
def test_a_follower_joins_the_isr_in_every_version_of_fetch(world: World, version: int) -> None:
    """F5: when it has reached the high watermark; until 14 it is replica_id, from 15 on ReplicaState."""
    world.follower.register()
    topic = world.topic()  # the follower is fenced, so it is not in sync
    assert world.seen(topic) == Seen(1, 0, [1], [], [])
    world.follower.live()
    assert world.produced(topic) == E.NONE
    seen = world.fetch_until(topic, 3, [1, world.id], version=version)
    assert seen == Seen(1, 0, [1, world.id], [], [])


def test_a_follower_that_lags_is_not_in_sync(world: World) -> None:
    """F5: below the high watermark it stays out, however often it fetches."""
    world.follower.register()
    topic = world.topic()
    world.follower.live()
    assert world.produced(topic) == E.NONE
    for _ in range(5):
        assert world.follower.fetch(topic, 0).error_code == E.NONE
        assert world.seen(topic).isr == [1]
    world.fetch_until(topic, 3, [1, world.id])


def test_the_high_watermark_moves_with_the_follower_only(world: World) -> None:
    """F5, F2: consumers see what the follower has; the follower sees all, and is told the high watermark."""
    world.join()
    topic = world.topic()
    assert world.seen(topic).isr == [1, world.id]
    assert world.produced(topic) == E.NONE
    assert world.client.fetch(topic[0], 0) == (E.NONE, 0, b"")
    got = world.follower.fetch(topic, 0)
    assert (got.error_code, got.high_watermark) == (E.NONE, 0)
    assert len(bytes(got.records or b"")) == len(records())
    assert world.client.fetch(topic[0], 0)[1] == 0
    got = world.follower.fetch(topic, 3)
    assert (got.error_code, got.high_watermark, bytes(got.records or b"")) == (E.NONE, 0, b""), "as before the fetch"
    assert world.follower.fetch(topic, 3).high_watermark == 3
    code, high_watermark, seen = world.client.fetch(topic[0], 0)
    assert (code, high_watermark, len(seen)) == (E.NONE, 3, len(records()))


def test_acks_all_is_answered_when_the_follower_has_fetched_on(world: World) -> None:
    """F5: three producers wait, one fetch from the end answers all of them."""
    world.join()
    topic = world.topic(min_insync_replicas=2)
    producers = [Client(world.cluster.bootstrap) for _ in range(3)]
    answers = [producer.produce(topic[0], records(), -1) for producer in producers]

    def all_appended() -> bool:
        return len(bytes(world.follower.fetch(topic, 0).records or b"")) == 3 * len(records())

    until(all_appended, "all three are in the log")
    assert world.client.fetch(topic[0], 0)[1] == 0
    assert world.follower.fetch(topic, 9).error_code == E.NONE
    assert [answer() for answer in answers] == [E.NONE] * 3
    assert world.client.fetch(topic[0], 0)[1] == 9
    for producer in producers:
        producer.raw.close()


def test_a_session_tells_a_follower_what_moved(world: World) -> None:
    """F3, F11: an incremental fetch names nothing, and is told of new records and of the high watermark."""
    world.join()
    topic = world.topic()
    first = world.follower.fetch_in_session(topic, 0)
    assert first is not None
    assert first.error_code == E.NONE
    assert world.follower.session_id != 0
    assert world.follower.fetch_in_session(None) is None
    assert world.produced(topic) == E.NONE
    told = world.follower.fetch_in_session(None)
    assert told is not None
    assert len(bytes(told.records or b"")) == len(records())
    assert world.follower.fetch_in_session(topic, 3) is None, "as before the fetch"
    told = world.follower.fetch_in_session(None)
    assert told is not None
    assert (told.high_watermark, bytes(told.records or b"")) == (3, b"")
    assert world.follower.fetch_in_session(None) is None


# ---- behind ----------------------------------------------------------------------------------------------


def test_a_follower_that_stops_fetching_is_dropped_and_the_rest_goes_on(world: World) -> None:
    """F5: after replica.lag.time.max.ms it leaves the ISR; the high watermark moves without it, and it may come back."""
    world.join()
    topic = world.topic()
    assert world.produced(topic) == E.NONE
    assert world.client.fetch(topic[0], 0)[1] == 0
    seen = world.live_until(topic, [1])
    assert seen == Seen(1, 0, [1], [], [])
    until(lambda: world.client.fetch(topic[0], 0)[1] == 3, "the high watermark moves on")
    assert world.fetch_until(topic, 3, [1, world.id]).leader_epoch == 0


def test_a_follower_that_fetches_but_never_catches_up_is_dropped(world: World) -> None:
    """F5: asking is not enough."""
    world.join()
    topic = world.topic()
    assert world.produced(topic) == E.NONE

    def dropped() -> bool:
        world.follower.live()
        world.follower.fetch(topic, 0)
        return world.seen(topic).isr == [1]

    until(dropped, "it leaves the ISR")


def test_too_few_in_sync_refuse_before_the_append(world: World) -> None:
    """F5: NOT_ENOUGH_REPLICAS; acks=1 is taken, but is not seen: the high watermark stands still (KIP-966)."""
    world.join()
    topic = world.topic(min_insync_replicas=2)
    seen = world.live_until(topic, [1])
    assert seen == Seen(1, 0, [1], [world.id], [])
    assert world.produced(topic, -1) == E.NOT_ENOUGH_REPLICAS
    assert world.produced(topic, 1) == E.NONE
    assert world.client.fetch(topic[0], 0) == (E.NONE, 0, b"")
    assert len(bytes(world.follower.fetch(topic, 0).records or b"")) == len(records()), "the refused ones are not there"
    assert world.fetch_until(topic, 3, [1, world.id]) == Seen(1, 0, [1, world.id], [], [])
    until(lambda: world.client.fetch(topic[0], 0)[1] == 3, "the high watermark moves on")


def test_a_producer_that_waits_while_the_isr_shrinks_too_far_times_out(world: World) -> None:
    """F5: the high watermark cannot move any more, and that is not success."""
    world.join()
    topic = world.topic(min_insync_replicas=2)
    answer = world.client.produce(topic[0], records(), -1, timeout_ms=6000)
    watcher = Client(world.cluster.bootstrap)

    def shrunk() -> bool:
        world.follower.live()
        seen = watcher.seen(topic[0])
        return seen is not None and seen.isr == [1]

    until(shrunk, "the ISR shrinks")
    assert answer() == E.REQUEST_TIMED_OUT
    watcher.raw.close()


def test_no_more_need_be_in_sync_than_there_are_replicas(world: World) -> None:
    """KIP-966: the smaller of min.insync.replicas and the replication factor counts."""
    topic = world.topic([1], min_insync_replicas=3)
    assert world.produced(topic, -1) == E.NONE
    assert world.client.fetch(topic[0], 0)[1] == 3


# ---- who may fetch ---------------------------------------------------------------------------------------


def test_a_follower_with_other_epochs_is_refused(world: World) -> None:
    """F6: the leader's epoch, and the epoch of its own registration."""
    world.join()
    topic = world.topic([world.id, 1])  # led by the follower first, so that epoch 1 is broker 1's
    assert world.follower.live(want_fence=True).is_fenced
    until(lambda: world.seen(topic).leader == 1, "broker 1 leads")
    world.follower.live()
    fetch = world.follower.fetch
    assert until(lambda: fetch(topic, 0, leader_epoch=1).error_code == E.NONE, "broker 1 serves")
    assert fetch(topic, 0, leader_epoch=0).error_code == E.FENCED_LEADER_EPOCH
    assert fetch(topic, 0, leader_epoch=2).error_code == E.UNKNOWN_LEADER_EPOCH
    assert fetch(topic, 0, broker_epoch=world.follower.epoch - 1).error_code == E.NOT_LEADER_OR_FOLLOWER
    assert fetch(topic, 7).error_code == E.OFFSET_OUT_OF_RANGE


def test_who_is_no_replica_may_not_fetch_as_one(world: World) -> None:
    """F6: with an epoch it knows more than the leader and asks again, without it asks the wrong one."""
    world.join()
    topic = world.topic([1])
    assert world.follower.fetch(topic, 0).error_code == E.NOT_LEADER_OR_FOLLOWER
    assert world.follower.fetch(topic, 0, leader_epoch=0).error_code == E.UNKNOWN_LEADER_EPOCH


def test_a_follower_whose_log_is_another_one_is_told_where_it_parts(world: World) -> None:
    """F6: diverging epoch and its end, in place of records."""
    world.join()
    topic = world.topic()
    assert world.produced(topic) == E.NONE
    got = world.follower.fetch(topic, 5, leader_epoch=0, last_epoch=0)
    assert got.error_code == E.NONE
    assert got.diverging_epoch is not None
    assert (got.diverging_epoch.epoch, got.diverging_epoch.end_offset) == (0, 3)
    assert bytes(got.records or b"") == b""
    agreeing = world.follower.fetch(topic, 3, leader_epoch=0, last_epoch=0)
    assert agreeing.error_code == E.NONE
    assert agreeing.diverging_epoch is None or agreeing.diverging_epoch.epoch == -1


# ---- its life --------------------------------------------------------------------------------------------


def test_a_broker_that_falls_silent_is_fenced(world: World) -> None:
    """M4: it leaves all ISRs, clients are not told of it any more, and its next heartbeat brings it back."""
    world.join()
    topic = world.topic()
    alone = world.topic([world.id])
    assert world.seen(alone) == Seen(world.id, 0, [world.id], [], [])
    until(lambda: world.id not in world.client.brokers(), "clients are not told of it")
    assert world.seen(topic) == Seen(1, 0, [1], [], [])
    assert world.seen(alone) == Seen(-1, 1, [], [world.id], [world.id])
    answer = world.follower.live()
    assert (answer.error_code, answer.is_caught_up, answer.is_fenced) == (E.NONE, True, False)
    until(lambda: world.id in world.client.brokers(), "clients are told of it")
    assert world.seen(alone) == Seen(world.id, 2, [world.id], [], [])
    world.fetch_until(topic, 0, [1, world.id])


def test_a_broker_is_fenced_until_it_has_caught_up_and_wants_to_serve(world: World) -> None:
    """The metadata up to its own registration, at least."""
    epoch = world.follower.register().broker_epoch
    live = world.follower.live

    def standing(**said: Any) -> tuple[bool, bool]:
        answer = live(**said)
        assert (answer.error_code, answer.should_shut_down) == (E.NONE, False)
        return answer.is_caught_up, answer.is_fenced

    assert standing(current_metadata_offset=epoch - 1) == (False, True)
    assert standing(current_metadata_offset=epoch, want_fence=True) == (True, True)
    assert standing(current_metadata_offset=epoch) == (True, False)
    assert standing(current_metadata_offset=epoch - 1) == (False, False)
    assert standing(want_fence=True) == (True, True)
    assert standing() == (True, False)


def test_heartbeats_of_other_registrations_are_refused(world: World) -> None:
    """STALE_BROKER_EPOCH, also for a broker that never registered."""
    assert world.follower.live().error_code == E.STALE_BROKER_EPOCH
    world.follower.register()
    answer = world.follower.live(broker_epoch=world.follower.epoch - 1)
    assert (answer.error_code, answer.is_caught_up, answer.is_fenced) == (E.STALE_BROKER_EPOCH, False, True)
    assert world.follower.live(version=0).error_code == E.NONE
    assert world.follower.live(version=1).error_code == E.NONE


def test_leaders_move_away_from_a_broker_that_shuts_down(world: World) -> None:
    """It goes when it leads nothing and everybody has heard so; who leads nothing goes at once."""
    world.join()
    topic = world.topic([world.id, 1])
    other = world.topic()
    assert world.seen(topic) == Seen(world.id, 0, [1, world.id], [], [])
    answer = world.follower.live(want_shut_down=True)
    assert (answer.error_code, answer.is_fenced, answer.should_shut_down) == (E.NONE, False, False)
    until(lambda: world.seen(topic).leader == 1, "broker 1 leads")
    assert world.seen(topic) == Seen(1, 1, [1], [], [])
    assert world.seen(other) == Seen(1, 0, [1], [], [])
    until(lambda: world.follower.live(want_shut_down=True).should_shut_down, "it may shut down")
    until(lambda: world.id not in world.client.brokers(), "clients are not told of it")
    assert world.another().register(previous_broker_epoch=world.follower.epoch).error_code == (
        E.DUPLICATE_BROKER_REGISTRATION
    )
    again = world.another()
    until(lambda: again.register(previous_broker_epoch=world.follower.epoch).error_code == E.NONE, "it may come back")
    assert again.live(want_shut_down=True).should_shut_down
    again.leader.close()
    again.controller.close()


def test_a_new_process_has_a_new_epoch_and_the_old_one_none(world: World) -> None:
    """Another incarnation must wait for the end of a session; the same one may register again under its epoch."""
    follower = world.join().follower
    topic = world.topic()
    epoch = follower.epoch
    assert follower.register().broker_epoch == epoch
    assert not follower.live(want_fence=False).is_fenced
    with world.another() as second:
        assert second.register().error_code == E.DUPLICATE_BROKER_REGISTRATION
        second.directory = follower.directory
        until(lambda: second.register().error_code == E.NONE, "the session of the first has ended")
        assert second.epoch > epoch
        assert follower.live().error_code == E.STALE_BROKER_EPOCH
        assert world.seen(topic) == Seen(1, 0, [1], [], [])
        assert not second.live().is_fenced


REFUSED: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "another cluster": ({"cluster_id": "BBBBBBBBBBBBBBBBBBBBBQ"}, E.INCONSISTENT_CLUSTER_ID),
    "ZooKeeper": ({"is_migrating_zk_broker": True}, E.BROKER_ID_NOT_REGISTERED),
    "no directory": ({"log_dirs": []}, E.INVALID_REGISTRATION),
    "a reserved directory": ({"log_dirs": [bytes(15) + b"\x05"]}, E.INVALID_REGISTRATION),
    "a directory twice": ({"log_dirs": [b"D" * 16] * 2}, E.INVALID_REGISTRATION),
    "no metadata.version": ({"features": features()[:2]}, E.INVALID_REGISTRATION),
    "too old": ({"features": features(metadata_version=(7, 29))}, E.UNSUPPORTED_VERSION),
    "too new": ({"features": features(metadata_version=(31, 33))}, E.UNSUPPORTED_VERSION),
    "without a feature in force": (
        {"features": [f for f in features() if f.name != "eligible.leader.replicas.version"]}, E.UNSUPPORTED_VERSION,
    ),
    "with a feature that is not in force": ({"features": features(nonsense_version=(1, 2))}, E.UNSUPPORTED_VERSION),
    "the number of broker 1": ({"broker_id": 1}, E.DUPLICATE_BROKER_REGISTRATION),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_broker_that_does_not_fit_is_refused(world: World, case: str) -> None:
    """Codes of Kafka's ClusterControlManager."""
    changes, code = REFUSED[case]
    answer = world.follower.register(**changes)
    assert (answer.error_code, answer.broker_epoch) == (code, -1)


def test_a_directory_of_another_broker_is_refused(world: World) -> None:
    """Two brokers on one directory would be two on its partitions."""
    world.join()
    with World(world.cluster).follower as other:
        assert other.register(log_dirs=[world.follower.directory]).error_code == E.INVALID_REGISTRATION


def test_a_broker_loses_a_directory(world: World) -> None:
    """The partitions in it: it leaves their ISRs, and does not lead them again."""
    directories = sorted([os.urandom(16), os.urandom(16)])
    world.follower.register(log_dirs=directories)
    world.follower.live()
    until(lambda: world.id in world.client.brokers(), "clients are told of it")
    topic = world.topic()
    assert world.follower.live(offline_log_dirs=[directories[0]]).error_code == E.NONE
    assert world.seen(topic).isr == [1, world.id], "it has not said in which directory the partition is"


# ---- topics over two brokers -----------------------------------------------------------------------------


def test_replicas_are_placed_on_two_brokers(world: World) -> None:
    """replication.factor 2, with nobody chosen by hand."""
    world.join()
    name = f"placed-{world.id}"
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=4, replication_factor=2)],
        timeout_ms=30_000, validate_only=False,
    )  # fmt: skip
    (made,) = world.client.raw.ask(request, 7).topics
    assert (made.error_code, made.num_partitions, made.replication_factor) == (E.NONE, 4, 2)
    until(lambda: world.client.seen(name, 3) is not None, "it is known")
    placed = [world.client.seen(name, index) for index in range(4)]
    assert [seen and (len(seen.isr), seen.leader in seen.isr) for seen in placed] == [(2, True)] * 4


# ---- AlterPartition --------------------------------------------------------------------------------------


def test_what_a_leader_may_ask_for(world: World) -> None:
    """Codes and their order of Kafka's ReplicationControlManager; the follower leads, so it asks."""
    world.join()
    own = world.id
    _, topic_id = topic = world.topic([own, 1])
    alter = world.follower.alter
    good = world.follower.epoch
    cases: list[tuple[Any, ErrorCode]] = [
        (alter(topic_id, [own, 1], 0, 0, broker_epoch=good - 1), E.STALE_BROKER_EPOCH),
        (alter(os.urandom(16), [own], 0, 0), E.UNKNOWN_TOPIC_ID),
        (alter(bytes(16), [own], 0, 0), E.UNKNOWN_TOPIC_ID),
        (alter(topic_id, [own], 0, 0, index=1), E.UNKNOWN_TOPIC_OR_PARTITION),
        (alter(topic_id, [own], 1, 0), E.NOT_CONTROLLER),
        (alter(topic_id, [own], 0, 1), E.NOT_CONTROLLER),
        (alter(topic_id, [own], -1, 0), E.FENCED_LEADER_EPOCH),
        (alter(topic_id, [own], 0, -1), E.INVALID_UPDATE_VERSION),
        (alter(topic_id, [], 0, 0), E.INVALID_REQUEST),
        (alter(topic_id, [1], 0, 0), E.INVALID_REQUEST),
        (alter(topic_id, [own, 99], 0, 0), E.INVALID_REQUEST),
        (alter(topic_id, [own, own], 0, 0), E.INVALID_REQUEST),
        (alter(topic_id, [own], 0, 0, recovery=1), E.INVALID_REQUEST),
        (alter(topic_id, [own, 1], 0, 0, epochs={own: good - 1}), E.INELIGIBLE_REPLICA),
    ]
    assert [answer.error_code for answer, _ in cases] == [code for _, code in cases]
    assert all((a.leader_id, a.leader_epoch, a.isr, a.partition_epoch) == (0, 0, [], 0) for a, _ in cases)
    # The same again is no change; without 1, and with it again, are changes.
    for isr, epoch, version in (([own, 1], 0, 3), ([own], 1, 3), ([1, own], 2, 2), ([own, 1], 3, 3)):
        answer = alter(topic_id, isr, 0, max(0, epoch - 1), version, epochs={own: good})
        assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (E.NONE, own, 0)
        assert (answer.isr, answer.partition_epoch, answer.leader_recovery_state) == (isr, epoch, 0)
        assert until(lambda isr=isr: world.seen(topic).isr == sorted(isr), "clients are told of it")  # type: ignore[misc]


def test_who_is_fenced_or_leaving_cannot_be_in_sync(world: World) -> None:
    """INELIGIBLE_REPLICA; and only the leader may ask."""
    world.join()
    with World(world.cluster).follower as other:
        other.register()
        _, topic_id = world.topic([world.id, other.broker_id])
        alter = world.follower.alter
        assert alter(topic_id, [world.id, other.broker_id], 0, 0).error_code == E.INELIGIBLE_REPLICA
        assert not other.live().is_fenced
        assert other.alter(topic_id, [world.id, other.broker_id], 0, 0).error_code == E.INVALID_REQUEST
        assert alter(topic_id, [world.id, other.broker_id], 0, 0).error_code == E.NONE


# ---- what clients ask for --------------------------------------------------------------------------------


def reassign(world: World, topic: str, replicas: list[int] | None, *, may_grow: bool = True) -> tuple[int, str | None]:
    """Ask for other replicas of partition 0, or (None) for an end of what is under way."""
    wanted = ReassignableTopic(name=topic, partitions=[ReassignablePartition(partition_index=0, replicas=replicas)])
    request = AlterPartitionReassignmentsRequest(topics=[wanted], allow_replication_factor_change=may_grow)
    (answer,) = world.client.raw.ask(request, 1).responses[0].partitions
    return answer.error_code, answer.error_message


def ongoing(world: World, topic: str) -> list[tuple[list[int], list[int], list[int]]]:
    """Replicas, those that come, those that go."""
    asked = ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 1])
    told = world.client.raw.ask(ListPartitionReassignmentsRequest(topics=[asked]), 0)
    return [(p.replicas, p.adding_replicas, p.removing_replicas) for row in told.topics for p in row.partitions]


def test_a_partition_gets_other_replicas(world: World) -> None:
    """Who comes is added, who goes stays until those are in sync; then it is over, and another leads."""
    world.join()
    topic = world.topic([1])
    name, _ = topic
    assert reassign(world, name, [1, world.id], may_grow=False) == (
        E.INVALID_REPLICATION_FACTOR,
        "The replication factor is changed from 1 to 2",
    )
    assert reassign(world, name, [1, world.id]) == (E.NONE, None)
    until(lambda: ongoing(world, name) == [([1, world.id], [world.id], [])], "a replica comes")
    assert reassign(world, name, None) == (E.NONE, None)
    assert reassign(world, name, None) == (E.NO_REASSIGNMENT_IN_PROGRESS, None)
    until(lambda: ongoing(world, name) == [], "it does not come any more")
    assert world.seen(topic) == Seen(1, 1, [1], [], [])
    world.follower.live()
    assert reassign(world, name, [world.id], may_grow=False) == (E.NONE, None)
    until(lambda: ongoing(world, name) == [([world.id, 1], [world.id], [1])], "one comes, one goes")
    assert world.seen(topic) == Seen(1, 1, [1], [], [])
    assert world.fetch_until(topic, 0, [world.id]) == Seen(world.id, 2, [world.id], [], [])
    assert ongoing(world, name) == []
    assert reassign(world, name, [world.id]) == (E.NONE, None)
    assert world.seen(topic) == Seen(world.id, 2, [world.id], [], [])


def elect(world: World, topic: str, kind: int) -> tuple[int, str | None]:
    """Ask for an election of partition 0."""
    request = ElectLeadersRequest(election_type=kind, topic_partitions=[ElectedPartitions(topic=topic, partitions=[0])])
    (answer,) = world.client.raw.ask(request, 2).replica_election_results[0].partition_result
    return answer.error_code, answer.error_message


def test_leaders_are_elected_on_request(world: World) -> None:
    """The first replica, when it is in sync again; anybody, where there is no leader."""
    world.join()
    topic = world.topic([world.id, 1])
    alone = world.topic([world.id])
    until(lambda: world.seen(topic).leader == 1, "the follower is fenced, so broker 1 leads")
    missing = (E.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    assert elect(world, topic[0], 0) == missing
    nobody = (E.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")
    assert elect(world, alone[0], 1) == nobody
    world.follower.live()
    world.fetch_until(topic, 0, [1, world.id])
    assert elect(world, topic[0], 1)[0] == E.ELECTION_NOT_NEEDED
    before = world.seen(topic).leader_epoch
    assert elect(world, topic[0], 0) == (E.NONE, None)
    until(lambda: world.seen(topic).leader == world.id, "the first replica leads")
    assert world.seen(topic) == Seen(world.id, before + 1, [1, world.id], [], [])


def test_a_broker_is_given_up(world: World) -> None:
    """It leaves every ISR, and stays among the replicas; its next heartbeat finds that nobody knows it."""
    world.join()
    topic = world.topic()
    alone = world.topic([world.id])
    world.fetch_until(topic, 0, [1, world.id])
    assert world.client.raw.ask(UnregisterBrokerRequest(broker_id=world.id), 0).error_code == E.NONE
    until(lambda: world.id not in world.client.brokers(), "clients are not told of it")
    assert world.seen(topic) == Seen(1, 0, [1], [], [])
    assert world.seen(alone) == Seen(-1, 1, [], [world.id], [world.id])
    again = world.client.raw.ask(UnregisterBrokerRequest(broker_id=world.id), 0)
    assert (again.error_code, again.error_message) == (
        E.BROKER_ID_NOT_REGISTERED,
        f"Broker ID {world.id} is not currently registered",
    )
    assert world.follower.live().error_code == E.STALE_BROKER_EPOCH
    with world.another() as process:
        assert process.register().error_code == E.NONE


def test_the_quorum_is_one_node(cluster: Cluster) -> None:
    """Its leader, epoch and end, where its controller listens; whoever asks for another log is told that there is none."""

    def ask(version: int, *partitions: int, topic: str = "__cluster_metadata") -> Any:
        asked = [QuorumPartition(partition_index=index) for index in partitions]
        request = DescribeQuorumRequest(topics=[QuorumTopic(topic_name=topic, partitions=asked)])
        return client.ask(request, version)

    host, _, port = cluster.controller.rpartition(":")
    with RawClient(cluster.bootstrap) as client:
        for version in (0, 1, 2):
            told = ask(version, 0)
            (quorum,) = told.topics[0].partitions
            (voter,) = quorum.current_voters
            assert (told.error_code, quorum.error_code, quorum.leader_id, quorum.observers) == (0, 0, 1, [])
            assert 0 < quorum.high_watermark <= voter.log_end_offset
            assert quorum.leader_epoch > 0
            assert (voter.replica_id, voter.replica_directory_id != bytes(16)) == (1, version == 2)
            assert (voter.last_fetch_timestamp > 0, voter.last_caught_up_timestamp > 0) == (version > 0, version > 0)
        assert [(node.node_id, [(e.host, e.port) for e in node.listeners]) for node in told.nodes] == [
            (1, [(host, int(port))])
        ]
        for answer in (ask(2, 1), ask(2, 0, 1), ask(2, 0, topic="t1")):
            assert {p.error_code for p in answer.topics[0].partitions} == {E.UNKNOWN_TOPIC_OR_PARTITION}
            assert (answer.error_code, answer.nodes) == (0, [])


SERVED = {
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.ALTER_PARTITION: (2, 3),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.BROKER_REGISTRATION: (0, 4),
    ApiKey.BROKER_HEARTBEAT: (0, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0),
}


def test_the_controllers_listener_names_what_it_serves(cluster: Cluster) -> None:
    """A part of what Kafka's names, in the same versions; no more."""
    with RawClient(cluster.controller) as client:
        answer = client.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 4)
        table = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        assert {key: table.get(key) for key in SERVED} == SERVED
        assert not cluster.is_ours or len(table) == len(SERVED)
        controllers = client.ask(DescribeClusterRequest(endpoint_type=2), 1)
    assert (controllers.error_code, controllers.controller_id) == (E.NONE, 1)
    assert [(node.broker_id, f"{node.host}:{node.port}") for node in controllers.brokers] == [(1, cluster.controller)]


def test_the_controller_listener_is_for_the_controllers_apis_alone(world: World) -> None:
    """And a client's listener for the clients'."""
    with pytest.raises((EOFError, ConnectionResetError)):
        world.client.raw.ask(
            BrokerHeartbeatRequest(
                broker_id=9, broker_epoch=1, current_metadata_offset=0, want_fence=False, want_shut_down=False
            ),
            1,
        )
