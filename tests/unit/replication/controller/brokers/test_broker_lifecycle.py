"""Tests of other brokers: registration.py, broker_heartbeats.py, broker_heartbeat_tracker.py, alter_partition.py.

tests/conformance/test_follower.py compares responses with Kafka; these tests check records, messages and corner cases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import quorum, stored_records
from protocol.messages.admin import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from protocol.messages.stored_records import BrokerEndpoint, BrokerFeature
from replication.controller.brokers.broker_heartbeat_tracker import BrokerHeartbeatTracker
from replication.controller.brokers.registration import register, registration_from
from replication.metadata.feature_levels import SUPPORTED_FEATURES
from replication.metadata.image import NO_LEADER, PartitionState
from replication.timer_queue import TimerQueue
from tests.support.controller_harness import CLUSTER_ID, SESSION_MS, ControllerHarness

FAR = 2**40


@pytest.fixture
def harness(tmp_path: Path) -> ControllerHarness:
    return ControllerHarness(tmp_path).start()


def registration(
    broker_id: int = 2, incarnation: bytes = b"I" * 16, **changes: Any
) -> quorum.BrokerRegistrationRequest:
    fields: dict[str, Any] = {
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
    return quorum.BrokerRegistrationRequest(**{**fields, **changes})


def heartbeat_request(epoch: int, broker_id: int = 2, **changes: Any) -> quorum.BrokerHeartbeatRequest:
    fields: dict[str, Any] = {
        "broker_id": broker_id,
        "broker_epoch": epoch,
        "current_metadata_offset": FAR,
        "want_fence": False,
        "want_shut_down": False,
    }
    return quorum.BrokerHeartbeatRequest(**{**fields, **changes})


def activate_broker(harness: ControllerHarness, broker_id: int = 2, **changes: Any) -> int:
    """Register and unfence a broker; returns its epoch."""
    epoch: int = harness.register(registration(broker_id, **changes)).broker_epoch
    assert not harness.heartbeat(heartbeat_request(epoch, broker_id)).is_fenced
    return epoch


def create(harness: ControllerHarness, *replicas: list[int], name: str = "t") -> bytes:
    assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=b) for i, b in enumerate(replicas)]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    (made,) = harness.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1, validate_only=False)).topics
    assert made.error_code == ErrorCode.NONE, made
    return made.topic_id  # type: ignore[no-any-return]


def state(harness: ControllerHarness, topic_id: bytes, index: int = 0) -> PartitionState:
    return harness.image.topics_by_id[topic_id].partitions[index]


def records_since(harness: ControllerHarness, offset: int) -> list[Any]:
    return list(harness.records(since=offset))


# ---- registration ----------------------------------------------------------------------------------------


def test_a_registration_is_stored_fenced(harness: ControllerHarness) -> None:
    """The broker epoch is the offset of the record."""
    offset = harness.log.next_offset
    answer = harness.register(registration())
    assert (answer.error_code, answer.broker_epoch) == (ErrorCode.NONE, offset)
    broker = harness.image.brokers[2]
    assert (broker.epoch, broker.is_fenced, broker.rack, broker.directories) == (offset, True, "r", (b"2" * 16,))
    assert broker.endpoint("PLAINTEXT") is not None
    (record,) = records_since(harness, offset)
    assert [(f.name, f.max_supported_version) for f in record.features] == [
        (name, high) for name, (_, high) in SUPPORTED_FEATURES.items()
    ]


def test_a_second_registration_keeps_epoch_and_state(harness: ControllerHarness) -> None:
    """The broker must then read up to the second record."""
    epoch = activate_broker(harness)
    offset = harness.log.next_offset
    assert harness.register(registration(rack="other")).broker_epoch == epoch
    assert (harness.image.brokers[2].is_fenced, harness.image.brokers[2].rack) == (False, "other")
    assert not harness.heartbeat(heartbeat_request(epoch, current_metadata_offset=offset - 1)).is_caught_up
    assert harness.heartbeat(heartbeat_request(epoch, current_metadata_offset=offset)).is_caught_up


@pytest.mark.parametrize(
    ("changes", "is_alive", "code", "message"),
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
        # The cluster id is checked first, then the broker id.
        ({"cluster_id": "x", "features": []}, True, ErrorCode.INCONSISTENT_CLUSTER_ID, "Expected cluster ID"),
        ({"features": []}, True, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Another broker"),
    ],
)  # fmt: skip
def test_invalid_registrations_are_rejected(
    harness: ControllerHarness, changes: dict[str, Any], is_alive: bool, code: ErrorCode, message: str
) -> None:
    """Messages and order are those of Kafka's ClusterControlManager."""
    with pytest.raises(KafkaError) as error:
        register(
            harness.image,
            harness.context(),
            registration_from(registration(**changes)),
            next_offset=9,
            is_alive=is_alive,
        )
    assert error.value.code == code
    assert (error.value.message or "").startswith(message)


def test_a_new_process_registers_only_without_a_session_of_the_old_one(harness: ControllerHarness) -> None:
    """The session starts with the first heartbeat."""
    harness.register(registration())
    other = registration(incarnation=b"J" * 16)
    epoch = harness.register(other).broker_epoch
    harness.heartbeat(heartbeat_request(epoch))
    third = registration(incarnation=b"K" * 16)
    assert harness.register(third).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    harness.wait(SESSION_MS - 1)
    assert harness.register(third).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    harness.wait(1)
    assert harness.register(third).error_code == ErrorCode.NONE


def test_the_epoch_of_a_clean_shutdown_allows_to_register_at_once(harness: ControllerHarness) -> None:
    """Only a process that ended has stored it."""
    epoch = harness.register(registration()).broker_epoch
    harness.heartbeat(heartbeat_request(epoch))
    again = registration(incarnation=b"J" * 16, previous_broker_epoch=epoch)
    assert harness.register(again).error_code == ErrorCode.NONE
    older = registration(incarnation=b"K" * 16, previous_broker_epoch=epoch)
    harness.heartbeat(heartbeat_request(harness.image.brokers[2].epoch))
    assert harness.register(older).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_the_id_of_the_local_broker_cannot_be_registered_by_another(harness: ControllerHarness) -> None:
    """Its session does not expire."""
    assert harness.register(registration(1)).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    harness.wait(10 * SESSION_MS)
    assert harness.image.brokers[1].is_active


# ---- heartbeats ------------------------------------------------------------------------------------------


def test_an_expired_session_fences_and_a_heartbeat_unfences(harness: ControllerHarness) -> None:
    """Its partitions have no leader in between."""
    epoch = activate_broker(harness)
    topic_id = create(harness, [2])
    harness.wait(SESSION_MS)
    assert harness.image.brokers[2].is_fenced
    assert state(harness, topic_id)[1:4] == ((), NO_LEADER, 1)
    assert state(harness, topic_id).eligible_leaders == (2,)
    harness.heartbeat(heartbeat_request(epoch))
    assert state(harness, topic_id)[1:4] == ((2,), 2, 2)


def test_the_last_unfenced_broker_is_not_fenced_on_request(harness: ControllerHarness) -> None:
    """Brokers request fencing while their disk is full; reading stays possible."""
    epoch = activate_broker(harness)
    assert harness.heartbeat(heartbeat_request(epoch, want_fence=True)).is_fenced
    assert not harness.heartbeat(harness.local_heartbeat(want_fence=True)).is_fenced
    assert harness.heartbeat(heartbeat_request(epoch, want_fence=True)).is_fenced
    assert not harness.heartbeat(heartbeat_request(epoch)).is_fenced
    assert harness.heartbeat(harness.local_heartbeat(want_fence=True)).is_fenced


def test_a_broker_stays_fenced_until_it_has_read_its_registration(harness: ControllerHarness) -> None:
    epoch = harness.register(registration()).broker_epoch
    answer = harness.heartbeat(heartbeat_request(epoch, current_metadata_offset=epoch - 1))
    assert (answer.is_caught_up, answer.is_fenced, harness.image.brokers[2].is_fenced) == (False, True, True)


def test_every_heartbeat_renews_the_session(harness: ControllerHarness) -> None:
    """broker.session.timeout.ms."""
    epoch = activate_broker(harness)
    for _ in range(5):
        harness.wait(SESSION_MS - 1)
        assert not harness.image.brokers[2].is_fenced
        assert harness.heartbeat(heartbeat_request(epoch)).error_code == ErrorCode.NONE
    offset = harness.log.next_offset
    harness.wait(SESSION_MS)
    assert [type(record) for record in records_since(harness, offset)] == [
        stored_records.BrokerRegistrationChangeRecord
    ]
    harness.wait(10 * SESSION_MS)
    assert harness.log.next_offset == offset + 1


def test_a_new_controller_gives_each_active_broker_a_session(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path).start()
    activate_broker(harness)
    harness.log.close()
    harness = ControllerHarness(tmp_path).start(previous_epoch=harness.broker_epoch)
    harness.wait(SESSION_MS - 1)
    assert harness.image.brokers[2].is_active
    harness.wait(1)
    assert harness.image.brokers[2].is_fenced


def test_a_controlled_shutdown_waits_for_the_metadata_of_active_brokers(harness: ControllerHarness) -> None:
    """Fenced brokers do not count."""
    second, third = activate_broker(harness, 2), activate_broker(harness, 3)
    topic_id = create(harness, [2, 3])
    answer = harness.heartbeat(heartbeat_request(second, want_shut_down=True))
    assert (answer.is_fenced, answer.should_shut_down) == (False, False)
    assert harness.image.brokers[2].is_shutting_down
    assert state(harness, topic_id)[1:3] == ((3,), 3)
    shutdown_offset = harness.image.offset
    harness.heartbeat(heartbeat_request(third, 3, current_metadata_offset=shutdown_offset - 1))
    assert not harness.heartbeat(heartbeat_request(second, want_shut_down=True)).should_shut_down
    harness.heartbeat(heartbeat_request(third, 3, current_metadata_offset=shutdown_offset))
    answer = harness.heartbeat(heartbeat_request(second, want_shut_down=True))
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    assert harness.image.brokers[2].is_fenced


def test_a_controlled_shutdown_does_not_wait_for_missing_brokers(harness: ControllerHarness) -> None:
    """Its partitions lose their leader."""
    epoch = activate_broker(harness)
    topic_id = create(harness, [2])
    harness.heartbeat(heartbeat_request(epoch, want_shut_down=True))
    assert state(harness, topic_id)[1:3] == ((), NO_LEADER)
    assert harness.heartbeat(heartbeat_request(epoch, want_shut_down=True)).should_shut_down


def test_offline_and_cordoned_directories_are_stored(harness: ControllerHarness) -> None:
    """Partitions in an offline directory lose the broker."""
    epoch = activate_broker(harness)
    topic_id = create(harness, [2, 1])
    offset = harness.log.next_offset
    harness.heartbeat(heartbeat_request(epoch, cordoned_log_dirs=[b"2" * 16]))
    harness.heartbeat(heartbeat_request(epoch, cordoned_log_dirs=[b"2" * 16]))
    (change,) = records_since(harness, offset)
    assert change.cordoned_log_dirs == [b"2" * 16]
    assert harness.image.brokers[2].cordoned_directories == (b"2" * 16,)
    harness.heartbeat(heartbeat_request(epoch, offline_log_dirs=[b"2" * 16, b"?" * 16]))
    assert state(harness, topic_id)[1:3] == ((1,), 1)


# ---- AlterPartition --------------------------------------------------------------------------------------


def test_partitions_of_one_alter_partition_request_are_independent(harness: ControllerHarness) -> None:
    epoch = activate_broker(harness)
    topic_id = create(harness, [2, 1], [2, 1])
    wanted = [
        quorum.AlterPartitionRequestPartition(
            partition_index=index,
            leader_epoch=0,
            partition_epoch=partition_epoch,
            new_isr_with_epochs=[quorum.BrokerState(broker_id=2, broker_epoch=epoch)],
        )
        for index, partition_epoch in ((0, 0), (1, 5))
    ]
    request = quorum.AlterPartitionRequest(
        broker_id=2,
        broker_epoch=epoch,
        topics=[quorum.AlterPartitionRequestTopic(topic_id=topic_id, partitions=wanted)],
    )
    answer = harness.ask(request)
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER]
    assert [state(harness, topic_id, i).isr for i in range(2)] == [(2,), (2, 1)]


def test_an_isr_change_that_moves_the_leader_returns_new_leader_elected(harness: ControllerHarness) -> None:
    """The error reports a successful change."""
    epoch = activate_broker(harness)
    topic_id = create(harness, [2, 1])
    moving = stored_records.PartitionChangeRecord(partition_id=0, topic_id=topic_id, removing_replicas=[2])
    harness.controller._newest_image, _ = harness.image.apply([moving], offset=harness.image.offset, epoch=1)
    wanted = quorum.AlterPartitionRequestPartition(
        partition_index=0,
        leader_epoch=0,
        partition_epoch=1,
        new_isr_with_epochs=[quorum.BrokerState(broker_id=2), quorum.BrokerState(broker_id=1)],
    )
    request = quorum.AlterPartitionRequest(
        broker_id=2,
        broker_epoch=epoch,
        topics=[quorum.AlterPartitionRequestTopic(topic_id=topic_id, partitions=[wanted])],
    )
    (found,) = harness.ask(request).topics[0].partitions
    assert (found.error_code, found.leader_id) == (ErrorCode.NEW_LEADER_ELECTED, 0)
    assert state(harness, topic_id)[:4] == ((1,), (1,), 1, 1)


# ---- sessions --------------------------------------------------------------------------------------------


def test_a_session_belongs_to_one_registration() -> None:
    """A new epoch starts without a session and without the old deadline."""
    timers = TimerQueue()
    heartbeat_tracker = BrokerHeartbeatTracker(timers, 100)
    expired: list[int] = []
    heartbeat_tracker.on_session_expired = expired.append
    heartbeat_tracker.touch(2, 5, 0).begin_shutdown(7)
    heartbeat_tracker.register(2, 6, 6)
    assert not heartbeat_tracker.has_valid_session(2, 5)
    assert not heartbeat_tracker.has_valid_session(2, 6)
    assert not heartbeat_tracker.state_of(2, 6).is_shutting_down
    timers.run_due(1000)
    assert expired == []
    heartbeat_tracker.touch(2, 6, 1000)
    assert heartbeat_tracker.has_valid_session(2, 6)
    assert not heartbeat_tracker.has_valid_session(2, 5)
    timers.run_due(1100)
    assert expired == [2]
