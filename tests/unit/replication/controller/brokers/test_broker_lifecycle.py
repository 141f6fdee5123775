"""Guards the life of other brokers: brokers.py, heartbeats.py, sessions.py, isr_changes.py in replication/controller.

What Kafka answers is asserted over the wire in tests/conformance/test_follower.py; here are the records, the sentences,
and the corners that no wire reaches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import stored_records
from protocol.messages.admin import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from protocol.messages.quorum import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerState,
)
from protocol.messages.stored_records import BrokerEndpoint, BrokerFeature
from replication.controller.brokers.broker_heartbeat_tracker import BrokerHeartbeatTracker
from replication.controller.brokers.registration import register, registration_from
from replication.metadata.feature_levels import SUPPORTED_FEATURES
from replication.metadata.image import NO_LEADER, PartitionState
from replication.timer_queue import TimerQueue
from tests.support.controller_harness import CLUSTER_ID, SESSION_MS, ControllerWorld

FAR = 2**40


@pytest.fixture
def world(tmp_path: Path) -> ControllerWorld:
    return ControllerWorld(tmp_path).start()


def registration(broker_id: int = 2, incarnation: bytes = b"I" * 16, **changes: Any) -> BrokerRegistrationRequest:
    said: dict[str, Any] = {
        "broker_id": broker_id,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": incarnation,
        "listeners": [BrokerEndpoint(name="PLAINTEXT", host="h", port=9, security_protocol=0)],
        "features": [
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ],
        "rack": "r",
        "log_dirs": [b"%d" % broker_id * 16],
    }
    return BrokerRegistrationRequest(**{**said, **changes})


def beat(epoch: int, broker_id: int = 2, **changes: Any) -> BrokerHeartbeatRequest:
    said: dict[str, Any] = {
        "broker_id": broker_id,
        "broker_epoch": epoch,
        "current_metadata_offset": FAR,
        "want_fence": False,
        "want_shut_down": False,
    }
    return BrokerHeartbeatRequest(**{**said, **changes})


def join(world: ControllerWorld, broker_id: int = 2, **changes: Any) -> int:
    """Register and become active; the epoch."""
    epoch: int = world.register(registration(broker_id, **changes)).broker_epoch
    assert not world.heartbeat(beat(epoch, broker_id)).is_fenced
    return epoch


def create(world: ControllerWorld, *replicas: list[int], name: str = "t") -> bytes:
    assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=b) for i, b in enumerate(replicas)]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    (made,) = world.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1, validate_only=False)).topics
    assert made.error_code == ErrorCode.NONE, made
    return made.topic_id  # type: ignore[no-any-return]


def state(world: ControllerWorld, topic_id: bytes, index: int = 0) -> PartitionState:
    return world.image.topics_by_id[topic_id].partitions[index]


def since(world: ControllerWorld, offset: int) -> list[Any]:
    return list(world.records(since=offset))


# ---- registering -----------------------------------------------------------------------------------------


def test_a_registration_becomes_a_record(world: ControllerWorld) -> None:
    """Fenced, with all that it said; its epoch is where the record stands."""
    offset = world.log.next_offset
    answer = world.register(registration())
    assert (answer.error_code, answer.broker_epoch) == (ErrorCode.NONE, offset)
    broker = world.image.brokers[2]
    assert (broker.epoch, broker.is_fenced, broker.rack, broker.directories) == (offset, True, "r", (b"2" * 16,))
    assert broker.endpoint("PLAINTEXT") is not None
    (record,) = since(world, offset)
    assert [(f.name, f.max_supported_version) for f in record.features] == [
        (name, high) for name, (_, high) in SUPPORTED_FEATURES.items()
    ]


def test_the_same_process_stays_what_it_is(world: ControllerWorld) -> None:
    """Its epoch, and that it is active; it has then to read as far as its newer registration."""
    epoch = join(world)
    offset = world.log.next_offset
    assert world.register(registration(rack="other")).broker_epoch == epoch
    assert (world.image.brokers[2].is_fenced, world.image.brokers[2].rack) == (False, "other")
    assert not world.heartbeat(beat(epoch, current_metadata_offset=offset - 1)).is_caught_up
    assert world.heartbeat(beat(epoch, current_metadata_offset=offset)).is_caught_up


@pytest.mark.parametrize(
    ("changes", "is_alive", "code", "sentence"),
    [
        ({}, True, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Another broker is registered with that broker id. If the"),
        (
            {"is_migrating_zk_broker": True}, False, ErrorCode.BROKER_ID_NOT_REGISTERED,
            "Controller does not support registering ZK brokers.",
        ),
        (
            {"features": []}, False, ErrorCode.INVALID_REGISTRATION,
            "Request features do not contain 'metadata.version'",
        ),
        (
            {"features": [BrokerFeature(name="odd", min_supported_version=1, max_supported_version=2)]}, False,
            ErrorCode.UNSUPPORTED_VERSION,
            "Unable to register because the broker does not support finalized version 0 of odd. The broker wants",
        ),
        # The cluster comes first, then who else has the number.
        ({"cluster_id": "x", "features": []}, True, ErrorCode.INCONSISTENT_CLUSTER_ID, "Expected cluster ID"),
        ({"features": []}, True, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Another broker"),
    ],
)  # fmt: skip
def test_why_a_broker_is_refused(
    world: ControllerWorld, changes: dict[str, Any], is_alive: bool, code: ErrorCode, sentence: str
) -> None:
    """Sentences and order of Kafka's ClusterControlManager."""
    with pytest.raises(KafkaError) as refusal:
        register(
            world.image, world.context(), registration_from(registration(**changes)), next_offset=9, is_alive=is_alive
        )
    assert refusal.value.code == code
    assert (refusal.value.message or "").startswith(sentence)


def test_a_new_process_may_come_when_the_old_one_is_not_heard_of(world: ControllerWorld) -> None:
    """Before its first heartbeat it has no session; after it, the session must end."""
    world.register(registration())
    other = registration(incarnation=b"J" * 16)
    epoch = world.register(other).broker_epoch
    world.heartbeat(beat(epoch))
    third = registration(incarnation=b"K" * 16)
    assert world.register(third).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.wait(SESSION_MS - 1)
    assert world.register(third).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.wait(1)
    assert world.register(third).error_code == ErrorCode.NONE


def test_who_ended_cleanly_need_not_wait_until_it_is_missed(world: ControllerWorld) -> None:
    """The epoch that the process before ended with stands in its directory only when it has ended."""
    epoch = world.register(registration()).broker_epoch
    world.heartbeat(beat(epoch))
    again = registration(incarnation=b"J" * 16, previous_broker_epoch=epoch)
    assert world.register(again).error_code == ErrorCode.NONE
    older = registration(incarnation=b"K" * 16, previous_broker_epoch=epoch)
    world.heartbeat(beat(world.image.brokers[2].epoch))
    assert world.register(older).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_nobody_takes_the_number_of_the_node_that_decides(world: ControllerWorld) -> None:
    """Its own broker lives while the process does, heard of or not."""
    assert world.register(registration(1)).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.wait(10 * SESSION_MS)
    assert world.image.brokers[1].is_active


# ---- living ----------------------------------------------------------------------------------------------


def test_a_broker_that_becomes_active_leads_what_nobody_leads(world: ControllerWorld) -> None:
    """And what it leads waits for it when it falls silent."""
    epoch = join(world)
    topic_id = create(world, [2])
    world.wait(SESSION_MS)
    assert world.image.brokers[2].is_fenced
    assert state(world, topic_id)[1:4] == ((), NO_LEADER, 1)
    assert state(world, topic_id).eligible_leaders == (2,)
    world.heartbeat(beat(epoch))
    assert state(world, topic_id)[1:4] == ((2,), 2, 2)


def test_who_is_the_last_that_is_active_is_not_fenced_at_its_wish(world: ControllerWorld) -> None:
    """Somebody has to be there: each wants it while its disk is full, and records can be read on a full disk."""
    epoch = join(world)
    assert world.heartbeat(beat(epoch, want_fence=True)).is_fenced
    assert not world.heartbeat(world.own_heartbeat(want_fence=True)).is_fenced
    assert world.heartbeat(beat(epoch, want_fence=True)).is_fenced
    assert not world.heartbeat(beat(epoch)).is_fenced
    assert world.heartbeat(world.own_heartbeat(want_fence=True)).is_fenced


def test_who_has_not_read_its_own_registration_stays_fenced(world: ControllerWorld) -> None:
    """It would serve what it does not know."""
    epoch = world.register(registration()).broker_epoch
    answer = world.heartbeat(beat(epoch, current_metadata_offset=epoch - 1))
    assert (answer.is_caught_up, answer.is_fenced, world.image.brokers[2].is_fenced) == (False, True, True)


def test_every_heartbeat_begins_the_session_anew(world: ControllerWorld) -> None:
    """broker.session.timeout.ms counts from the last one."""
    epoch = join(world)
    for _ in range(5):
        world.wait(SESSION_MS - 1)
        assert not world.image.brokers[2].is_fenced
        assert world.heartbeat(beat(epoch)).error_code == ErrorCode.NONE
    offset = world.log.next_offset
    world.wait(SESSION_MS)
    assert [type(record) for record in since(world, offset)] == [stored_records.BrokerRegistrationChangeRecord]
    world.wait(10 * SESSION_MS)
    assert world.log.next_offset == offset + 1


def test_who_was_active_before_this_controller_must_be_heard_too(tmp_path: Path) -> None:
    """A restart of the controller gives everybody a whole session, no more."""
    world = ControllerWorld(tmp_path).start()
    join(world)
    world.log.close()
    world = ControllerWorld(tmp_path).start(previous_epoch=world.broker_epoch)
    world.wait(SESSION_MS - 1)
    assert world.image.brokers[2].is_active
    world.wait(1)
    assert world.image.brokers[2].is_fenced


def test_leaving_waits_for_everybody_else_to_have_heard(world: ControllerWorld) -> None:
    """The slowest active broker counts; a fenced one does not."""
    second, third = join(world, 2), join(world, 3)
    topic_id = create(world, [2, 3])
    answer = world.heartbeat(beat(second, want_shut_down=True))
    assert (answer.is_fenced, answer.should_shut_down) == (False, False)
    assert world.image.brokers[2].is_shutting_down
    assert state(world, topic_id)[1:3] == ((3,), 3)
    left_at = world.image.offset
    world.heartbeat(beat(third, 3, current_metadata_offset=left_at - 1))
    assert not world.heartbeat(beat(second, want_shut_down=True)).should_shut_down
    world.heartbeat(beat(third, 3, current_metadata_offset=left_at))
    answer = world.heartbeat(beat(second, want_shut_down=True))
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    assert world.image.brokers[2].is_fenced


def test_who_leads_what_nobody_else_can_lead_is_left_without_leader(world: ControllerWorld) -> None:
    """A controlled shutdown does not wait for brokers that are not there."""
    epoch = join(world)
    topic_id = create(world, [2])
    world.heartbeat(beat(epoch, want_shut_down=True))
    assert state(world, topic_id)[1:3] == ((), NO_LEADER)
    assert world.heartbeat(beat(epoch, want_shut_down=True)).should_shut_down


def test_failed_and_cordoned_directories_are_noted(world: ControllerWorld) -> None:
    """Partitions in a failed one lose the broker; a cordoned one gets no new ones."""
    epoch = join(world)
    topic_id = create(world, [2, 1])
    offset = world.log.next_offset
    world.heartbeat(beat(epoch, cordoned_log_dirs=[b"2" * 16]))
    world.heartbeat(beat(epoch, cordoned_log_dirs=[b"2" * 16]))
    (change,) = since(world, offset)
    assert change.cordoned_log_dirs == [b"2" * 16]
    assert world.image.brokers[2].cordoned_directories == (b"2" * 16,)
    world.heartbeat(beat(epoch, offline_log_dirs=[b"2" * 16, b"?" * 16]))
    assert state(world, topic_id)[1:3] == ((1,), 1)


# ---- in sync ---------------------------------------------------------------------------------------------


def test_many_partitions_are_altered_at_once(world: ControllerWorld) -> None:
    """A refused one does not keep the others back."""
    epoch = join(world)
    topic_id = create(world, [2, 1], [2, 1])
    wanted = [
        AlterPartitionRequestPartition(
            partition_index=index,
            leader_epoch=0,
            partition_epoch=partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=2, broker_epoch=epoch)],
        )
        for index, partition_epoch in ((0, 0), (1, 5))
    ]
    request = AlterPartitionRequest(
        broker_id=2,
        broker_epoch=epoch,
        topics=[AlterPartitionRequestTopic(topic_id=topic_id, partitions=wanted)],
    )
    answer = world.ask(request)
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER]
    assert [state(world, topic_id, i).isr for i in range(2)] == [(2,), (2, 1)]


def test_a_change_that_ends_a_reassignment_and_moves_the_leader_says_so(world: ControllerWorld) -> None:
    """NEW_LEADER_ELECTED: an error, and yet a change."""
    epoch = join(world)
    topic_id = create(world, [2, 1])
    moving = stored_records.PartitionChangeRecord(partition_id=0, topic_id=topic_id, removing_replicas=[2])
    world.controller._newest_image, _ = world.image.apply([moving], offset=world.image.offset, epoch=1)
    wanted = AlterPartitionRequestPartition(
        partition_index=0,
        leader_epoch=0,
        partition_epoch=1,
        new_isr_with_epochs=[BrokerState(broker_id=2), BrokerState(broker_id=1)],
    )
    request = AlterPartitionRequest(
        broker_id=2,
        broker_epoch=epoch,
        topics=[AlterPartitionRequestTopic(topic_id=topic_id, partitions=[wanted])],
    )
    (found,) = world.ask(request).topics[0].partitions
    assert (found.error_code, found.leader_id) == (ErrorCode.NEW_LEADER_ELECTED, 0)
    assert state(world, topic_id)[:4] == ((1,), (1,), 1, 1)


# ---- sessions --------------------------------------------------------------------------------------------


def test_a_session_belongs_to_one_registration() -> None:
    """Rule 2 of sessions.py: nothing of the older one is left, its deadline neither."""
    timers = TimerQueue()
    heartbeat_tracker = BrokerHeartbeatTracker(timers, 100)
    silent: list[int] = []
    heartbeat_tracker.on_session_expired = silent.append
    heartbeat_tracker.touch(2, 5, 0).begin_shutdown(7)
    heartbeat_tracker.register(2, 6, 6)
    assert not heartbeat_tracker.has_valid_session(2, 5)
    assert not heartbeat_tracker.has_valid_session(2, 6)
    assert not heartbeat_tracker.state_of(2, 6).is_shutting_down
    timers.run_due(1000)
    assert silent == []
    heartbeat_tracker.touch(2, 6, 1000)
    assert heartbeat_tracker.has_valid_session(2, 6)
    assert not heartbeat_tracker.has_valid_session(2, 5)
    timers.run_due(1100)
    assert silent == [2]
