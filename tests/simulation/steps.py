"""What a broker does with its logs, one step at a time, and what that means for the model.

NOT HERE Processes and their ends (history.py); what must hold (checks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from protocol.compression import Compression
from protocol.errors import ErrorCode, KafkaError
from protocol.records import BatchBuilder, ControlType, end_txn_marker, parse_header, patch
from storage.io.disk import StorageError
from storage.log.log import Log, Origin
from tests.simulation.checks import check_bounds, check_log
from tests.simulation.compaction import Compaction
from tests.simulation.model import Batch, Partition, Written
from tests.simulation.simulated_disk import Fault
from tests.support.logs import Idempotent, refused

if TYPE_CHECKING:
    from tests.simulation.history import History

PLAIN, TRANSACTIONAL = (1, 2), (3, 4)
KEYS = 6
CODECS = (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD)
FAULTS = (("sync", 5), ("write", 5), ("write", 28), ("make", 28), ("make", 5), ("read", 5), ("unlink", 5))


class Steps:
    """Everything that one process may do."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._dice = history.dice
        self._compaction = Compaction(history, self._any)
        weights: dict[Callable[[], None], int] = {
            self.append: 30, self.repeat: 3, self.end_transaction: 5, self.flush: 9, self.work: 14, self.roll: 3,
            self.truncate: 3, self.begin_anew: 1, self.trim: 3, self.retain: 4, self.delete_files: 3,
            self.checkpoint: 6, self.compact: 10, self.change_settings: 2, self.close_idle: 2, self.release: 2,
            self.begin_epoch: 2, self.delete_topic: 1, self.move: 3, self.look: 4, self.wait: 4, self.break_something: 1,
            self.stop: 2, self.crash: 4,
        }  # fmt: skip
        if history.is_compacting:
            weights.update(
                {self.compact: 40, self.roll: 15, self.flush: 20, self.crash: 2, self.begin_anew: 0, self.trim: 1}
            )
        if self._dice.random() < 0.5:  # some things often, others not at all: they meet whom they seldom met
            weights = {step: weight * self._dice.choice((0, 1, 1, 4)) for step, weight in weights.items()}
            weights[self.append] = max(weights[self.append], 10)
        self._all, self._all_weights = list(weights), list(weights.values())
        self._loop = [
            self.append, self.append, self.repeat, self.flush, self.end_transaction, self.checkpoint, self.retain, self.trim,
            self.close_idle, self.release, self.roll, self.look, self.truncate, self.change_settings,
        ]  # fmt: skip

    def one(self) -> None:
        """Do something."""
        step = self._dice.choices(self._all, self._all_weights)[0]
        self._do(step)

    def meanwhile(self) -> None:
        """Do something on the loop while a thread is at work."""
        self._do(self._dice.choice(self._loop))

    def _do(self, step: Callable[[], None]) -> None:
        self._history.note(step.__name__)
        try:
            step()
        except StorageError as error:
            self._history.failed(error)
        if self._history.has_surplus:
            self._history.has_surplus = False
            self._history.manager.open_files.close_surplus()
        self._history.notice_offline()

    def _any(self, *, at_rest: bool = False) -> tuple[Partition, Log] | None:
        """A partition that can be used, with its log; `at_rest` with no append under way."""
        partition = self._dice.choice(self._history.partitions)
        if at_rest and partition.under_way:
            return None
        log = self._history.settled(partition)
        return None if log is None else (partition, log)

    # ---- appending ---------------------------------------------------------------------------------------

    def append(self) -> None:
        """A batch of any kind."""
        found = self._any()
        if found is None or len(found[0].under_way) >= 3:
            return
        partition, log = found
        dice, now_ms = self._dice, self._history.now_ms
        who = self._producer(partition, log)
        base_offset = partition.next_offset
        records = tuple(
            Written(
                base_offset + index,
                b"k%d" % dice.randrange(KEYS),
                None if dice.random() < 0.2 else b"%d:" % (base_offset + index) + b"x" * dice.choice((0, 5, 40, 120)),
                now_ms - 50 + dice.randrange(50) + 50 * index,
            )
            for index in range(dice.choice((1, 1, 2, 3)))
        )
        codec = dice.choice(CODECS) if dice.random() < 0.15 else Compression.NONE
        self._begin_append(partition, log, _built(records, who, codec), Origin.CLIENT, records, who, None)

    def _producer(self, partition: Partition, log: Log) -> Idempotent | None:
        producer_id = self._dice.choice((None, None, None, *PLAIN, *TRANSACTIONAL))
        if producer_id is None:
            return None
        is_transactional = producer_id in TRANSACTIONAL
        waiting = {batch for _, batch in partition.under_way}
        mine = [batch for batch in partition.of_producer(producer_id) if batch in waiting]
        if mine:
            assert mine[-1].producer is not None
            return Idempotent(producer_id, mine[-1].producer.epoch, mine[-1].last_sequence + 1, is_transactional)
        known = log.producers.producers.get(producer_id)
        if known is None:
            return Idempotent(producer_id, 0, 0, is_transactional)
        if not is_transactional and self._dice.random() < 0.05:
            return Idempotent(producer_id, known.epoch + 1, 0, is_transactional)
        return Idempotent(producer_id, known.epoch, known.last_sequence + 1, is_transactional)

    def end_transaction(self) -> None:
        """A marker."""
        found = self._any()
        if found is None:
            return
        partition, log = found
        undecided = partition.open_transactions()
        if not undecided:
            return
        producer_id, kind = min(undecided), self._dice.choice((ControlType.ABORT, ControlType.COMMIT))
        data = end_txn_marker(
            kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=self._history.now_ms
        )
        who = Idempotent(producer_id, 0, -1, transactional=True)
        self._begin_append(partition, log, data, Origin.COORDINATOR, (), who, kind)

    def _begin_append(
        self,
        partition: Partition,
        log: Log,
        data: bytearray,
        origin: Origin,
        records: tuple[Written, ...],
        who: Idempotent | None,
        ends: ControlType | None,
    ) -> None:
        now_ms = self._history.now_ms
        base_offset = partition.next_offset
        if len(data) > log.config.segment_bytes:
            return
        if self._dice.random() < 0.15:  # as a follower, which takes it over as it is
            patch(data, 0, base_offset, partition.epoch)
            taken = log.prepare_as_follower(data, wall_ms=now_ms, leader_epoch=partition.epoch)
            assert taken is not None
            prepared = taken
        else:
            prepared = log.prepare(data, leader_epoch=partition.epoch, wall_ms=now_ms, origin=origin)
        assert prepared.duplicate is None, f"a new batch at {base_offset} is taken for a duplicate"
        header = parse_header(prepared.records)
        assert header.base_offset == base_offset, f"the next offset is {header.base_offset}, not {base_offset}"
        batch = Batch(
            base_offset,
            base_offset + max(len(records), 1),
            bytes(prepared.records),
            header.max_timestamp,
            partition.epoch,
            records,
            who,
            ends,
        )
        partition.under_way.append((prepared, batch))

        def commit() -> None:
            if partition.log is log:
                info = log.commit(prepared, now_ms)
                assert (info.base_offset, info.last_offset) == (base_offset, batch.next_offset - 1)
                assert partition.under_way.pop(0)[0] is prepared
                partition.batches.append(batch)
                if not log.is_offline:  # else a change of its files has failed
                    log.high_watermark = log.log_end_offset

        history = self._history
        history.lanes.push("write", log.directory, lambda: log.write(prepared), history.done(log.directory, commit))

    def repeat(self) -> None:
        """A producer sends its last batch again, or leaves one out."""
        found = self._any(at_rest=True)
        if found is None:
            return
        partition, log = found
        producer_id = self._dice.choice((*PLAIN, *TRANSACTIONAL))
        known = log.producers.producers.get(producer_id)
        mine = partition.of_producer(producer_id)
        if known is None or not known.batches or not mine or mine[-1].last_sequence != known.last_sequence:
            return
        last = mine[-1]
        assert last.producer is not None
        records = tuple(record._replace(timestamp_ms=self._history.now_ms) for record in last.records)
        data = _built(records, last.producer)
        if len(data) > log.config.segment_bytes:  # it was written when segments were larger
            return
        again = log.prepare(data, leader_epoch=partition.epoch, wall_ms=self._history.now_ms)
        assert again.duplicate is not None, f"the batch at {last.base_offset} was accepted twice"
        assert again.duplicate.base_offset == last.base_offset
        later = _built(records, last.producer._replace(sequence=last.last_sequence + 5))
        refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            lambda: log.prepare(later, leader_epoch=partition.epoch, wall_ms=self._history.now_ms),
        )

    def begin_epoch(self) -> None:
        """Somebody leads anew."""
        partition = self._dice.choice(self._history.partitions)
        if partition.under_way or partition.log is None:
            return
        log = partition.log if self._dice.random() < 0.5 else self._history.settled(partition)
        if log is not None:  # perhaps a closed one
            partition.epoch += 1
            log.assign_epoch(partition.epoch)

    # ---- cutting -----------------------------------------------------------------------------------------

    def roll(self) -> None:
        """A new segment."""
        found = self._any(at_rest=True)
        if found is not None:
            found[1].roll(self._history.now_ms)

    def truncate(self) -> None:
        """Another leader has not had all of it."""
        found = self._any(at_rest=True)
        if found is None or not self._may_cut(*found):
            return
        partition, log = found
        replicated = max([partition.start, *(cleaning.log_end_offset for cleaning in partition.cleanings)])
        if replicated > partition.end:
            return  # what a compaction has seen every replica has
        offset = self._dice.randint(replicated, partition.end)
        at = next((b.base_offset for b in partition.batches if b.base_offset < offset < b.next_offset), offset)
        if at < replicated:
            return
        self._forget_behind(partition, at)
        self._history.manager.truncate(log, offset)
        partition.cut(at)
        partition.cut_at = None
        partition.epoch += 1

    def begin_anew(self) -> None:
        """The leader's log begins elsewhere."""
        found = self._any(at_rest=True)
        if found is None or not self._may_cut(*found):
            return
        partition, log = found
        offset = self._dice.choice((partition.start // 2, partition.start, partition.end, partition.end + 5))
        self._forget_behind(partition, 0)
        partition.begins_anew_at = offset
        partition.durable_start = 0
        self._history.manager.truncate_fully(log, offset)
        partition.begin_at(offset)
        partition.epoch += 1

    def _may_cut(self, partition: Partition, log: Log) -> bool:
        """Whether every change of its files is made; meanwhile much may have happened."""
        lanes = self._history.lanes
        is_ready = lanes.run_changes(log.directory) and not lanes.is_busy(log.directory)
        return is_ready and partition.log is log and not partition.under_way

    @staticmethod
    def _forget_behind(partition: Partition, offset: int) -> None:
        partition.cut_at, partition.may_be_flushed = offset, partition.flushed
        partition.flushed = min(partition.flushed, offset)
        if partition.syncing_to is not None:
            partition.syncing_to = min(partition.syncing_to, offset)

    def trim(self) -> None:
        """Somebody deletes records."""
        found = self._any(at_rest=True)
        if found is not None:
            partition, log = found
            log.high_watermark = partition.end
            offset = self._dice.randint(partition.start, partition.end)
            partition.may_start = offset
            log.trim(offset, self._history.now_ms)
            partition.start_at(offset)

    def retain(self) -> None:
        """What has expired goes."""
        if not all(self._history.settled(partition) for partition in self._history.partitions if partition.log):
            return
        for partition in self._history.partitions:
            partition.may_start = partition.end
        for _ in self._history.manager.retain(self._history.now_ms):
            pass
        self._history.notice_offline()
        for partition in self._history.partitions:
            log = partition.log
            if log is not None:
                start = log.log_start_offset
                assert partition.start <= start <= partition.end
                partition.start_at(start)

    def delete_files(self) -> None:
        """What is out of use goes."""
        history = self._history
        for directory, work in history.manager.deletions(history.now_ms):
            history.lanes.push("background", directory, work, lambda _: None)

    # ---- making durable ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """A sync, one at a time for each partition."""
        found = self._any()
        if found is None or found[0].syncing_to is not None:
            return
        partition, log = found
        work = log.sync_work(self._dice.choice((None, None, None, 1, 2)))
        partition.syncing_to = end_offset = work.end_offset

        def flushed() -> None:
            if partition.log is log:
                assert partition.syncing_to is not None
                partition.flushed = max(partition.flushed, partition.syncing_to)
                partition.syncing_to = None
                log.flushed(end_offset)

        history = self._history
        history.lanes.push("sync", log.directory, work, history.done(log.directory, flushed))

    def checkpoint(self) -> None:
        """Write down where logs begin, and where their recovery does."""
        history = self._history
        for directory, work in history.manager.checkpoint():
            starts = [
                (p, p.start) for p in history.partitions if p.log and p.log.directory == directory and p.is_settled
            ]
            history.lanes.push(
                "background", directory, work, history.done(directory, partial(self._checkpointed, directory, starts))
            )

    def _checkpointed(self, directory: str, starts: list[tuple[Partition, int]]) -> None:
        for partition, start in starts:
            if partition.log is not None and partition.log.directory == directory and start <= partition.start:
                partition.durable_start = max(partition.durable_start, start)

    def compact(self) -> None:
        """Begin a compaction, or go on with the one under way."""
        self._compaction.step()

    # ---- everything else ---------------------------------------------------------------------------------

    def work(self) -> None:
        """Threads get on."""
        for _ in range(self._dice.choice((1, 2, 5, 20))):
            if not self._history.lanes.run_any():
                break

    def wait(self) -> None:
        """Time passes."""
        self._history.now_ms += self._dice.choice((1, 60, 400, 20_000))
        self._history.disk.now_ms = self._history.now_ms

    def change_settings(self) -> None:
        """A topic gets other settings; its deletion horizon stays."""
        partition = self._dice.choice(self._history.partitions)
        kept = partition.config.delete_retention_ms
        partition.config = replace(self._history.new_config(), delete_retention_ms=kept)
        if partition.log is not None:
            partition.log.update_config(partition.config)

    def close_idle(self) -> None:
        """Descriptors are let go of."""
        for _ in self._history.manager.open_files.close_idle():
            pass

    def release(self) -> None:
        """A log that nobody uses is closed."""
        found = self._any(at_rest=True)
        if found is not None and found[0].syncing_to is None and not found[1].is_being_cleaned:
            found[1].release()

    def delete_topic(self) -> None:
        """And a new one of the same name is made."""
        history = self._history
        number = self._dice.randrange(len(history.partitions))
        old = history.partitions[number]
        if old.log is None:
            return
        # Within seconds of its making nobody could say whose directory it is (docs/simulation.md).
        history.file_system.make_durable(f"{old.log.path}/partition.metadata")
        history.manager.delete(old.log)
        old.log = None
        history.partitions[number] = new = history.new_partition(old.topic)
        history.make(new, is_new=True)

    def move(self) -> None:
        """A partition moves to another log directory."""
        self._history.lanes.is_quiet = True  # appends are held back, as a broker holds them back for the last stretch
        try:
            self._move()
        except KafkaError:
            if not self._history.manager.offline:  # else the copy's directory has failed, or the log's
                raise
        finally:
            self._history.lanes.is_quiet = False

    def _move(self) -> None:
        history = self._history
        found = self._any(at_rest=True)
        if (
            found is None
            or found[0].syncing_to is not None
            or found[1].is_being_cleaned
            or len(history.manager.directories) < 2
        ):
            return
        partition, log = found
        target = next(path for path in history.manager.directories if path != log.directory)
        if not history.lanes.run_changes(log.directory) or not history.lanes.run_changes(target):
            return
        if partition.log is not log or partition.under_way:
            return
        end = log.log_end_offset
        first = log.open().read_batches(log.log_start_offset, 1) if log.log_start_offset < end else None
        copy, work = history.manager.make_copy(log, target, parse_header(first).base_offset if first else end)
        work()
        history.manager.add_copy(copy)
        while copy.log_end_offset < end:
            data = log.read_records(max(copy.log_end_offset, log.log_start_offset), copy.config.segment_bytes)
            if len(data) > copy.config.segment_bytes:  # written when segments were larger
                history.manager.drop_copy(copy)
                return
            prepared = copy.prepare_as_follower(data, wall_ms=history.now_ms)
            assert prepared is not None
            history.lanes.run_changes(target)
            copy.write(prepared)
            copy.commit(prepared, history.now_ms)
        self._take_place(partition, log, copy)

    def _take_place(self, partition: Partition, log: Log, copy: Log) -> None:
        history = self._history
        copy.high_watermark = log.high_watermark
        history.lanes.run_changes(copy.directory)
        end = copy.log_end_offset
        copy.sync_work()()
        copy.flushed(end)
        if log.log_start_offset > copy.log_start_offset:
            copy.trim(log.log_start_offset, history.now_ms)
        copy_start = copy.log_start_offset  # of a compacted log perhaps further: where the first batch lies
        copy.release()
        history.lanes.run_changes(copy.directory)
        if not copy.release():
            if not copy.is_offline:
                history.manager.drop_copy(copy)
            return
        if self._dice.random() < 0.3:
            history.disk.fuse = self._dice.randrange(12)
        partition.places.add(copy.directory)
        partition.may_be_flushed, partition.may_start = partition.end, copy_start
        partition.log = copy  # before its directory can be found to have failed
        history.manager.replace(log, copy)
        partition.start_at(max(copy_start, partition.start))
        history.lanes.run_changes(copy.directory)
        if partition.log is not copy:
            history.left_behind.add(log.directory)
        else:
            partition.places = {copy.directory}
            partition.flushed = partition.end
            copy.update_config(partition.config)

    def look(self) -> None:
        """Compare one partition with the model."""
        found = self._any()
        if found is not None:
            partition, log = found
            if partition.under_way:
                check_bounds(log, partition)
            else:
                check_log(log, partition)

    def look_at_everything(self) -> None:
        """Compare all partitions with the model."""
        for partition in self._history.partitions:
            log = self._history.settled(partition)
            if log is not None:
                check_log(log, partition)

    def settle_all_in_use(self) -> None:
        """See what is left of the logs that a stop will close."""
        for partition in self._history.partitions:
            if partition.log is not None and partition.log.is_open:
                self._history.settled(partition)

    def break_something(self) -> None:
        """A directory's disk is about to fail, or to be full."""
        history = self._history
        if history.is_faulty and history.disk.fault is None:
            history.disk.fault = self.fault()

    def fault(self) -> Fault:
        """Any that may happen soon."""
        kind, number = self._dice.choice(FAULTS)
        path = self._dice.choice(list(self._history.directories))
        return Fault(kind, path, number, self._dice.randrange(20))

    def stop(self) -> None:
        """The process ends cleanly, and another begins."""
        self._history.stop()

    def crash(self) -> None:
        """The process ends at this moment."""
        self._history.crash()


def _built(
    records: tuple[Written, ...], who: Idempotent | None, compression: Compression = Compression.NONE
) -> bytearray:
    producer = who or Idempotent(-1, -1, -1)
    builder = BatchBuilder(
        compression=compression,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
        transactional=producer.transactional,
    )
    for record in records:
        builder.append(record.timestamp_ms, record.key, record.value)
    return builder.build()
