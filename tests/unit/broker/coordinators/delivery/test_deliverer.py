"""How much a deliverer does in one turn of the event loop, and what it reports (broker/coordinators/delivery/deliverer.py)."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from broker.coordinators.delivery import due_queue
from broker.coordinators.delivery.due_queue import DueQueue
from broker.coordinators.delivery.stable_records import Chunk
from broker.coordinators.delivery.target_batches import TargetBatches
from protocol.batch_builder import BatchBuilder, assemble
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.produce_fetch import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.records import BATCH_OVERHEAD, parse_header
from protocol.schema import Message
from replication.completion import Completion, completed, failed
from replication.io_executor import InlineIoExecutor, IoResult, Run
from storage.log.log_validator import AppendOrigin
from tests.property.test_delivery import World, settle
from tests.support.replica_harness import SELF

HOUR_MS = 3_600_000
RECORDS = 20_000
MOST_IN_A_TURN = 2_000
"""A loader's thousand, and 400 that are read and added, or delivered."""


class Work:
    """Counts the records that a turn handles."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[str] = Counter()
        for owner, name in (DueQueue, "add"), (TargetBatches, "add"), (Chunk, "records"), (Chunk, "encoded_records"):
            monkeypatch.setattr(owner, name, self._counted(owner, name))

    def _counted(self, owner: type, name: str):  # type: ignore[no-untyped-def]
        original = getattr(owner, name)

        def counted(*args, **options):  # type: ignore[no-untyped-def]
            result = original(*args, **options)
            if not name.endswith("records"):
                self.done[name] += 1
                return result
            return self._each(name, result)

        return counted

    def _each(self, name: str, found):  # type: ignore[no-untyped-def]
        for one in found:
            self.done[name] += 1
            yield one


def append_due(world: World, count: int) -> None:
    """The first records of the schedule partition, which are due at once."""
    builder = BatchBuilder()
    for offset in range(count):
        builder.append(world.wall_ms(), None, b"%d" % offset)
        world.due[offset] = 0
    assert world.harness.append("s", records=builder.build()).error is None


def test_the_work_of_a_turn_does_not_grow_with_the_records_that_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_queue, "_STEP", 500)
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20, max_message_bytes=1 << 20)
    due_ms = world.harness.wall_ms + 10_000
    for first in range(0, RECORDS, 100):
        builder = BatchBuilder()
        for offset in range(first, first + 100):
            builder.append(world.wall_ms(), b"%d" % offset, b"%d" % offset, (("deliver-at", b"%d" % due_ms),))
            world.due[offset] = due_ms
        assert world.harness.append("s", records=builder.build()).error is None
    work, most = Work(monkeypatch), 0
    run = world.run

    def counted_run() -> None:
        nonlocal most
        work.done.clear()
        run()
        most = max(most, work.done.total())

    monkeypatch.setattr(world, "run", counted_run)
    settle(world)
    assert 100 < most <= MOST_IN_A_TURN


def test_a_batch_is_not_larger_than_a_segment_of_the_target(tmp_path: Path) -> None:
    """The target would refuse it with RECORD_LIST_TOO_LARGE."""
    world = World(
        tmp_path,
        random.Random(1),
        loss=0,
        max_queue_bytes=1 << 20,
        max_message_bytes=1 << 20,
        internal_segment_bytes=2000,
    )
    append_due(world, 300)
    settle(world)
    assert 1000 < world.cluster.largest_batch <= 2000


def test_records_before_a_corrupt_batch_are_queued_once(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20)
    due_ms = world.wall_ms() + 100_000
    builder = BatchBuilder()
    for offset in range(3):
        builder.append(world.wall_ms(), None, b"%d" % offset, (("deliver-at", b"%d" % due_ms),))
    batch = builder.build()
    assert world.harness.append("s", records=bytearray(batch)).error is None
    header = parse_header(batch)._replace(record_count=5, last_offset_delta=4)
    corrupt = assemble(header, batch[BATCH_OVERHEAD:])
    assert world.harness.append("s", records=corrupt, origin=AppendOrigin.COORDINATOR).error is None
    for _ in range(500):
        world.pass_time(20)
        world.run()
    assert world.deliverers[0].pending == 6


def test_nothing_is_delivered_while_a_batch_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20)
    world.due = {0: 0, 1: 0}
    world.stop_all()
    for value in (b"0", b"0000001"):
        builder = BatchBuilder()
        builder.append(world.wall_ms(), None, value)
        assert world.harness.append("s", records=builder.build()).error is None
    (file,) = tmp_path.glob("**/s-0/00000000000000000000.log")
    intact = file.read_bytes()
    file.write_bytes(intact.replace(b"0000001", b"0000002"))
    world.start()
    for _ in range(500):
        world.pass_time(20)
        world.run()
    assert world.cluster.committed == []
    assert "the batch at offset 1 of s-0 is damaged" in caplog.text
    file.write_bytes(intact)
    for _ in range(500):
        world.pass_time(20)
        world.run()
    assert [record.value for _, record in world.cluster.committed] == [b"0", b"0000001"]


def test_records_with_the_offsets_of_delivered_ones_that_the_log_lost_are_delivered(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20)
    world.due = dict.fromkeys(range(10), 0)

    def deliver(*values: bytes) -> None:
        builder = BatchBuilder()
        for value in values:
            builder.append(world.wall_ms(), None, value)
        assert world.harness.append("s", records=builder.build()).error is None
        for _ in range(500):
            world.pass_time(20)
            world.run()

    deliver(b"0", b"1", b"2")
    world.stop_all()
    world.harness.partition("s").log.open().truncate(1)
    world.harness.change("s", leader=SELF)  # an unclean election: the new leader had one record
    world.start()
    deliver(b"3", b"4")
    assert [record.value for _, record in world.cluster.committed] == [b"0", b"1", b"2", b"3", b"4"]


def test_records_wait_while_a_clock_is_so_wrong_that_the_target_refuses_their_timestamp(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20)
    send, is_wrong = world.cluster.send, True

    def refusing(node: int, request: Message) -> Completion[Message | None]:
        if not (is_wrong and isinstance(request, ProduceRequest)):
            return send(node, request)
        results = [
            PartitionProduceResponse(index=data.index, error_code=ErrorCode.INVALID_TIMESTAMP, base_offset=-1)
            for data in request.topic_data[0].partition_data
        ]
        response = TopicProduceResponse(name=request.topic_data[0].name, partition_responses=results)
        return completed(ProduceResponse(responses=[response]))

    world.cluster.send = refusing  # type: ignore[assignment, method-assign]
    world.stop_all()
    world.start()
    append_due(world, 3)
    for _ in range(500):
        world.pass_time(20)
        world.run()
    assert world.cluster.committed == []
    is_wrong = False
    settle(world)


def test_records_are_delivered_although_transactions_may_last_shorter_than_a_minute(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20)
    send, accepted = world.cluster.send, list[int]()

    def limited(node: int, request: Message) -> Completion[Message | None]:
        if isinstance(request, InitProducerIdRequest):
            if request.transaction_timeout_ms > 20_000:  # its transaction.max.timeout.ms
                code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
                return completed(InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))
            accepted.append(request.transaction_timeout_ms)
        return send(node, request)

    world.cluster.send = limited  # type: ignore[assignment, method-assign]
    world.stop_all()
    world.start()
    append_due(world, 1)
    settle(world)
    assert set(accepted) == {15_000}


def test_only_an_interruption_that_lasts_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20)
    send, left = world.cluster.send, 0

    def failing(node: int, request: Message) -> Completion[Message | None]:
        nonlocal left
        if left == 0:
            return send(node, request)
        left -= 1
        return failed(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))

    def interrupt(attempts: int) -> None:
        nonlocal left
        left = attempts
        world.stop_all()
        world.start()
        for _ in range(100):
            world.pass_time(20)
            world.run()
        assert left == 0

    world.cluster.send = failing  # type: ignore[assignment, method-assign]
    interrupt(4)
    assert caplog.messages == []
    interrupt(5)
    assert caplog.messages == ["the delivery of s-0 to target is interrupted: COORDINATOR_LOAD_IN_PROGRESS"]


def test_a_missing_target_is_looked_for_ever_more_rarely(tmp_path: Path) -> None:
    """Each attempt costs an InitProducerId and reads the records that are due again."""
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20)
    send, attempts = world.cluster.send, 0

    def counted(node: int, request: Message) -> Completion[Message | None]:
        nonlocal attempts
        attempts += isinstance(request, InitProducerIdRequest)
        return send(node, request)

    world.cluster.send = counted  # type: ignore[assignment, method-assign]
    world.harness.delete("target")
    world.stop_all()
    world.start()
    append_due(world, 1)
    for _ in range(10_000):
        world.pass_time(10)
        world.run()
    assert 10 <= attempts <= 30
    world.harness.create("target", 3)
    settle(world)


@pytest.mark.parametrize("later_ms", [10 * HOUR_MS, 2 * HOUR_MS])
def test_records_that_are_due_together_and_do_not_fit_into_the_queue_are_read_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_ms: int
) -> None:
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=3_000)
    due_ms = [world.wall_ms() + HOUR_MS] * 4 + [world.wall_ms() + later_ms] * 1_000
    builder = BatchBuilder()
    for offset, at in enumerate(due_ms):
        builder.append(world.wall_ms(), None, b"%d" % offset, (("deliver-at", b"%d" % at),))
        world.due[offset] = at
    assert world.harness.append("s", records=builder.build()).error is None
    begin_scan = create_autospec(DueQueue.begin_scan, side_effect=DueQueue.begin_scan)
    monkeypatch.setattr(DueQueue, "begin_scan", begin_scan)
    while world.wall_ms() < due_ms[-1] - 100:
        world.pass_time(10_000 if due_ms[-1] - world.wall_ms() > 100_000 else 100)
        for _ in range(20):
            world.run()
    assert begin_scan.call_count < 10
    settle(world)


def test_records_are_not_delayed_by_others_that_the_target_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20, max_message_bytes=1 << 20)
    refused = set(range(0, 1_000, 100))
    world.cluster.refuses = lambda record: int(record.value or b"") in refused
    builder = BatchBuilder()
    for offset in range(1_000):
        builder.append(world.wall_ms(), None, b"%d" % offset)
        world.due[offset] = 0
    for _ in range(100):
        world.run()
    assert world.harness.append("s", records=builder.build()).error is None
    turns = 0
    while len(world.cluster.committed) < 990 and turns < 10_000:
        world.run()  # no time passes
        turns += 1
    assert {int(record.value or b"") for _, record in world.cluster.committed} == set(range(1_000)) - refused
    assert world.deliverers[0].counts["refused"] == len(refused)
    assert [message for message in caplog.messages if "is skipped" not in message] == []


def test_a_large_record_is_compressed_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, built = 0, []
    read, build = InlineIoExecutor.read, TargetBatches.build

    def reading(executor: InlineIoExecutor, directory: str, run: Run) -> IoResult:
        def on_thread() -> None:
            nonlocal threads
            threads += 1
            run()
            threads -= 1

        return read(executor, directory, on_thread)

    def building(batches: TargetBatches) -> dict[int, bytearray]:
        built.append((batches.is_compressed, threads))
        return build(batches)

    monkeypatch.setattr(InlineIoExecutor, "read", reading)
    monkeypatch.setattr(TargetBatches, "build", building)
    world = World(tmp_path, random.Random(1), loss=0, max_queue_bytes=1 << 20)
    for offset, value in enumerate((b"0" * 2_000, b"1")):
        builder = BatchBuilder()
        builder.append(world.wall_ms(), b"k", value)
        world.due[offset] = 0
        assert world.harness.append("s", records=builder.build()).error is None
    settle(world)
    assert built == [(True, 1), (False, 0)]
