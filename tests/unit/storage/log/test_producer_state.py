"""Idempotence, transactions and snapshots of one log (storage/log/producer_state.py)."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.control_records import ControlType, control_batch, end_txn_marker
from protocol.errors import ErrorCode, KafkaError
from protocol.records import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, parse_header
from storage.log.producer_state import (
    CompletedTransaction,
    CorruptSnapshot,
    Duplicate,
    EndTransactionMarker,
    ProducerState,
    decide,
    read_end_transaction_marker,
    snapshot_name,
    snapshot_offset,
)
from tests.support.executed_instructions import executed_instructions
from tests.support.logs import refused
from tests.support.producer_steps import STEPS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

KAFKAS_SNAPSHOT = bytes.fromhex(
    "00016d0747a100000005000000000000138800030000000200000000000000780000000200"
    "0001a1fd729df6ffffffffffffffffffffffff00000000000003e9ffff000000020000000000000014"
    "00000002000001a1fd729df6ffffffffffffffffffffffff0000000000001389000000000052000000"
    "000000007e00000002000001a1fd729df6ffffffffffffffffffffffff000000000000138a00000000"
    "0003000000000000008400000002000001a1fd729df6ffffffffffffffffffffffff00000000000013"
    "8b000000000002000000000000008a00000002000001a1fd729df6ffffffffffffffffffffffff"
)
"""Written by Apache Kafka 4.3.1 at a clean shutdown."""


@pytest.fixture
def state() -> ProducerState:
    return ProducerState("t-0")


def header(
    offset: int,
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    attributes: int = 0,
    time_ms: int = 1000,
) -> BatchHeader:
    return BatchHeader(
        offset, 100, 0, 2, 0, attributes, count - 1, time_ms, time_ms, producer_id, epoch, sequence, count
    )


def append(state: ProducerState, batch: BatchHeader, marker: EndTransactionMarker | None = None) -> Duplicate | None:
    """Check, reserve, update."""
    if marker is None:
        duplicate = state.check(batch, batch.base_offset)
        if duplicate is not None:
            return duplicate
    else:
        state.check_marker(batch, marker, batch.base_offset)
    state.reserve(batch, marker)
    state.update(batch, marker)
    return None


def code_of(state: ProducerState, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        state.check(batch, batch.base_offset)
    assert caught.value.message
    return caught.value.code


def restored(snapshot: bytes, wall_ms: int = 1000) -> ProducerState:
    state = ProducerState("t-0")
    state.restore(snapshot, wall_ms)
    return state


def marker_at(offset: int, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    return header(offset, -1, producer_id=producer_id, epoch=epoch, attributes=CONTROL_BIT | TRANSACTIONAL_BIT)


COMMIT = EndTransactionMarker(is_commit=True, coordinator_epoch=3, timestamp_ms=2000)
ABORT = EndTransactionMarker(is_commit=False, coordinator_epoch=3, timestamp_ms=2000)


def test_each_step_of_the_table_gets_kafkas_answer(state: ProducerState) -> None:
    """tests/conformance checks Kafka itself against the same table."""
    end = 0
    for step in STEPS:
        batch = header(end, step.sequence, step.count, producer_id=step.producer_id, epoch=step.epoch)
        if step.code:
            assert code_of(state, batch) == step.code, step
        elif step.repeats is not None:
            assert append(state, batch) == Duplicate(step.repeats, step.repeats + step.count - 1, 1000), step
        else:
            assert append(state, batch) is None, step
            end += step.count


def test_a_sequence_gap_is_reported_with_the_last_sequence(state: ProducerState) -> None:
    append(state, header(50, 0, 3))
    error = refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: state.check(header(53, 9), 53))
    assert error.message == (
        "Out of order sequence number for producer 7 at offset 53 in partition t-0: 9 (incoming seq. number), "
        "2 (current end sequence number)"
    )


def test_an_unknown_producer_with_transactions_v2_must_start_at_0(state: ProducerState) -> None:
    assert state.check(header(0, 4), 0) is None
    error = refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: state.check(header(0, 4), 0, begins_at_0=True))
    assert error.message == (
        "Invalid sequence number for producer 7 at offset 0 in partition t-0: 4 (incoming seq. number). "
        "Expected sequence 0 for transactions v2 idempotent producer with no existing state."
    )
    assert state.check(header(0, 0, 4), 0, begins_at_0=True) is None
    state.reserve(header(0, 0, 4))
    assert state.check(header(4, 4), 4, begins_at_0=True) is None, "what is on its way is known"


def test_coordinator_batches_have_an_epoch_but_no_sequence(state: ProducerState) -> None:
    append(state, header(0, 0, epoch=4))
    assert state.check(header(1, -1, epoch=4), 1, is_client=False) is None
    assert state.check(header(1, -1, epoch=5), 1, is_client=False) is None
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: state.check(header(1, -1, epoch=3), 1, is_client=False))


def test_update_checks_nothing(state: ProducerState) -> None:
    state.update(header(0, 0))
    state.update(header(50, 40))
    assert state.check(header(51, 41), 51) is None


# ---- batches in flight -----------------------------------------------------------------------------------


def test_a_retry_of_a_reserved_batch_gets_a_retriable_error(state: ProducerState) -> None:
    append(state, header(40, 0))
    state.reserve(header(41, 1, 3))
    assert code_of(state, header(44, 1, 3)) == ErrorCode.REQUEST_TIMED_OUT
    assert state.check(header(44, 0), 44) == Duplicate(40, 40, 1000)
    state.update(header(41, 1, 3))
    assert state.check(header(44, 1, 3), 44) == Duplicate(41, 43, 1000)
    state.reserve(header(44, 4))
    assert code_of(state, header(45, 4)) == ErrorCode.REQUEST_TIMED_OUT


def entries(state: ProducerState) -> list[bytes]:
    """A snapshot's entries by producer."""
    snapshot = state.snapshot()
    return sorted(snapshot[at : at + 46] for at in range(10, len(snapshot), 46))


def test_reserved_batches_count_like_appended_ones() -> None:
    """Compared with a model that runs every step at once."""
    for seed in range(150):
        rng = random.Random(seed)
        state, model = ProducerState("t-0"), ProducerState("t-0")
        in_flight: list[tuple[BatchHeader, EndTransactionMarker | None]] = []
        end = 0
        for _ in range(80):
            action = rng.random()
            if action < 0.55:
                batch, marker = next_batch(rng, model, end)
                expected = outcome(model, batch, []) if marker is None else None
                if marker is None:
                    assert outcome(state, batch, [flying for flying, _ in in_flight]) == expected, f"seed {seed}"
                if expected is None:
                    end += batch.record_count
                    aborted = decide(state.undecided(), batch, marker)
                    state.reserve(batch, marker)
                    completed = model.update(batch, marker)
                    assert aborted == completed, f"seed {seed}"
                    in_flight.append((batch, marker))
            elif in_flight:
                state.update(*in_flight.pop(0))
            if rng.random() < 0.1:  # looking brings the state up to date, so it must not look too often
                assert entries(state) == entries(model), f"seed {seed}"


def next_batch(rng: random.Random, model: ProducerState, end: int) -> tuple[BatchHeader, EndTransactionMarker | None]:
    """A batch of one of three producers, mostly valid; sometimes a marker."""
    producer_id, count = rng.randrange(3), rng.randrange(1, 3)
    known = model.producers.get(producer_id)
    if known is None:
        return header(end, 0, count, producer_id=producer_id), None
    kind = rng.random()
    if kind < 0.15:
        return marker_at(end, producer_id=producer_id, epoch=known.epoch + rng.randrange(2)), rng.choice(
            (COMMIT, ABORT)
        )
    if kind < 0.7:
        transactional = TRANSACTIONAL_BIT if known.txn_first_offset >= 0 or rng.random() < 0.3 else 0
        following = known.last_sequence + 1
        return header(end, following, count, producer_id=producer_id, epoch=known.epoch, attributes=transactional), None
    return header(end, rng.randrange(6), count, producer_id=producer_id, epoch=known.epoch + rng.randrange(-1, 2)), None


def outcome(state: ProducerState, batch: BatchHeader, in_flight: list[BatchHeader]) -> object:
    """The error code, the duplicate, or None; a duplicate of a reserved batch counts as that duplicate."""
    try:
        return state.check(batch, batch.base_offset)
    except KafkaError as error:
        if error.code == ErrorCode.REQUEST_TIMED_OUT:
            same = next(
                other
                for other in reversed(in_flight)
                if other[9:12] == batch[9:12] and other.record_count == batch.record_count
            )
            return Duplicate(same.base_offset, same.last_offset, same.max_timestamp)
        return error.code


def held_back(state: ProducerState, high_watermark: int = 0) -> tuple[int | None, int | None]:
    """First undecided and first unstable offset."""
    return state.first_undecided_offset, state.first_unstable_offset(high_watermark)


# ---- transactions ------------------------------------------------------------------------------------------


def test_the_oldest_open_transaction_is_the_first_unstable_offset(state: ProducerState) -> None:
    assert held_back(state) == (None, None)
    append(state, header(10, 0, producer_id=1, attributes=TRANSACTIONAL_BIT))
    append(state, header(11, 0, producer_id=2, attributes=TRANSACTIONAL_BIT))
    append(state, header(12, 1, producer_id=1, attributes=TRANSACTIONAL_BIT))
    assert held_back(state) == (10, 10)
    done = state.update(marker_at(13, producer_id=1), ABORT)
    assert done == CompletedTransaction(1, 10, 13, is_aborted=True, last_stable_offset=11)
    assert held_back(state) == (11, 10)
    assert held_back(state, 13) == (11, 10)
    assert held_back(state, 14) == (11, 11)
    done = state.update(marker_at(14, producer_id=2), COMMIT)
    assert done == CompletedTransaction(2, 11, 14, is_aborted=False, last_stable_offset=15)
    assert held_back(state, 15) == (None, None)


def test_a_transaction_may_start_at_offset_0(state: ProducerState) -> None:
    append(state, header(0, 0, producer_id=0, attributes=TRANSACTIONAL_BIT))
    append(state, header(1, 1, producer_id=0, attributes=TRANSACTIONAL_BIT))
    assert held_back(state) == (0, 0)
    assert state.expire(DAY_MS * 9) == 0
    assert held_back(restored(state.snapshot(), DAY_MS * 9)) == (0, 0)
    done = state.update(marker_at(2, producer_id=0), COMMIT)
    assert done == CompletedTransaction(0, 0, 2, is_aborted=False, last_stable_offset=3)
    assert held_back(state) == (None, 0)


def test_a_marker_without_a_transaction_ends_nothing(state: ProducerState) -> None:
    assert state.update(marker_at(0), COMMIT) is None
    assert state.first_unstable_offset(0) is None
    assert state.producers[7].coordinator_epoch == 3


@pytest.mark.pure_python("compiled modules execute no instructions of Python")
def test_a_replay_of_many_transactions_takes_work_for_each_of_them_once() -> None:
    """Four times as many take about four times the work, not sixteen times."""

    def replay(count: int) -> None:
        state = ProducerState("t-0")
        for number in range(count):
            state.update(header(2 * number, number, attributes=TRANSACTIONAL_BIT))
            state.update(marker_at(2 * number + 1), COMMIT)
        assert held_back(state, 2 * count - 1) == (None, 2 * count - 2)

    few, many = executed_instructions(lambda: replay(200)), executed_instructions(lambda: replay(800))
    assert many < 6 * few


def test_a_marker_with_a_higher_epoch_restarts_the_sequences(state: ProducerState) -> None:
    """KIP-890."""
    append(state, header(0, 0, 3, attributes=TRANSACTIONAL_BIT))
    append(state, marker_at(3, epoch=1), COMMIT)
    assert code_of(state, header(4, 3, attributes=TRANSACTIONAL_BIT)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(state, header(4, 3, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(4, 0, epoch=1, attributes=TRANSACTIONAL_BIT), 4) is None


def test_a_marker_of_the_same_epoch_continues_the_sequences(state: ProducerState) -> None:
    append(state, header(0, 0, 3, attributes=TRANSACTIONAL_BIT))
    append(state, marker_at(3), COMMIT)
    assert state.check(header(4, 3, attributes=TRANSACTIONAL_BIT), 4) is None
    assert state.check(header(4, 0, 3, attributes=TRANSACTIONAL_BIT), 4) == Duplicate(0, 2, 1000)


def test_markers_of_old_producer_or_coordinator_epochs_are_rejected(state: ProducerState) -> None:
    append(state, header(0, 0, epoch=5, attributes=TRANSACTIONAL_BIT))
    append(state, marker_at(1, epoch=5), COMMIT)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: state.check_marker(marker_at(2, epoch=4), COMMIT, 2))
    older = COMMIT._replace(coordinator_epoch=2)
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, lambda: state.check_marker(marker_at(2, epoch=5), older, 2))
    state.check_marker(marker_at(2, epoch=5), COMMIT, 2)


def test_non_transactional_records_in_an_open_transaction_are_rejected(state: ProducerState) -> None:
    append(state, header(0, 0, attributes=TRANSACTIONAL_BIT))
    assert code_of(state, header(1, 1)) == ErrorCode.INVALID_TXN_STATE
    state.reserve(marker_at(1), COMMIT)
    assert state.check(header(2, 1), 2) is None


def test_a_marker_is_read_from_its_batch() -> None:
    data = end_txn_marker(
        ControlType.ABORT, producer_id=0, producer_epoch=2, coordinator_epoch=9, timestamp_ms=77, base_offset=3
    )
    assert read_end_transaction_marker(data, 0, parse_header(data)) == EndTransactionMarker(
        is_commit=False, coordinator_epoch=9, timestamp_ms=77
    )
    plain = BatchBuilder()
    plain.append(1, b"k", b"v")
    assert read_end_transaction_marker(plain.build(), 0, parse_header(plain.build())) is None


def test_a_marker_without_its_record_changes_nothing(state: ProducerState) -> None:
    append(state, header(0, 0, attributes=TRANSACTIONAL_BIT))
    assert state.update(marker_at(1), None) is None
    assert state.first_undecided_offset == 0
    assert len(state.producers[7].batches) == 1


def test_clear_removes_everything(state: ProducerState) -> None:
    append(state, header(0, 0, attributes=TRANSACTIONAL_BIT))
    append(state, marker_at(1), COMMIT)
    append(state, header(2, 0, producer_id=8, attributes=TRANSACTIONAL_BIT))
    state.reserve(header(3, 0, producer_id=9))
    assert state.check(header(4, 1, producer_id=9), 4) is None
    state.clear()
    assert held_back(state) == (None, None)
    assert state.snapshot() == ProducerState("t-0").snapshot()
    assert state.check(header(0, 5, producer_id=9), 0) is None
    state.reserve(header(0, 5, producer_id=9))
    assert code_of(state, header(1, 1, producer_id=9)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    state.update(header(0, 5, producer_id=9))
    append(state, header(1, 0, producer_id=8))
    state.restore(ProducerState("t-0").snapshot(), 0)
    assert not state.producers


# ---- life ------------------------------------------------------------------------------------------------


def test_idle_producers_expire_unless_in_a_transaction(state: ProducerState) -> None:
    append(state, header(0, 0, producer_id=1))
    append(state, header(1, 0, producer_id=2, attributes=TRANSACTIONAL_BIT))
    append(state, header(2, 0, producer_id=3, time_ms=HOUR_MS))
    assert state.expire(1000 + HOUR_MS - 1, HOUR_MS) == 0
    assert state.expire(1000 + HOUR_MS, HOUR_MS) == 1
    assert sorted(state.producers) == [2, 3]


def test_a_snapshot_restores_the_last_batch_and_the_open_transaction(state: ProducerState) -> None:
    append(state, header(0, 0, producer_id=1))
    append(state, header(1, 1, 4, producer_id=1))
    append(state, header(5, 0, producer_id=2, attributes=TRANSACTIONAL_BIT))
    append(state, marker_at(6, producer_id=3), COMMIT)
    again = restored(state.snapshot())
    assert again.snapshot() == state.snapshot()
    assert again.check(header(7, 1, 4, producer_id=1), 7) == Duplicate(1, 4, 1000)
    assert again.check(header(7, 0, producer_id=2, attributes=TRANSACTIONAL_BIT), 7) == Duplicate(5, 5, 1000)
    assert code_of(again, header(7, 0, producer_id=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.first_undecided_offset == 5
    assert again.producers[3].coordinator_epoch == 3


def test_a_producer_without_batches_has_kafkas_format(state: ProducerState) -> None:
    append(state, header(0, 0, 3))
    append(state, marker_at(3, epoch=1), COMMIT)
    assert entries(state) == [struct.pack(">qhiqiqiq", 7, 1, -1, -1, 0, 2000, 3, -1)]


def test_a_snapshot_may_be_empty_or_contain_offset_0() -> None:
    empty = ProducerState("t-0")
    assert empty.snapshot().hex() == "000148674bc700000000"
    empty.restore(empty.snapshot(), 0)
    state = ProducerState("t-0")
    append(state, header(0, 0))
    again = restored(state.snapshot())
    assert again.check(header(1, 0), 1) == Duplicate(0, 0, 1000)


def test_kafkas_snapshot_is_written_back_byte_for_byte(state: ProducerState) -> None:
    state.restore(KAFKAS_SNAPSHOT, 0)
    assert list(state.producers) == [5000, 1001, 5001, 5002, 5003]
    assert state.producers[5000].epoch == 3
    assert state.producers[1001].epoch == -1
    assert state.snapshot() == KAFKAS_SNAPSHOT


def test_restore_drops_expired_producers(state: ProducerState) -> None:
    append(state, header(0, 0, producer_id=1))
    append(state, header(1, 0, producer_id=2, attributes=TRANSACTIONAL_BIT))
    assert list(restored(state.snapshot(), 1000 + DAY_MS).producers) == [2]


def test_a_corrupt_snapshot_is_rejected_and_changes_nothing(state: ProducerState) -> None:
    append(state, header(0, 0))
    before = state.snapshot()
    broken = [KAFKAS_SNAPSHOT[:size] for size in range(0, len(KAFKAS_SNAPSHOT), 7)]
    for position in range(len(KAFKAS_SNAPSHOT)):
        changed = bytearray(KAFKAS_SNAPSHOT)
        changed[position] ^= 0x10
        broken.append(bytes(changed))
    broken.append(KAFKAS_SNAPSHOT + b"\0")
    for data in broken:
        with pytest.raises(CorruptSnapshot):
            state.restore(data, 0)
    assert state.snapshot() == before


def test_a_wrong_count_with_a_valid_checksum_is_rejected() -> None:
    import crc32c

    for count in (-1, 1, 2**31 - 1):
        body = struct.pack(">i", count)
        with pytest.raises(CorruptSnapshot):
            ProducerState("t-0").restore(struct.pack(">hI", 1, crc32c.crc32c(body)) + body, 0)


def test_snapshot_files_are_named_by_their_offset() -> None:
    assert snapshot_name(139) == "00000000000000000139.snapshot"
    assert snapshot_offset("00000000000000000139.snapshot") == 139
    for name in ("00000000000000000139.log", "x.snapshot", ".snapshot", "139.snapshot.deleted"):
        assert snapshot_offset(name) is None


CONTROL: dict[str, Any] = {
    "base_offset": 0, "timestamp_ms": 99, "leader_epoch": 0, "producer_id": 7, "producer_epoch": 3, "transactional": True,
}  # fmt: skip
KRAFT: dict[str, Any] = {"base_offset": 0, "timestamp_ms": 1, "leader_epoch": 1}


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
@pytest.mark.parametrize("extra", [b"", b"more"])
def test_a_marker_is_read_in_its_usual_and_in_a_longer_form(kind: ControlType, extra: bytes) -> None:
    value = struct.pack(">hi", 0, 77) + extra
    made = control_batch([(kind, value)], **CONTROL)
    output = read_end_transaction_marker(made, 0, parse_header(made))
    assert output == EndTransactionMarker(kind == ControlType.COMMIT, 77, 99)


@pytest.mark.parametrize("options", [CONTROL, KRAFT], ids=["of a producer", "of KRaft"])
def test_a_control_record_of_another_type_ends_nothing(options: dict[str, Any]) -> None:
    made = control_batch([(ControlType.LEADER_CHANGE, bytes(6))], **options)
    assert read_end_transaction_marker(made, 0, parse_header(made)) is None
