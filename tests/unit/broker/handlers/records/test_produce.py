"""Produce, on real logs."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from broker.coordinators.transactions.transaction_verification import TransactionSupport
from broker.security.authorizer import Operation, Resource
from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from storage.io.disk import StorageError
from storage.io.disk_lookup import wait_for_disk
from tests.support.deny import Deny
from tests.support.replica_harness import (
    NOW_MS,
    Answer,
    HeldReplicaHarness,
    ReplicaHarness,
    batch,
    fetched,
    offsets,
    produced,
)


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    made = ReplicaHarness(tmp_path)
    made.create("t", partitions=3)
    return made


@pytest.fixture
def slow(tmp_path: Path) -> HeldReplicaHarness:
    """A broker whose disk writes on request."""
    made = HeldReplicaHarness(tmp_path)
    made.create("t", partitions=3)
    return made


def code(answer: Answer, topic: int = 0, partition: int = 0) -> Any:
    return produced(answer, topic, partition).error_code


def stored_offsets(harness: ReplicaHarness, name: str = "t", index: int = 0) -> list[int]:
    return offsets(fetched(harness.fetch(name, index, max_wait_ms=0)))


# ---------------------------------------------------------------- responses


@pytest.mark.parametrize("version", range(3, 14))
def test_acks_one_gets_the_base_offset_in_every_version(harness: ReplicaHarness, version: int) -> None:
    harness.load("t", 1)
    answer = produced(harness.produce("t", 1, batch(count=3), version=version, acks=1))
    assert (answer.index, answer.error_code, answer.base_offset) == (1, 0, 1)


def test_log_append_time_is_returned(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create("t", message_timestamp_type="LogAppendTime")
    harness.wall_ms += 5
    assert produced(harness.produce()).log_append_time_ms == NOW_MS + 5
    reader = harness.partition().log.open().reader
    assert wait_for_disk(reader.offset_for_timestamp, NOW_MS + 5) == (NOW_MS + 5, 0, 0)


def test_topics_and_partitions_are_answered_in_the_order_of_the_request(harness: ReplicaHarness) -> None:
    harness.create("u")
    answer = harness.produce_all([("t", 2, batch()), ("t", 0, batch()), ("u", 0, batch())], version=13)
    named = [(topic.topic_id, [part.index for part in topic.partition_responses]) for topic in answer.message.responses]
    ids = harness.image.topics_by_name
    assert named == [(ids["t"].topic_id, [2, 0]), (ids["u"].topic_id, [0])]


def test_a_repeated_partition_is_appended_and_answered_twice(harness: ReplicaHarness) -> None:
    answer = harness.produce_all([("t", 0, batch()), ("t", 0, batch(count=2))])
    assert [produced(answer, 0, place).base_offset for place in (0, 1)] == [0, 1]
    assert stored_offsets(harness) == [0, 1]


# ---------------------------------------------------------------- errors


def test_the_error_of_a_corrupt_batch_says_so(harness: ReplicaHarness) -> None:
    broken = batch()
    broken[-1] ^= 1
    answer = produced(harness.produce(records=broken))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert "corrupt" in answer.error_message


@pytest.mark.parametrize("records", [b"", None])
def test_null_records_are_invalid(harness: ReplicaHarness, records: bytes | None) -> None:
    request = harness.produce_request([("t", 0, batch())])
    request.topic_data[0].partition_data[0].records = None if records is None else memoryview(bytearray(records))
    answer: Any = harness.producing.handle(harness.context(0, 12), request)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD


def test_invalid_records_are_listed(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create("t", cleanup_policy="compact")
    builder = BatchBuilder()
    for key in (b"k", None, b"k", None):
        builder.append(NOW_MS, key, b"v")
    answer = produced(harness.produce(records=builder.build()))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1, 3]
    assert all("key" in error.batch_index_error_message for error in answer.record_errors)
    assert answer.error_message.startswith("One or more records have been rejected")


@pytest.mark.parametrize("version", [9, 10, 13])
def test_not_leader_error_contains_the_current_leader(harness: ReplicaHarness, version: int) -> None:
    harness.create("r", replicas=(2, 3), leader=3, epoch=4)
    answer = harness.produce("r", version=version)
    assert code(answer) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader = produced(answer).current_leader
    nodes = [(node.node_id, node.host, node.port, node.rack) for node in answer.message.node_endpoints]
    if version < 10:
        assert (leader, nodes) == (None, [])
    else:
        assert (leader.leader_id, leader.leader_epoch) == (3, 4)
        assert nodes == [(3, "host3", 9003, "rack3")]


def test_too_few_in_sync_replicas_fail_acks_all_only(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2, 3), isr=(1,), min_insync_replicas=2)
    refused = produced(harness.produce("r", acks=-1))
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (refused.error_message, refused.log_start_offset) == (None, 0)
    assert code(harness.produce("r", acks=1)) == ErrorCode.NONE
    assert harness.produce("r", acks=0).closed is None


def test_unauthorized_topics_fail_and_others_are_appended(tmp_path: Path) -> None:
    denied = [(Operation.WRITE, Resource.TOPIC, name) for name in ("secret", "nowhere")]
    harness = ReplicaHarness(tmp_path, authorizer=Deny(*denied))
    harness.create("secret")
    harness.create("open")
    answer = harness.produce_all([("secret", 0, batch()), ("open", 0, batch()), ("nowhere", 0, batch())])
    assert [code(answer, topic) for topic in range(3)] == [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.NONE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]
    assert stored_offsets(harness, "secret") == []


def test_internal_topics_are_for_kafkas_own_tools(harness: ReplicaHarness) -> None:
    harness.create("__consumer_offsets")
    assert code(harness.produce("__consumer_offsets")) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code(harness.produce("__consumer_offsets", client_id="__admin_client")) == ErrorCode.NONE


def test_an_internal_topic_that_does_not_exist_is_unknown(harness: ReplicaHarness) -> None:
    """Clients retry then, as with Apache Kafka: the first consumer group creates the topic."""
    assert code(harness.produce("__consumer_offsets")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Frame(bytearray):
    """The bytes of a request."""


def test_a_refused_topic_leaves_no_reference_to_the_request(harness: ReplicaHarness) -> None:
    harness.create("__consumer_offsets")
    frame = Frame(batch())
    reference = weakref.ref(frame)
    gc.disable()
    try:
        answer = harness.produce("__consumer_offsets", records=frame)
        del frame
        assert code(answer) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert reference() is None
    finally:
        gc.enable()


# ---------------------------------------------------------------- transactions


def transactional() -> bytearray:
    return batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)


def test_transactional_batch_needs_a_transactional_id(harness: ReplicaHarness) -> None:
    answer = harness.produce_all([("t", 0, batch()), ("t", 1, transactional())])
    assert [code(answer, 0, place) for place in (0, 1)] == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    assert stored_offsets(harness) == []


def test_a_transactional_batch_is_appended_after_verification(harness: ReplicaHarness) -> None:
    verification = harness.verification
    answer = harness.produce_all(
        [("t", 0, transactional()), ("t", 1, batch()), ("unknown", 0, transactional())],
        transactional_id="tx",
        version=11,
    )
    assert [code(answer, 0, 0), code(answer, 0, 1), code(answer, 1, 0)] == [
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert verification.asked == [("tx", (5, 0), [("t", 0)], TransactionSupport.GENERIC_ERROR_SUPPORTED)]
    verification.refusal = None
    assert code(harness.produce("t", 0, transactional(), transactional_id="tx", version=12)) == ErrorCode.NONE
    assert verification.asked[1:] == [("tx", (5, 0), [("t", 0)], TransactionSupport.ADD_PARTITION)]


def test_a_new_transaction_verifies_sequence_zero(harness: ReplicaHarness) -> None:
    harness.verification.refusal = None
    for version, producer_id, expected in ((12, 5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (11, 6, ErrorCode.NONE)):
        later = batch(producer_id=producer_id, producer_epoch=0, base_sequence=4, transactional=True)
        answer = harness.produce("t", 0, later, transactional_id="tx", version=version)
        assert code(answer) == expected


def test_a_produce_request_has_one_transactional_producer(harness: ReplicaHarness) -> None:
    other = batch(producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    answer = harness.produce_all([("t", 0, transactional()), ("t", 1, other)], transactional_id="tx")
    assert [code(answer, 0, place) for place in (0, 1)] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert harness.verification.asked == []


def test_a_produce_request_has_one_transactional_epoch(harness: ReplicaHarness) -> None:
    """Only the first batch is verified: a second one of a fenced producer must not be appended with it."""
    harness.verification.refusal = None
    later = batch(producer_id=5, producer_epoch=1, base_sequence=0, transactional=True)
    answer = harness.produce_all([("t", 0, later), ("t", 1, transactional())], transactional_id="tx")
    assert [code(answer, 0, place) for place in (0, 1)] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert harness.verification.asked == []


def test_transactional_id_must_be_authorized(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path, authorizer=Deny((Operation.WRITE, Resource.TRANSACTIONAL_ID, "tx")))
    harness.create("t")
    answer = harness.produce("t", 0, transactional(), transactional_id="tx")
    assert code(answer) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# ---------------------------------------------------------------- acks=0


def test_an_error_with_acks_zero_closes_the_connection(harness: ReplicaHarness) -> None:
    answer = harness.produce_all([("t", 0, batch()), ("nowhere", 0, batch())], acks=0)
    assert "nowhere-0: UNKNOWN_TOPIC_OR_PARTITION" in answer.closed


def test_a_slow_disk_delays_the_next_request_with_acks_zero(slow: HeldReplicaHarness) -> None:
    answer, failing = slow.produce(acks=0), slow.produce(acks=0)
    slow.pass_time(10_000)
    assert not answer.is_done
    slow.worker.let_write()
    assert answer.is_done
    assert (answer.message, answer.closed) == (None, None)
    slow.worker.let_write(StorageError("write", "x"))
    assert "KAFKA_STORAGE_ERROR" in failing.closed


# ---------------------------------------------------------------- waiting


def test_the_response_waits_for_the_slowest_partition(slow: HeldReplicaHarness) -> None:
    slow.create("wide", partitions=20)  # first used in groups of 8, each with a write job
    answer = slow.produce_all([("wide", index, batch()) for index in range(20)], acks=1)
    for _ in range(2):
        slow.worker.let_write()
        assert not answer.is_done
    slow.worker.let_write()
    assert [code(answer, 0, index) for index in range(20)] == [0] * 20
    assert len(slow.timers) == 0


def test_acks_all_waits_for_the_followers(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    answer = harness.produce("r", acks=-1)
    assert not answer.is_done
    harness.fetch("r", offset=1, replica=2)
    assert code(answer) == ErrorCode.NONE
    assert produced(answer).base_offset == 0


def test_partitions_without_acks_time_out(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    answer = harness.produce_all([("r", 0, batch()), ("t", 0, batch())], acks=-1, timeout_ms=100)
    harness.pass_time(99)
    assert not answer.is_done
    harness.pass_time(1)
    assert [code(answer, 0), code(answer, 1)] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    harness.fetch("r", offset=1, replica=2)
    assert code(answer) == ErrorCode.REQUEST_TIMED_OUT
    assert harness.partition("r").high_watermark == 1


def test_lost_leadership_fails_waiting_produces(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    answer = harness.produce("r", acks=-1)
    harness.change("r", leader=2)
    assert code(answer) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced(answer).current_leader.leader_id == 2
    assert produced(answer).base_offset == -1


def test_closed_connection_leaves_nothing_behind(slow: HeldReplicaHarness) -> None:
    answer = slow.produce(acks=1)
    answer.pending.cancel()
    assert len(slow.timers) == 0
    slow.worker.let_write()
    assert not answer.is_done
    assert stored_offsets(slow) == [0]


def test_the_response_waits_for_the_flush(tmp_path: Path) -> None:
    harness = HeldReplicaHarness(tmp_path)
    harness.create("t", flush_messages=1)
    answers = [harness.produce(acks=1), harness.produce(acks=-1)]
    for _ in answers:
        harness.worker.let_write()
    assert not any(answer.is_done for answer in answers)
    harness.worker.let_sync()
    harness.worker.let_sync()
    assert [code(answer) for answer in answers] == [0, 0]


def test_a_topic_that_is_deleted_before_the_response_does_not_matter_to_it(harness: ReplicaHarness) -> None:
    """The other partition of the request still waits for acknowledgement."""
    harness.create("a", replicas=(1, 2), isr=(1,), min_insync_replicas=2)
    harness.create("b", replicas=(1, 2))
    answer = harness.produce_all([("a", 0, batch()), ("b", 0, batch())])
    assert not answer.is_done
    harness.delete("a")
    harness.fetch("b", offset=1, replica=2, max_wait_ms=0)
    refused = produced(answer)
    assert (refused.error_code, refused.log_start_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert produced(answer, 1).error_code == ErrorCode.NONE
