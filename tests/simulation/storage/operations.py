"""The operations of one simulated process on its logs, applied to the product and to the model.

NOT HERE Processes and crashes (simulator.py), the invariants (invariants.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from protocol.compression import Compression
from protocol.control_records import ControlType, end_txn_marker
from protocol.errors import ErrorCode, KafkaError
from protocol.records import parse_header, patch
from storage.config.log_config import LogConfig
from storage.directories.future_logs import add_future_log, drop_future_log, new_future_log, replace_with_future_log
from storage.directories.log_copy import find_start
from storage.directories.log_maintenance import due_deletions
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from storage.log.log import Log
from storage.log.log_validator import AppendOrigin
from tests.simulation.simulated_disk import Fault, ProcessEnded
from tests.simulation.storage.compaction import Compaction
from tests.simulation.storage.invariants import check_bounds, check_log
from tests.simulation.storage.model import Batch, Partition, Record
from tests.support.logs import ProducerInfo, builder_of, checkpoint_works, refused, retained

if TYPE_CHECKING:
    from tests.simulation.storage.simulator import Simulation

PLAIN, TRANSACTIONAL = (1, 2), (3, 4)
KEYS = 6
CODECS = (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD)
FAULTS = (("sync", 5), ("write", 5), ("write", 28), ("make", 28), ("make", 5), ("read", 5), ("unlink", 5))


class Operations:
    """All operations of one process."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._random = simulation.random
        self._compaction = Compaction(simulation, self._any)
        weights: dict[Callable[[], None], int] = {
            self.append: 30, self.repeat: 3, self.end_transaction: 5, self.flush: 9, self.work: 14, self.roll: 3,
            self.truncate: 3, self.truncate_fully: 1, self.trim: 3, self.retain: 4, self.delete_files: 3,
            self.checkpoint: 6, self.compact: 10, self.change_settings: 2, self.close_idle: 2, self.release: 2,
            self.begin_epoch: 2, self.delete_topic: 1, self.move: 3, self.look: 4, self.wait: 4, self.inject_fault: 1,
            simulation.restart_cleanly: simulation.restarts, simulation.crash: 4,
        }  # fmt: skip
        if simulation.is_compacting:
            weights.update(
                {
                    self.compact: 40,
                    self.roll: 15,
                    self.flush: 20,
                    simulation.crash: 2,
                    self.truncate_fully: 0,
                    self.trim: 1,
                }
            )
        if self._random.random() < 0.5:  # vary the weights, so that rare combinations occur
            weights = {step: weight * self._random.choice((0, 1, 1, 4)) for step, weight in weights.items()}
            weights[self.append] = max(weights[self.append], 10)
        self._all, self._all_weights = list(weights), list(weights.values())
        self._loop = [
            self.append, self.append, self.repeat, self.flush, self.end_transaction, self.checkpoint, self.retain, self.trim,
            self.close_idle, self.release, self.roll, self.look, self.truncate, self.change_settings,
        ]  # fmt: skip

    def one(self) -> None:
        step = self._random.choices(self._all, self._all_weights)[0]
        self._do(step)

    def run_loop_step(self) -> None:
        """Perform a random operation of the loop while other work runs."""
        self._do(self._random.choice(self._loop))

    def _do(self, step: Callable[[], None]) -> None:
        self._simulation.trace_step(step.__name__)
        try:
            step()
        except StorageError as error:
            self._simulation.failed(error)
        if self._simulation.must_close_files:
            self._simulation.must_close_files = False
            self._simulation.manager.file_handles.close_surplus()
        self._simulation.notice_offline()

    def _any(self, *, at_rest: bool = False) -> tuple[Partition, Log] | None:
        """A random usable partition and its log; with `at_rest`, without an append in flight."""
        partition = self._random.choice(self._simulation.partitions)
        if at_rest and partition.in_flight:
            return None
        log = self._simulation.recovered_log(partition)
        return None if log is None else (partition, log)

    # ---- appending ---------------------------------------------------------------------------------------

    def append(self) -> None:
        found = self._any()
        if found is None or len(found[0].in_flight) >= 3:
            return
        partition, log = found
        random, now_ms = self._random, self._simulation.now_ms
        producer = self._producer(partition, log)
        base_offset = partition.next_offset
        records = tuple(
            Record(
                base_offset + index,
                b"k%d" % random.randrange(KEYS),
                None
                if random.random() < 0.2
                else b"%d:" % (base_offset + index) + b"x" * random.choice((0, 5, 40, 120)),
                now_ms - 50 + random.randrange(50) + 50 * index,
            )
            for index in range(random.choice((1, 1, 2, 3)))
        )
        codec = random.choice(CODECS) if random.random() < 0.15 else Compression.NONE
        self._begin_append(
            partition, log, _build_batch(records, producer, codec), AppendOrigin.CLIENT, records, producer, None
        )

    def _producer(self, partition: Partition, log: Log) -> ProducerInfo | None:
        producer_id = self._random.choice((None, None, None, *PLAIN, *TRANSACTIONAL))
        if producer_id is None:
            return None
        is_transactional = producer_id in TRANSACTIONAL
        waiting = {batch for _, batch in partition.in_flight}
        mine = [batch for batch in partition.batches_of_producer(producer_id) if batch in waiting]
        if mine:
            assert mine[-1].producer is not None
            return ProducerInfo(producer_id, mine[-1].producer.epoch, mine[-1].last_sequence + 1, is_transactional)
        known = log.open().producers.producers.get(producer_id)
        if known is None:
            return ProducerInfo(producer_id, 0, 0, is_transactional)
        if not is_transactional and self._random.random() < 0.05:
            return ProducerInfo(producer_id, known.epoch + 1, 0, is_transactional)
        return ProducerInfo(producer_id, known.epoch, known.last_sequence + 1, is_transactional)

    def end_transaction(self) -> None:
        found = self._any()
        if found is None:
            return
        partition, log = found
        first_open_offsets = partition.open_transactions()
        if not first_open_offsets:
            return
        producer_id, kind = min(first_open_offsets), self._random.choice((ControlType.ABORT, ControlType.COMMIT))
        data = end_txn_marker(
            kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=self._simulation.now_ms
        )
        producer = ProducerInfo(producer_id, 0, -1, transactional=True)
        self._begin_append(partition, log, data, AppendOrigin.COORDINATOR, (), producer, kind)

    def _begin_append(
        self,
        partition: Partition,
        log: Log,
        data: bytearray,
        origin: AppendOrigin,
        records: tuple[Record, ...],
        producer: ProducerInfo | None,
        ends: ControlType | None,
    ) -> None:
        now_ms = self._simulation.now_ms
        base_offset = partition.next_offset
        if len(data) > log.config.segment_bytes:
            return
        if self._random.random() < 0.15:  # as a follower, which appends it unchanged
            patch(data, 0, base_offset, partition.epoch)
            taken = log.open().prepare_as_follower(data, wall_ms=now_ms, leader_epoch=partition.epoch)
            assert taken is not None
            prepared = taken
        else:
            prepared = wait_for_disk(
                log.open().appends.prepare, data, leader_epoch=partition.epoch, wall_ms=now_ms, origin=origin
            )
        assert prepared.duplicate is None, f"a new batch at {base_offset} counts as a duplicate"
        header = parse_header(prepared.records)
        assert header.base_offset == base_offset, f"the next offset is {header.base_offset}, not {base_offset}"
        batch = Batch(
            base_offset,
            base_offset + max(len(records), 1),
            bytes(prepared.records),
            header.max_timestamp,
            partition.epoch,
            records,
            producer,
            ends,
        )
        partition.in_flight.append((prepared, batch))

        def commit() -> None:
            if partition.log is log:
                info = prepared.commit(now_ms)
                assert (info.base_offset, info.last_offset) == (base_offset, batch.next_offset - 1)
                assert partition.in_flight.pop(0)[0] is prepared
                partition.batches.append(batch)
                if not log.is_offline:  # otherwise a file operation failed
                    log.high_watermark = log.log_end_offset

        simulation = self._simulation
        on_done = simulation.on_result(log.directory, commit)
        simulation.queues.push("write", log.directory, prepared.write, on_done, is_append=True)

    def repeat(self) -> None:
        """Retry a producer's last batch, and skip sequence numbers."""
        found = self._any(at_rest=True)
        if found is None:
            return
        partition, log = found
        producer_id = self._random.choice((*PLAIN, *TRANSACTIONAL))
        known = log.open().producers.producers.get(producer_id)
        mine = partition.batches_of_producer(producer_id)
        if known is None or not known.batches or not mine or mine[-1].last_sequence != known.last_sequence:
            return
        last = mine[-1]
        assert last.producer is not None
        records = tuple(record._replace(timestamp_ms=self._simulation.now_ms) for record in last.records)
        data = _build_batch(records, last.producer)
        if len(data) > log.config.segment_bytes:  # it was written with a larger segment size
            return
        retry = wait_for_disk(
            log.open().appends.prepare, data, leader_epoch=partition.epoch, wall_ms=self._simulation.now_ms
        )
        assert retry.duplicate is not None, f"the batch at {last.base_offset} was accepted twice"
        assert retry.duplicate.base_offset == last.base_offset
        later = _build_batch(records, last.producer._replace(sequence=last.last_sequence + 5))
        refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            lambda: wait_for_disk(
                log.open().appends.prepare, later, leader_epoch=partition.epoch, wall_ms=self._simulation.now_ms
            ),
        )

    def begin_epoch(self) -> None:
        partition = self._random.choice(self._simulation.partitions)
        if partition.in_flight or partition.log is None or partition.truncating_to is not None:
            return
        log = partition.log if self._random.random() < 0.5 else self._simulation.recovered_log(partition)
        if log is not None:  # the log may be closed
            partition.epoch += 1
            log.assign_epoch(partition.epoch)

    # ---- truncation --------------------------------------------------------------------------------------

    def roll(self) -> None:
        found = self._any(at_rest=True)
        if found is not None:
            found[1].open().roll(self._simulation.now_ms)

    def truncate(self) -> None:
        """Truncate to a random offset, as a follower of a new leader."""
        found = self._any(at_rest=True)
        if found is None or not self._can_truncate(*found):
            return
        partition, log = found
        replicated = max([partition.start, *(compaction.log_end_offset for compaction in partition.compactions)])
        if replicated > partition.end:
            return  # every replica has the records that a compaction has read
        offset = self._random.randint(replicated, partition.end)
        at = next((b.base_offset for b in partition.batches if b.base_offset < offset < b.next_offset), offset)
        if at < replicated:
            return
        self._expect_truncation(partition, at)

        def on_truncated() -> None:
            partition.truncate_to(at)
            partition.truncating_to = None
            partition.epoch += 1

        lookup = self._simulation.manager.truncation(log, offset)
        if lookup is None:
            on_truncated()
        else:
            self._truncate(partition, log, lookup, on_truncated)

    def truncate_fully(self) -> None:
        """Truncate fully and start at another offset."""
        found = self._any(at_rest=True)
        if found is None or not self._can_truncate(*found):
            return
        partition, log = found
        offset = self._random.choice((partition.start // 2, partition.start, partition.end, partition.end + 5))
        self._expect_truncation(partition, 0)
        partition.restarting_at = offset
        partition.durable_start = 0

        def on_truncated() -> None:
            partition.restart_at(offset)
            partition.epoch += 1

        self._truncate(partition, log, self._simulation.manager.full_truncation(log, offset, offset), on_truncated)

    def _truncate(self, partition: Partition, log: Log, lookup: DiskLookup, on_truncated: Callable[[], None]) -> None:
        """Run a truncation in a reader thread; the log is closed meanwhile."""

        def finish() -> None:
            if partition.log is log:
                lookup.finish()
                on_truncated()

        simulation = self._simulation
        work = partial(log.files.run_guarded, lookup.run)
        simulation.queues.push("read", log.directory, work, simulation.on_result(log.directory, finish))

    def _can_truncate(self, partition: Partition, log: Log) -> bool:
        """Whether no flush is running and no file operation is pending; running them may have changed the log."""
        queues = self._simulation.queues
        is_ready = queues.run_file_ops(log.directory) and not queues.is_busy(log.directory)
        return is_ready and partition.log is log and not partition.in_flight and partition.syncing_to is None

    @staticmethod
    def _expect_truncation(partition: Partition, offset: int) -> None:
        partition.truncating_to, partition.max_flushed = offset, partition.flushed
        partition.flushed = min(partition.flushed, offset)
        if partition.syncing_to is not None:
            partition.syncing_to = min(partition.syncing_to, offset)

    def trim(self) -> None:
        found = self._any(at_rest=True)
        if found is not None:
            partition, log = found
            log.high_watermark = partition.end
            offset = self._random.randint(partition.start, partition.end)
            partition.max_start = offset
            log.open().trim(offset, self._simulation.now_ms)
            partition.start_at(offset)

    def retain(self) -> None:
        if not all(
            self._simulation.recovered_log(partition) for partition in self._simulation.partitions if partition.log
        ):
            return
        for partition in self._simulation.partitions:
            partition.max_start = partition.end
        for _ in retained(self._simulation.manager, self._simulation.now_ms):
            pass
        self._simulation.notice_offline()
        for partition in self._simulation.partitions:
            log = partition.log
            if log is not None and (
                log.is_open or not log.is_unavailable
            ):  # otherwise a truncation has begun meanwhile
                start = log.log_start_offset
                assert partition.start <= start <= partition.end
                partition.start_at(start)

    def delete_files(self) -> None:
        simulation = self._simulation
        for directory, work in due_deletions(simulation.manager, simulation.now_ms):
            simulation.queues.push("background", directory, work, lambda _: None)

    # ---- flushing ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Flush a log; one flush at a time per partition."""
        found = self._any()
        if found is None or found[0].syncing_to is not None:
            return
        partition, log = found
        work = log.open().flush.begin(self._random.choice((None, None, None, 1, 2)))
        partition.syncing_to = end_offset = work.end_offset

        def flushed() -> None:
            if partition.log is log:
                assert partition.syncing_to is not None
                partition.flushed = max(partition.flushed, partition.syncing_to)
                partition.syncing_to = None
                log.open().flush.complete(end_offset)

        simulation = self._simulation
        simulation.queues.push("sync", log.directory, work, simulation.on_result(log.directory, flushed))

    def checkpoint(self) -> None:
        simulation = self._simulation
        for directory, work in checkpoint_works(simulation.manager):
            starts = [
                (p, p.start) for p in simulation.partitions if p.log and p.log.directory == directory and p.is_recovered
            ]
            simulation.queues.push(
                "background",
                directory,
                work,
                simulation.on_result(directory, partial(self._checkpointed, directory, starts)),
            )

    def _checkpointed(self, directory: str, starts: list[tuple[Partition, int]]) -> None:
        for partition, start in starts:
            is_here = partition.log is not None and partition.log.directory == directory
            if is_here and start <= partition.start and partition.truncating_to is None:
                partition.durable_start = max(partition.durable_start, start)

    def compact(self) -> None:
        self._compaction.step()

    # ---- other operations --------------------------------------------------------------------------------

    def work(self) -> None:
        for _ in range(self._random.choice((1, 2, 5, 20))):
            if not self._simulation.queues.run_any():
                break

    def wait(self) -> None:
        self._simulation.now_ms += self._random.choice((1, 60, 400, 20_000))
        self._simulation.disk.now_ms = self._simulation.now_ms

    def change_settings(self) -> None:
        """Change a topic's configuration, except delete.retention.ms."""
        partition = self._random.choice(self._simulation.partitions)
        kept = partition.config.delete_retention_ms
        partition.config = replace(self._simulation.new_config(), delete_retention_ms=kept)
        if partition.log is not None:
            partition.log.update_config(partition.config)

    def close_idle(self) -> None:
        for _ in self._simulation.manager.file_handles.close_idle():
            pass

    def release(self) -> None:
        found = self._any(at_rest=True)
        if found is not None and found[0].syncing_to is None and not found[1].is_being_cleaned:
            found[1].release()

    def delete_topic(self) -> None:
        """Delete a topic and recreate it with the same name."""
        simulation = self._simulation
        number = self._random.randrange(len(simulation.partitions))
        old = simulation.partitions[number]
        if old.log is None:
            return
        # Until partition.metadata is durable, a directory cannot be matched to a topic (docs/simulation.md).
        simulation.file_system.make_durable(f"{old.log.path}/partition.metadata")
        try:
            simulation.manager.delete(old.log)
        except ProcessEnded:
            if simulation.file_system.find(old.log.path) is None:  # a crash after the rename
                simulation.partitions[number] = simulation.new_partition(old.topic)
            raise
        old.log = None
        simulation.partitions[number] = new = simulation.new_partition(old.topic)
        simulation.open_log(new, is_new=True)

    def move(self) -> None:
        self._simulation.queues.is_paused = True  # as in a broker, appends wait during the final phase
        try:
            self._move()
        except KafkaError:
            if not self._simulation.manager.offline:  # otherwise a directory has failed
                raise
        finally:
            self._simulation.queues.is_paused = False

    def new_place(self, log: Log) -> tuple[str, LogConfig] | None:
        """The log directory and the configuration of a copy of a log; None if there is no other place."""
        return next(
            ((path, log.config) for path in self._simulation.manager.directories if path != log.directory), None
        )

    def _move(self) -> None:
        simulation = self._simulation
        found = self._any(at_rest=True)
        if (
            found is None
            or found[0].syncing_to is not None
            or found[1].is_being_cleaned
            or (place := self.new_place(found[1])) is None
        ):
            return
        partition, log = found
        target, config = place
        if not simulation.queues.run_file_ops(log.directory) or not simulation.queues.run_file_ops(target):
            return
        if partition.log is not log or partition.in_flight:
            return
        end = log.log_end_offset
        copy, work = new_future_log(simulation.manager, log, target, wait_for_disk(find_start, log), config)
        work()
        if target not in simulation.manager.directories:  # its commit log has failed
            return
        add_future_log(simulation.manager, copy)
        while copy.log_end_offset < end:
            data: Any = wait_for_disk(
                log.open().reader.read_records,
                max(copy.log_end_offset, log.log_start_offset),
                copy.config.segment_bytes,
            )
            if len(data) > copy.config.segment_bytes:  # written with a larger segment size
                drop_future_log(simulation.manager, copy)
                return
            prepared = copy.open().prepare_as_follower(data, wall_ms=simulation.now_ms)
            assert prepared is not None
            simulation.queues.run_file_ops(target)
            prepared.write()
            prepared.commit(simulation.now_ms)
        self._replace_log(partition, log, copy)

    def _replace_log(self, partition: Partition, log: Log, copy: Log) -> None:
        simulation = self._simulation
        copy.high_watermark = log.high_watermark
        simulation.queues.run_file_ops(copy.directory)
        end = copy.log_end_offset
        copy.open().flush.begin()()
        copy.open().flush.complete(end)
        if log.log_start_offset > copy.log_start_offset:
            copy.open().trim(log.log_start_offset, simulation.now_ms)
        copy_start = copy.log_start_offset
        assert copy_start == log.log_start_offset or not copy.open().engine.size_bytes, (
            f"the copy starts at {copy_start}, not {log.log_start_offset}"
        )
        copy.release()
        simulation.queues.run_file_ops(copy.directory)
        if not copy.release():
            if not copy.is_offline:
                drop_future_log(simulation.manager, copy)
            return
        if self._random.random() < 0.3:
            simulation.disk.fuse = self._random.randrange(12)
        partition.directories.add(copy.directory)
        partition.max_flushed, partition.max_start = partition.end, copy_start
        partition.log = copy  # before a failure of its directory is noticed
        replace_with_future_log(simulation.manager, log, copy)
        partition.start_at(max(copy_start, partition.start))
        simulation.queues.run_file_ops(copy.directory)
        if partition.log is not copy:
            simulation.unmoved_directories.add(log.directory)
        else:
            partition.directories = {copy.directory}
            partition.flushed = partition.end
            copy.update_config(partition.config)

    def look(self) -> None:
        """Compare one partition with the model."""
        found = self._any()
        if found is not None:
            partition, log = found
            if partition.in_flight:
                check_bounds(log, partition)
            else:
                check_log(log, partition)

    def check_all_logs(self) -> None:
        """Compare all partitions with the model."""
        for partition in self._simulation.partitions:
            log = self._simulation.recovered_log(partition)
            if log is not None:
                check_log(log, partition)

    def recover_all_open(self) -> None:
        """Check the open logs before a clean stop closes them."""
        for partition in self._simulation.partitions:
            if partition.log is not None and partition.log.is_open:
                self._simulation.recovered_log(partition)

    def inject_fault(self) -> None:
        """Schedule a fault of a directory's disk."""
        simulation = self._simulation
        if simulation.has_faults and simulation.disk.fault is None:
            simulation.disk.fault = self.fault()

    def fault(self) -> Fault:
        kind, number = self._random.choice(FAULTS)
        path = self._random.choice(list(self._simulation.directories))
        return Fault(kind, path, number, self._random.randrange(20))


def _build_batch(
    records: tuple[Record, ...], producer: ProducerInfo | None, compression: Compression = Compression.NONE
) -> bytearray:
    builder = builder_of(producer, compression)
    for record in records:
        builder.append(record.timestamp_ms, record.key, record.value)
    return builder.build()
