"""Tests of other brokers: registration.py, broker_heartbeats.py, broker_heartbeat_tracker.py, alter_partition.py.

tests/conformance/test_follower.py compares responses with Kafka; these tests check records, messages and corner cases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import stored_records
from protocol.messages.cluster import UnregisterBrokerRequest
from protocol.messages.quorum import BrokerHeartbeatRequest
from protocol.messages.stored_records import BrokerFeature
from replication.controller.brokers.broker_heartbeat_tracker import BrokerHeartbeatTracker
from replication.controller.brokers.registration import register
from replication.metadata.feature_levels import SUPPORTED_FEATURES
from replication.metadata.image import NO_LEADER
from replication.metadata.image_records import stored_features
from replication.timer_queue import TimerQueue
from tests.support.controller_harness import CLUSTER_ID, SESSION_MS, ControllerHarness, registration


@pytest.fixture
def harness(tmp_path: Path) -> ControllerHarness:
    return ControllerHarness(tmp_path).start()


# ---- registration ----------------------------------------------------------------------------------------


def test_a_registration_is_stored_fenced(harness: ControllerHarness) -> None:
    """The broker epoch is the offset of the record."""
    offset = harness.log.next_offset
    answer = harness.ask(registration())
    assert (answer.error_code, answer.broker_epoch) == (ErrorCode.NONE, offset)
    broker = harness.image.brokers[2]
    assert (broker.epoch, broker.is_fenced, broker.rack, broker.directories) == (offset, True, "r", (b"2" * 16,))
    assert broker.endpoint("PLAINTEXT") is not None
    (record,) = harness.records(offset)
    assert [(f.name, f.max_supported_version) for f in record.features] == [
        (name, high) for name, (_, high) in SUPPORTED_FEATURES.items()
    ]


def test_a_second_registration_keeps_epoch_and_state(harness: ControllerHarness) -> None:
    """The broker must then read up to the second record."""
    epoch = harness.activate_broker()
    offset = harness.log.next_offset
    assert harness.ask(registration(rack="other")).broker_epoch == epoch
    assert (harness.image.brokers[2].is_fenced, harness.image.brokers[2].rack) == (False, "other")
    assert not harness.heartbeat(epoch, current_metadata_offset=offset - 1).is_caught_up
    assert harness.heartbeat(epoch, current_metadata_offset=offset).is_caught_up


UNSUPPORTED = (
    "Unable to register because the broker does not support finalized version {} of {}. "
    "The broker wants a version between {} and {}, inclusive."
)
DUPLICATE = (
    "Another broker is registered with that broker id. If the broker was recently restarted this should self-resolve once the "
    "heartbeat manager expires the broker's session."
)
OTHER_CLUSTER = f"Expected cluster ID {CLUSTER_ID}, but got cluster ID x"
E = ErrorCode


def levels(**features: tuple[int, int]) -> list[BrokerFeature]:
    return stored_features({name.replace("_", "."): levels for name, levels in features.items()})


@pytest.mark.parametrize(
    ("changes", "is_alive", "code", "message"),
    [
        ({"cluster_id": "x"}, False, E.INCONSISTENT_CLUSTER_ID, OTHER_CLUSTER),
        ({"log_dirs": []}, False, E.INVALID_REGISTRATION, "No directories specified in request"),
        ({"log_dirs": [bytes(16)]}, False, E.INVALID_REGISTRATION, "Reserved directory ID in request"),
        ({"log_dirs": [b"D" * 16] * 2}, False, E.INVALID_REGISTRATION, "Duplicate directory ID in request"),
        (
            {"features": levels(metadata_version=(7, 29))}, False, E.UNSUPPORTED_VERSION,
            UNSUPPORTED.format(30, "metadata.version", 7, 29),
        ),
        (
            {"features": levels(metadata_version=(7, 30))}, False, E.UNSUPPORTED_VERSION,
            UNSUPPORTED.format(1, "eligible.leader.replicas.version", 0, 0),
        ),
        ({"features": levels(odd=(1, 2))}, False, E.UNSUPPORTED_VERSION, UNSUPPORTED.format(0, "odd", 1, 2)),
        ({"features": []}, False, E.INVALID_REGISTRATION, "Request features do not contain 'metadata.version'"),
        (
            {"is_migrating_zk_broker": True}, False, E.BROKER_ID_NOT_REGISTERED,
            "Controller does not support registering ZK brokers.",
        ),
        ({}, True, E.DUPLICATE_BROKER_REGISTRATION, DUPLICATE),
        # The cluster id is checked first, then the broker id.
        ({"cluster_id": "x", "features": []}, True, E.INCONSISTENT_CLUSTER_ID, OTHER_CLUSTER),
        ({"features": []}, True, E.DUPLICATE_BROKER_REGISTRATION, DUPLICATE),
    ],
)  # fmt: skip
def test_an_invalid_registration_is_rejected(
    harness: ControllerHarness, changes: dict[str, Any], is_alive: bool, code: ErrorCode, message: str
) -> None:
    """Checks, messages and order are those of Kafka's ClusterControlManager."""
    request = registration(**changes)
    with pytest.raises(KafkaError) as error:
        register(harness.context(), request, next_offset=9, is_alive=is_alive)
    assert (error.value.code, error.value.message) == (code, message)


def test_a_directory_of_another_broker_is_rejected(harness: ControllerHarness) -> None:
    request = registration(log_dirs=list(harness.image.brokers[1].directories))
    with pytest.raises(KafkaError, match="Broker 1 is already registered with directory"):
        register(harness.context(), request, next_offset=100)


def test_a_new_process_registers_only_without_a_session_of_the_old_one(harness: ControllerHarness) -> None:
    """The session starts with the first heartbeat."""
    harness.ask(registration())
    other = registration(incarnation=b"J" * 16)
    epoch = harness.ask(other).broker_epoch
    harness.heartbeat(epoch)
    third = registration(incarnation=b"K" * 16)
    assert harness.ask(third).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    harness.wait(SESSION_MS - 1)
    assert harness.ask(third).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    harness.wait(1)
    assert harness.ask(third).error_code == ErrorCode.NONE


def test_the_epoch_of_a_clean_shutdown_allows_to_register_at_once(harness: ControllerHarness) -> None:
    """Only a process that ended has stored it."""
    epoch = harness.ask(registration()).broker_epoch
    harness.heartbeat(epoch)
    again = registration(incarnation=b"J" * 16, previous_broker_epoch=epoch)
    assert harness.ask(again).error_code == ErrorCode.NONE
    older = registration(incarnation=b"K" * 16, previous_broker_epoch=epoch)
    harness.heartbeat(harness.image.brokers[2].epoch)
    assert harness.ask(older).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_the_id_of_the_local_broker_cannot_be_registered_by_another(harness: ControllerHarness) -> None:
    """Its session does not expire."""
    assert harness.ask(registration(1)).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    harness.wait(10 * SESSION_MS)
    assert harness.image.brokers[1].is_active


# ---- heartbeats ------------------------------------------------------------------------------------------


def test_an_expired_session_fences_and_a_heartbeat_unfences(harness: ControllerHarness) -> None:
    """Its partitions have no leader in between."""
    epoch = harness.activate_broker()
    topic_id = harness.create([2])
    harness.wait(SESSION_MS)
    assert harness.image.brokers[2].is_fenced
    assert harness.partition(topic_id)[1:4] == ((), NO_LEADER, 1)
    assert harness.partition(topic_id).eligible_leaders == (2,)
    harness.heartbeat(epoch)
    assert harness.partition(topic_id)[1:4] == ((2,), 2, 2)


def test_a_heartbeat_that_waits_for_a_slow_commit_keeps_the_session(harness: ControllerHarness) -> None:
    """The broker sends the next heartbeat after the response to this one."""
    epoch = harness.activate_broker()
    harness.worker.is_held = True
    harness.submit(registration(3))
    heartbeat = BrokerHeartbeatRequest(
        broker_id=2, broker_epoch=epoch, current_metadata_offset=2**40, want_fence=False, want_shut_down=False
    )
    response = harness.submit(heartbeat)
    harness.wait(SESSION_MS - 1)
    assert not response.is_done
    harness.worker.let_sync()
    assert response.is_done
    harness.worker.is_held = False
    harness.wait(SESSION_MS - 1)
    assert not harness.image.brokers[2].is_fenced
    harness.wait(1)
    assert harness.image.brokers[2].is_fenced


def test_the_last_unfenced_broker_is_not_fenced_on_request(harness: ControllerHarness) -> None:
    """Brokers request fencing while their disk is full; reading stays possible."""
    epoch = harness.activate_broker()
    assert harness.heartbeat(epoch, want_fence=True).is_fenced
    assert not harness.local_heartbeat(want_fence=True).is_fenced
    assert harness.heartbeat(epoch, want_fence=True).is_fenced
    assert not harness.heartbeat(epoch).is_fenced
    assert harness.local_heartbeat(want_fence=True).is_fenced


def test_a_broker_stays_fenced_until_it_has_read_its_registration(harness: ControllerHarness) -> None:
    epoch = harness.ask(registration()).broker_epoch
    answer = harness.heartbeat(epoch, current_metadata_offset=epoch - 1)
    assert (answer.is_caught_up, answer.is_fenced, harness.image.brokers[2].is_fenced) == (False, True, True)


def test_every_heartbeat_renews_the_session(harness: ControllerHarness) -> None:
    """broker.session.timeout.ms."""
    epoch = harness.activate_broker()
    for _ in range(5):
        harness.wait(SESSION_MS - 1)
        assert not harness.image.brokers[2].is_fenced
        assert harness.heartbeat(epoch).error_code == ErrorCode.NONE
    offset = harness.log.next_offset
    harness.wait(SESSION_MS)
    assert [type(record) for record in harness.records(offset)] == [stored_records.BrokerRegistrationChangeRecord]
    harness.wait(10 * SESSION_MS)
    assert harness.log.next_offset == offset + 1


def test_a_new_controller_gives_each_active_broker_a_session(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path).start()
    harness.activate_broker()
    harness = harness.restart(previous_epoch=harness.broker_epoch)
    harness.wait(SESSION_MS - 1)
    assert harness.image.brokers[2].is_active
    harness.wait(1)
    assert harness.image.brokers[2].is_fenced


def test_a_controlled_shutdown_waits_for_the_metadata_of_active_brokers(harness: ControllerHarness) -> None:
    """Fenced brokers do not count."""
    second, third = harness.activate_broker(2), harness.activate_broker(3)
    topic_id = harness.create([2, 3])
    answer = harness.heartbeat(second, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (False, False)
    assert harness.image.brokers[2].is_shutting_down
    assert harness.partition(topic_id)[1:3] == ((3,), 3)
    shutdown_offset = harness.image.offset
    harness.heartbeat(third, 3, current_metadata_offset=shutdown_offset - 1)
    assert not harness.heartbeat(second, want_shut_down=True).should_shut_down
    harness.heartbeat(third, 3, current_metadata_offset=shutdown_offset)
    answer = harness.heartbeat(second, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    assert harness.image.brokers[2].is_fenced


def test_a_controlled_shutdown_does_not_wait_for_missing_brokers(harness: ControllerHarness) -> None:
    """Its partitions lose their leader."""
    epoch = harness.activate_broker()
    topic_id = harness.create([2])
    harness.heartbeat(epoch, want_shut_down=True)
    assert harness.partition(topic_id)[1:3] == ((), NO_LEADER)
    assert harness.heartbeat(epoch, want_shut_down=True).should_shut_down


def test_offline_and_cordoned_directories_are_stored(harness: ControllerHarness) -> None:
    """Partitions in an offline directory lose the broker."""
    epoch = harness.activate_broker()
    topic_id = harness.create([2, 1])
    offset = harness.log.next_offset
    harness.heartbeat(epoch, cordoned_log_dirs=[b"2" * 16])
    harness.heartbeat(epoch, cordoned_log_dirs=[b"2" * 16])
    (change,) = harness.records(offset)
    assert change.cordoned_log_dirs == [b"2" * 16]
    assert harness.image.brokers[2].cordoned_directories == (b"2" * 16,)
    harness.heartbeat(epoch, offline_log_dirs=[b"2" * 16, b"?" * 16])
    assert harness.partition(topic_id)[1:3] == ((1,), 1)


# ---- AlterPartition --------------------------------------------------------------------------------------


def test_partitions_of_one_alter_partition_request_are_independent(harness: ControllerHarness) -> None:
    harness.activate_broker()
    topic_id = harness.create([2, 1], [2, 1])
    answer = harness.alter_partition(topic_id, 2, 2, partition_epochs=(0, 5))
    assert [p.error_code for p in answer] == [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER]
    assert [harness.partition(topic_id, i).isr for i in range(2)] == [(2,), (2, 1)]


def test_an_isr_change_that_moves_the_leader_returns_new_leader_elected(harness: ControllerHarness) -> None:
    """The error reports a successful change."""
    harness.activate_broker()
    topic_id = harness.create([2, 1])
    moving = stored_records.PartitionChangeRecord(partition_id=0, topic_id=topic_id, removing_replicas=[2])
    image, _ = harness.image.apply([moving], offset=harness.image.offset, epoch=1)
    harness.controller._context = harness.controller._context._replace(image=image)
    (found,) = harness.alter_partition(topic_id, 2, 2, 1, partition_epochs=(1,))
    assert (found.error_code, found.leader_id) == (ErrorCode.NEW_LEADER_ELECTED, 0)
    assert harness.partition(topic_id)[:4] == ((1,), (1,), 1, 1)


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


def test_a_node_that_is_no_broker_any_more_fences_the_broker_that_it_was(tmp_path: Path) -> None:
    """It leads the quorum, and its broker was not stopped by itself but by another process.roles."""
    harness = ControllerHarness(tmp_path).start()
    other_epoch = harness.activate_broker()
    topic_id = harness.create([1, 2])
    harness.log.close()
    later = ControllerHarness(tmp_path)
    later.is_broker = False
    later.lead()
    harness, later.mono_ms = later, 2_000
    assert not harness.image.brokers[1].is_fenced
    harness.wait(SESSION_MS // 2)
    harness.heartbeat(other_epoch)
    harness.wait(SESSION_MS // 2)
    assert harness.image.brokers[1].is_fenced
    state = harness.partition(topic_id)
    assert (state.leader, state.isr) == (2, (2,))
    assert harness.ask(UnregisterBrokerRequest(broker_id=1)).error_code == ErrorCode.NONE
