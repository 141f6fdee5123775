"""A simulated follower broker: registration, heartbeats, fetches, ISR changes, unregistration.

RULES    1. Every test runs against Barnabas and, if its jars are installed, against Apache Kafka 4.3, with the same assertions.
         2. Each test is another broker in one cluster, with its own topics; tests of time-outs use a cluster with short ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.api import APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.metadata import ApiVersionsRequest, DescribeClusterRequest
from protocol.messages.quorum import BrokerHeartbeatRequest
from tests.support.follower import Client, PartitionView, features
from tests.support.follower_harness import (
    BOTH,
    SHORT_TIMEOUTS,
    Cluster,
    FollowerHarness,
    records,
    running,
    unregistered_follower,
)
from tests.support.loading import topic
from tests.support.raw_client import RawClient
from tests.support.waiting import until

E = ErrorCode


@pytest.fixture(scope="module", params=BOTH)
def quick_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with short session and lag time-outs."""
    with running(request.param, **SHORT_TIMEOUTS) as made:
        yield made


@pytest.fixture
def quick(quick_cluster: Cluster) -> Iterator[FollowerHarness]:
    """A follower in it that has not registered."""
    with unregistered_follower(quick_cluster) as made:
        yield made


# ---- in sync ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 9, 11, 12, 13, 14, 15, 16, 17])
def test_a_follower_joins_the_isr_in_every_version_of_fetch(harness: FollowerHarness, version: int) -> None:
    """When it reaches the high watermark. Its id is in replica_id up to version 14, in ReplicaState from 15 on."""
    harness.follower.register()
    topic = harness.topic()  # the follower is fenced, so it is not in sync
    assert harness.describe(topic) == PartitionView(1, 0, [1], [], [])
    harness.follower.heartbeat()
    assert harness.produced(topic) == E.NONE
    seen = harness.fetch_until(topic, 3, [1, harness.id], version=version)
    assert seen == PartitionView(1, 0, [1, harness.id], [], [])


def test_a_follower_that_lags_is_not_in_sync(harness: FollowerHarness) -> None:
    """Below the high watermark it stays out of the ISR."""
    harness.follower.register()
    topic = harness.topic()
    harness.follower.heartbeat()
    assert harness.produced(topic) == E.NONE
    for _ in range(5):
        assert harness.follower.fetch(topic, 0).error_code == E.NONE
        assert harness.describe(topic).isr == [1]
    harness.fetch_until(topic, 3, [1, harness.id])


def test_the_high_watermark_moves_with_the_follower_only(harness: FollowerHarness) -> None:
    """Consumers read up to the high watermark; the follower reads everything."""
    harness.join()
    topic = harness.topic()
    assert harness.describe(topic).isr == [1, harness.id]
    assert harness.produced(topic) == E.NONE
    assert harness.client.fetch(topic[0], 0) == (E.NONE, 0, b"")
    got = harness.follower.fetch(topic, 0)
    assert (got.error_code, got.high_watermark) == (E.NONE, 0)
    assert len(bytes(got.records or b"")) == len(records())
    assert harness.client.fetch(topic[0], 0)[1] == 0
    got = harness.follower.fetch(topic, 3)
    assert (got.error_code, got.high_watermark, bytes(got.records or b"")) == (E.NONE, 0, b""), "as before the fetch"
    assert harness.follower.fetch(topic, 3).high_watermark == 3
    code, high_watermark, seen = harness.client.fetch(topic[0], 0)
    assert (code, high_watermark, len(seen)) == (E.NONE, 3, len(records()))


def test_acks_all_is_answered_when_the_follower_has_fetched_on(harness: FollowerHarness) -> None:
    """Three producers wait; one fetch from the log end answers all of them."""
    harness.join()
    topic = harness.topic(min_insync_replicas=2)
    producers = [Client(harness.cluster.bootstrap) for _ in range(3)]
    answers = [producer.produce(topic[0], records(), -1) for producer in producers]

    def all_appended() -> bool:
        return len(bytes(harness.follower.fetch(topic, 0).records or b"")) == 3 * len(records())

    until(all_appended, "all three are in the log")
    assert harness.client.fetch(topic[0], 0)[1] == 0
    assert harness.follower.fetch(topic, 9).error_code == E.NONE
    assert [answer() for answer in answers] == [E.NONE] * 3
    assert harness.client.fetch(topic[0], 0)[1] == 9
    for producer in producers:
        producer.raw.close()


def test_a_fetch_session_returns_changed_partitions_only(harness: FollowerHarness) -> None:
    """New records, or a new high watermark."""
    harness.join()
    topic = harness.topic()
    first = harness.follower.fetch_in_session(topic, 0)
    assert first is not None
    assert first.error_code == E.NONE
    assert harness.follower.session_id != 0
    assert harness.follower.fetch_in_session(None) is None
    assert harness.produced(topic) == E.NONE
    response = harness.follower.fetch_in_session(None)
    assert response is not None
    assert len(bytes(response.records or b"")) == len(records())
    assert harness.follower.fetch_in_session(topic, 3) is None, "as before the fetch"
    response = harness.follower.fetch_in_session(None)
    assert response is not None
    assert (response.high_watermark, bytes(response.records or b"")) == (3, b"")
    assert harness.follower.fetch_in_session(None) is None


# ---- behind ----------------------------------------------------------------------------------------------


def test_a_follower_that_stops_fetching_leaves_the_isr_and_the_others_continue(quick: FollowerHarness) -> None:
    """After replica.lag.time.max.ms; then the high watermark advances without it. It may rejoin."""
    quick.join()
    topic = quick.topic()
    assert quick.produced(topic) == E.NONE
    assert quick.client.fetch(topic[0], 0)[1] == 0
    seen = quick.heartbeat_until(topic, [1])
    assert seen == PartitionView(1, 0, [1], [], [])
    until(lambda: quick.client.fetch(topic[0], 0)[1] == 3, "the high watermark moves on")
    assert quick.fetch_until(topic, 3, [1, quick.id]).leader_epoch == 0


def test_a_follower_that_fetches_but_never_catches_up_is_dropped(quick: FollowerHarness) -> None:
    quick.join()
    topic = quick.topic()
    assert quick.produced(topic) == E.NONE

    def dropped() -> bool:
        quick.follower.heartbeat()
        quick.follower.fetch(topic, 0)
        return quick.describe(topic).isr == [1]

    until(dropped, "it leaves the ISR")


def test_too_few_in_sync_refuse_before_the_append(quick: FollowerHarness) -> None:
    """NOT_ENOUGH_REPLICAS; records with acks=1 are appended, but the high watermark does not advance (KIP-966)."""
    quick.join()
    topic = quick.topic(min_insync_replicas=2)
    seen = quick.heartbeat_until(topic, [1])
    assert seen == PartitionView(1, 0, [1], [quick.id], [])
    assert quick.produced(topic, -1) == E.NOT_ENOUGH_REPLICAS
    assert quick.produced(topic, 1) == E.NONE
    assert quick.client.fetch(topic[0], 0) == (E.NONE, 0, b"")
    assert len(bytes(quick.follower.fetch(topic, 0).records or b"")) == len(records()), "the refused ones are not there"
    assert quick.fetch_until(topic, 3, [1, quick.id]) == PartitionView(1, 0, [1, quick.id], [], [])
    until(lambda: quick.client.fetch(topic[0], 0)[1] == 3, "the high watermark moves on")


@pytest.mark.long
def test_a_producer_that_waits_while_the_isr_shrinks_too_far_times_out(quick: FollowerHarness) -> None:
    """The high watermark cannot advance any more."""
    quick.join()
    topic = quick.topic(min_insync_replicas=2)
    answer = quick.client.produce(topic[0], records(), -1, timeout_ms=6000)
    watcher = Client(quick.cluster.bootstrap)

    def shrunk() -> bool:
        quick.follower.heartbeat()
        seen = watcher.describe(topic[0])
        return seen is not None and seen.isr == [1]

    until(shrunk, "the ISR shrinks")
    assert answer() == E.REQUEST_TIMED_OUT
    watcher.raw.close()


def test_no_more_need_be_in_sync_than_there_are_replicas(harness: FollowerHarness) -> None:
    """KIP-966: the smaller of min.insync.replicas and the replication factor counts."""
    topic = harness.topic([1], min_insync_replicas=3)
    assert harness.produced(topic, -1) == E.NONE
    assert harness.client.fetch(topic[0], 0)[1] == 3


# ---- refused fetches ---------------------------------------------------------------------------------------


def test_a_follower_with_other_epochs_is_refused(harness: FollowerHarness) -> None:
    """Another leader epoch, or another broker epoch."""
    harness.join()
    topic = harness.topic([harness.id, 1])  # led by the follower first, so that epoch 1 is broker 1's
    assert harness.follower.heartbeat(want_fence=True).is_fenced
    until(lambda: harness.describe(topic).leader == 1, "broker 1 leads")
    harness.follower.heartbeat()
    fetch = harness.follower.fetch
    assert until(lambda: fetch(topic, 0, leader_epoch=1).error_code == E.NONE, "broker 1 serves")
    assert fetch(topic, 0, leader_epoch=0).error_code == E.FENCED_LEADER_EPOCH
    assert fetch(topic, 0, leader_epoch=2).error_code == E.UNKNOWN_LEADER_EPOCH
    assert fetch(topic, 0, broker_epoch=harness.follower.epoch - 1).error_code == E.NOT_LEADER_OR_FOLLOWER
    assert fetch(topic, 7).error_code == E.OFFSET_OUT_OF_RANGE


def test_a_broker_that_is_no_replica_may_not_fetch_as_one(harness: FollowerHarness) -> None:
    """UNKNOWN_LEADER_EPOCH if the request has a leader epoch, since its metadata may be newer; else NOT_LEADER_OR_FOLLOWER."""
    harness.join()
    topic = harness.topic([1])
    assert harness.follower.fetch(topic, 0).error_code == E.NOT_LEADER_OR_FOLLOWER
    assert harness.follower.fetch(topic, 0, leader_epoch=0).error_code == E.UNKNOWN_LEADER_EPOCH


def test_a_follower_with_a_diverging_log_gets_the_diverging_epoch(harness: FollowerHarness) -> None:
    """The epoch and its end offset, without records."""
    harness.join()
    topic = harness.topic()
    assert harness.produced(topic) == E.NONE
    got = harness.follower.fetch(topic, 5, leader_epoch=0, last_epoch=0)
    assert got.error_code == E.NONE
    assert got.diverging_epoch is not None
    assert (got.diverging_epoch.epoch, got.diverging_epoch.end_offset) == (0, 3)
    assert bytes(got.records or b"") == b""
    agreeing = harness.follower.fetch(topic, 3, leader_epoch=0, last_epoch=0)
    assert agreeing.error_code == E.NONE
    assert agreeing.diverging_epoch is None or agreeing.diverging_epoch.epoch == -1


# ---- heartbeats and registration --------------------------------------------------------------------------


def test_a_broker_without_heartbeats_is_fenced(quick: FollowerHarness) -> None:
    """It leaves all ISRs and the clients' metadata; its next heartbeat unfences it."""
    quick.join()
    topic = quick.topic()
    only_replica = quick.topic([quick.id])
    assert quick.describe(only_replica) == PartitionView(quick.id, 0, [quick.id], [], [])
    until(lambda: quick.id not in quick.client.brokers(), "clients do not see it")
    assert quick.describe(topic) == PartitionView(1, 0, [1], [], [])
    assert quick.describe(only_replica) == PartitionView(-1, 1, [], [quick.id], [quick.id])
    answer = quick.follower.heartbeat()
    assert (answer.error_code, answer.is_caught_up, answer.is_fenced) == (E.NONE, True, False)
    until(lambda: quick.id in quick.client.brokers(), "clients see it")
    assert quick.describe(only_replica) == PartitionView(quick.id, 2, [quick.id], [], [])
    quick.fetch_until(topic, 0, [1, quick.id])


def test_a_broker_is_fenced_until_it_has_caught_up_and_wants_to_serve(harness: FollowerHarness) -> None:
    """At least up to its own registration record."""
    epoch = harness.follower.register().broker_epoch
    live = harness.follower.heartbeat

    def state(**output: Any) -> tuple[bool, bool]:
        answer = live(**output)
        assert (answer.error_code, answer.should_shut_down) == (E.NONE, False)
        return answer.is_caught_up, answer.is_fenced

    assert state(current_metadata_offset=epoch - 1) == (False, True)
    assert state(current_metadata_offset=epoch, want_fence=True) == (True, True)
    assert state(current_metadata_offset=epoch) == (True, False)
    assert state(current_metadata_offset=epoch - 1) == (False, False)
    assert state(want_fence=True) == (True, True)
    assert state() == (True, False)


def test_heartbeats_of_other_registrations_are_refused(harness: FollowerHarness) -> None:
    """STALE_BROKER_EPOCH, also for a broker that never registered."""
    assert harness.follower.heartbeat().error_code == E.STALE_BROKER_EPOCH
    harness.follower.register()
    answer = harness.follower.heartbeat(broker_epoch=harness.follower.epoch - 1)
    assert (answer.error_code, answer.is_caught_up, answer.is_fenced) == (E.STALE_BROKER_EPOCH, False, True)
    assert harness.follower.heartbeat(version=0).error_code == E.NONE
    assert harness.follower.heartbeat(version=1).error_code == E.NONE


def test_leaders_move_away_from_a_broker_that_shuts_down(quick: FollowerHarness) -> None:
    """It may shut down when it leads nothing and all brokers know so; at once if it led nothing."""
    quick.join()
    topic = quick.topic([quick.id, 1])
    other = quick.topic()
    assert quick.describe(topic) == PartitionView(quick.id, 0, [1, quick.id], [], [])
    answer = quick.follower.heartbeat(want_shut_down=True)
    assert (answer.error_code, answer.is_fenced, answer.should_shut_down) == (E.NONE, False, False)
    until(lambda: quick.describe(topic).leader == 1, "broker 1 leads")
    assert quick.describe(topic) == PartitionView(1, 1, [1], [], [])
    assert quick.describe(other) == PartitionView(1, 0, [1], [], [])
    until(lambda: quick.follower.heartbeat(want_shut_down=True).should_shut_down, "it may shut down")
    until(lambda: quick.id not in quick.client.brokers(), "clients do not see it")
    assert quick.new_follower().register().error_code == E.DUPLICATE_BROKER_REGISTRATION
    epoch = quick.follower.epoch
    with quick.new_follower() as again:
        until(lambda: again.register(previous_broker_epoch=epoch).error_code == E.NONE, "it may come back")
        assert again.heartbeat(want_shut_down=True).should_shut_down


def test_a_new_process_has_a_new_epoch_and_the_old_one_none(quick: FollowerHarness) -> None:
    """Another incarnation must wait for the end of the session; the same one may register again and keeps its epoch."""
    follower = quick.join().follower
    topic = quick.topic()
    epoch = follower.epoch
    assert follower.register().broker_epoch == epoch
    assert not follower.heartbeat(want_fence=False).is_fenced
    with quick.new_follower() as second:
        assert second.register().error_code == E.DUPLICATE_BROKER_REGISTRATION
        second.directory = follower.directory
        until(lambda: second.register().error_code == E.NONE, "the session of the first has ended")
        assert second.epoch > epoch
        assert follower.heartbeat().error_code == E.STALE_BROKER_EPOCH
        quick.wait_for_view(topic, PartitionView(1, 0, [1], [], []))
        assert not second.heartbeat().is_fenced


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
def test_a_broker_that_does_not_fit_is_refused(harness: FollowerHarness, case: str) -> None:
    """Codes of Kafka's ClusterControlManager."""
    changes, code = REFUSED[case]
    answer = harness.follower.register(**changes)
    assert (answer.error_code, answer.broker_epoch) == (code, -1)


def test_a_directory_of_another_broker_is_refused(harness: FollowerHarness) -> None:
    harness.join()
    with FollowerHarness(harness.cluster).follower as other:
        assert other.register(log_dirs=[harness.follower.directory]).error_code == E.INVALID_REGISTRATION


def test_a_broker_loses_a_directory(harness: FollowerHarness) -> None:
    """It leaves the ISRs of the partitions in it, and does not lead them again."""
    directories = sorted([os.urandom(16), os.urandom(16)])
    harness.follower.register(log_dirs=directories)
    harness.follower.heartbeat()
    until(lambda: harness.id in harness.client.brokers(), "clients see it")
    topic = harness.topic()
    assert harness.follower.heartbeat(offline_log_dirs=[directories[0]]).error_code == E.NONE
    assert harness.describe(topic).isr == [1, harness.id], "the directory of the partition is unknown"


# ---- topics over two brokers -----------------------------------------------------------------------------


def test_replicas_are_assigned_to_two_brokers(harness: FollowerHarness) -> None:
    """replication.factor 2 without a manual assignment."""
    harness.join()
    name = f"placed-{harness.id}"
    request = CreateTopicsRequest(topics=[topic(name, 4, 2)], timeout_ms=30_000, validate_only=False)
    (made,) = harness.client.raw.ask(request, 7).topics
    assert (made.error_code, made.num_partitions, made.replication_factor) == (E.NONE, 4, 2)
    until(lambda: harness.client.describe(name, 3) is not None, "it is known")
    placed = [harness.client.describe(name, index) for index in range(4)]
    assert [seen and (len(seen.isr), seen.leader in seen.isr) for seen in placed] == [(2, True)] * 4


# ---- AlterPartition --------------------------------------------------------------------------------------


def test_isr_changes_that_a_leader_may_request(harness: FollowerHarness) -> None:
    """Error codes and their order as in Kafka's ReplicationControlManager; the follower is the leader here."""
    harness.join()
    own = harness.id
    _, topic_id = topic = harness.topic([own, 1])
    alter = harness.follower.alter_partition
    good = harness.follower.epoch
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
        assert until(lambda isr=isr: harness.describe(topic).isr == sorted(isr), "clients see it")  # type: ignore[misc]


def test_a_fenced_or_stopping_broker_cannot_be_in_sync(harness: FollowerHarness) -> None:
    """INELIGIBLE_REPLICA; only the leader may send the request."""
    harness.join()
    with unregistered_follower(harness.cluster) as beside:
        other = beside.follower
        other.register()
        _, topic_id = harness.topic([harness.id, other.broker_id])
        alter = harness.follower.alter_partition
        assert alter(topic_id, [harness.id, other.broker_id], 0, 0).error_code == E.INELIGIBLE_REPLICA
        assert not other.heartbeat().is_fenced
        assert other.alter_partition(topic_id, [harness.id, other.broker_id], 0, 0).error_code == E.INVALID_REQUEST
        assert alter(topic_id, [harness.id, other.broker_id], 0, 0).error_code == E.NONE


SERVED = """
SASL_HANDSHAKE API_VERSIONS CREATE_TOPICS DELETE_TOPICS DESCRIBE_CONFIGS ALTER_CONFIGS SASL_AUTHENTICATE CREATE_PARTITIONS
ELECT_LEADERS INCREMENTAL_ALTER_CONFIGS ALTER_PARTITION_REASSIGNMENTS LIST_PARTITION_REASSIGNMENTS DESCRIBE_QUORUM
ALTER_PARTITION ALTER_CLIENT_QUOTAS DESCRIBE_USER_SCRAM_CREDENTIALS ALTER_USER_SCRAM_CREDENTIALS UPDATE_FEATURES ENVELOPE
DESCRIBE_CLUSTER BROKER_REGISTRATION BROKER_HEARTBEAT UNREGISTER_BROKER ALLOCATE_PRODUCER_IDS ADD_RAFT_VOTER
REMOVE_RAFT_VOTER FETCH VOTE BEGIN_QUORUM_EPOCH END_QUORUM_EPOCH FETCH_SNAPSHOT UPDATE_RAFT_VOTER CONTROLLER_REGISTRATION
ASSIGN_REPLICAS_TO_DIRS DESCRIBE_ACLS CREATE_ACLS DELETE_ACLS CREATE_DELEGATION_TOKEN RENEW_DELEGATION_TOKEN
EXPIRE_DELEGATION_TOKEN DESCRIBE_DELEGATION_TOKEN
"""


def test_the_controllers_listener_names_what_it_serves(cluster: Cluster) -> None:
    """A subset of Kafka's APIs, in the versions that our messages have."""
    served = [ApiKey[name] for name in SERVED.split()]
    versions = {key: (APIS[key].request.MIN_VERSION, APIS[key].request.MAX_VERSION) for key in served}
    with RawClient(cluster.controller) as client:
        answer = client.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 4)
        table = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        assert {key: table.get(key) for key in served} == versions
        assert not cluster.is_ours or len(table) == len(served)
        controllers = client.ask(DescribeClusterRequest(endpoint_type=2), 1)
    assert (controllers.error_code, controllers.controller_id) == (E.NONE, 1)
    assert [(node.broker_id, f"{node.host}:{node.port}") for node in controllers.brokers] == [(1, cluster.controller)]


def test_the_controller_listener_is_for_the_controllers_apis_alone(harness: FollowerHarness) -> None:
    """A broker API on a client listener closes the connection."""
    heartbeat = BrokerHeartbeatRequest(
        broker_id=9, broker_epoch=1, current_metadata_offset=0, want_fence=False, want_shut_down=False
    )
    with pytest.raises((EOFError, ConnectionResetError)):
        harness.client.raw.ask(heartbeat, 1)
