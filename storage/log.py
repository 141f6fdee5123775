"""One partition's log: offsets, leader epochs, producers, what may be read, where it begins and ends.

RULES    1. Log start <= high watermark <= log end; the last stable offset is not above the high watermark, and
            nothing of an undecided transaction lies below it.
         2. A log opens nothing before it is first used; recovery happens then, if it must. What needs no opening:
            names, settings, the checkpointed figures, `assign_epoch` for a leader that begins at the end.
         3. Cutting (truncate, trim, roll, close) happens while no append is under way; the caller sees to that.
         4. The recovery point moves only by `flushed`: all before it, and the epochs up to it, are durable then.
         5. Who may not wait for the disk says `may_block=False` and may be told WouldBlock (blocking.py).
         6. After a StorageError the log directory goes offline (`go_offline`); from then on every use is refused with
            KAFKA_STORAGE_ERROR.
NOT HERE The steps of an append (appends.py), how batches lie on disk (engine.py), what opening has to mend
         (recovery.py), who leads and when the high watermark moves (replication/partition.py), when to flush or
         delete (log_manager.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from protocol.errors import ErrorCode, KafkaError
from protocol.records import FileRegion
from storage.appends import AppendInfo, Appends, PreparedAppend
from storage.blocking import WouldBlock
from storage.changes import Change, Later, at_once
from storage.checkpoints import PARTITION_METADATA, read_topic_id, write_topic_id
from storage.disk import Disk, StorageError
from storage.elsewhere import Elsewhere
from storage.engine import AbortedTransaction, Buffer, Engine, EngineFactory
from storage.leader_epochs import UNDEFINED, LeaderEpochs
from storage.log_config import LogConfig
from storage.partition_directory import names_sync
from storage.producers import ProducerState
from storage.reads import HIGH_WATERMARK, LAST_STABLE, LOG_END, Isolation, ReadInfo, out_of_range
from storage.recovery import OpenParts, open_parts, restore_producers
from storage.retention import expired_end, next_expiry_ms
from storage.snapshots import Snapshots
from storage.timestamps import first_record, latest_record
from storage.validation import Origin, validate_replicated

_new_tuple = tuple.__new__
T = TypeVar("T")


class Checkpoint(NamedTuple):
    """What is written down of a log from time to time, and known of it before it is opened."""

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0


class Log:
    """The log of one partition."""

    __slots__ = (
        "_appends", "_closed_end", "_disk", "_elsewhere", "_engine", "_engine_factory", "_epoch_to_assign", "_epochs",
        "_high_watermark", "_is_clean", "_is_named_durably", "_log_start_offset", "_opening", "_pending",
        "_producers", "_recovery_point", "_refusal", "_retention_due_ms", "_snapshots", "_topic_id",
        "_unflushed_since_ms", "config", "directory", "doomed", "is_offline", "later", "name", "partition", "path",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        engine_factory: EngineFactory,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        *,
        known: Checkpoint = Checkpoint(),  # noqa: B008  # immutable
        is_clean: bool = True,
        topic_id: bytes | None = None,
        is_new: bool = False,
    ) -> None:
        """Know where the log lies and open nothing.

        Args:
            disk: the file system.
            engine_factory: makes the engine when the log is opened.
            directory: the log directory; the partition's own, which exists, lies in it.
            topic: its name.
            partition: its number.
            config: what it obeys.
            known: as checkpointed.
            is_clean: whether it was closed cleanly, so that nothing has to be recovered.
            topic_id: None where it is to be read from the partition's metadata file.
            is_new: whether the directory was made just now, so that its name is not durable yet.
        """
        self._disk = disk
        self._engine_factory = engine_factory
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.path = f"{directory}/{self.name}"
        self.config = config
        self.is_offline = False
        self.later: Later = at_once
        """Makes the changes of files that need not be made at this moment (changes.py)."""
        self._pending: set[Change] = set()  # handed to `later` and not made yet
        self.doomed: list[tuple[int, list[str]]] = []
        """Files out of use, with the time from which they may be deleted."""
        self._topic_id = topic_id
        self._is_clean = is_clean
        self._is_named_durably = not is_new
        self._recovery_point, self._log_start_offset, self._high_watermark = known
        self._epoch_to_assign = UNDEFINED
        self._unflushed_since_ms = -1
        self._retention_due_ms = 0
        self._closed_end = -1
        self._opening: WouldBlock[OpenParts] | None = None  # under way in a thread
        self._refusal: KafkaError | None = None  # what that thread found instead of a log
        self._elsewhere: Elsewhere | None = None  # questions that threads answer
        # The parts of an open log; `_engine` tells whether it is one.
        self._engine: Engine | None = None
        self._appends: Appends
        self._epochs: LeaderEpochs
        self._producers: ProducerState
        self._snapshots: Snapshots

    def __repr__(self) -> str:
        return f"Log({self.path!r}, {'open' if self._engine is not None else 'not open'})"

    # ---- life --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it has been used, and so opened (rule 2)."""
        return self._engine is not None

    @property
    def needs_recovery(self) -> bool:
        """Whether opening it will scan what lies behind the recovery point."""
        return not self._is_clean

    @property
    def topic_id(self) -> bytes | None:
        """The topic's id; None where the partition's metadata file is missing."""
        if self._topic_id is None:
            self._topic_id = read_topic_id(self._disk, f"{self.path}/{PARTITION_METADATA}")
        return self._topic_id

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Write down whose log this is, where that is not known."""
        write_topic_id(self._disk, f"{self.path}/{PARTITION_METADATA}", topic_id)
        self._topic_id = topic_id

    def bytes_to_recover(self) -> int:
        """How much opening it will have to check; opens no file."""
        if self._is_clean:
            return 0
        engine = self._engine_factory(self.path, self.config)
        start_offset = engine.open(self._recovery_point)
        return 0 if start_offset is None else engine.bytes_to_recover(start_offset)

    def open(self, *, may_block: bool = True) -> Engine:
        """Open and, where that is needed, recover; harmless when open. The engine is for looking at only.

        Raises:
            KafkaError: the directory is offline, or nothing can be made of what lies there.
            WouldBlock: it is not open and `may_block` is false, or a thread is opening it already.
        """
        engine = self._engine
        if engine is not None:
            return engine
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory of {self.name} is offline")
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        if may_block and self._opening is None:
            return self._adopt(self._opener()())
        if self._opening is None:
            self._opening = WouldBlock(self._opener(), self._opened)
        raise self._opening

    def _opener(self) -> Callable[[], OpenParts]:
        """Closed work that opens what lies on disk."""
        return partial(
            open_parts,
            self._disk,
            self.path,
            self.name,
            self._engine_factory(self.path, self.config),
            recovery_point=None if self._is_clean else self._recovery_point,
            log_start_offset=self._log_start_offset,
        )

    def _opened(self, parts: OpenParts | KafkaError) -> None:
        self._opening = None
        if isinstance(parts, KafkaError):
            self._refusal = parts
        elif not self.is_offline:
            self._adopt(parts).update_config(self.config)  # which may have changed meanwhile

    def _adopt(self, parts: OpenParts) -> Engine:
        engine, self._epochs, self._producers, self._snapshots, self._log_start_offset = parts
        self._appends = Appends(self.name, parts, self.config)
        self._engine = engine
        engine.later = self._snapshots.later = self.change
        self._is_clean = True
        self.high_watermark = self._high_watermark
        if self._epoch_to_assign != UNDEFINED:
            self._epochs.assign(self._epoch_to_assign, engine.end_offset)
            self._epoch_to_assign = UNDEFINED
        return engine

    @property
    def is_changing(self) -> bool:
        """Whether changes of its files are still to be made."""
        return bool(self._pending)

    def change(self, change: Change, later: Later | None = None) -> None:
        """Make a change of its files, now or later (changes.py)."""

        def unless_offline() -> None:
            try:
                if not self.is_offline:
                    change()
            except StorageError:
                if not self.is_offline:  # else the directory failed, or the log was deleted meanwhile
                    raise
            finally:
                self._pending.discard(unless_offline)

        self._pending.add(unless_offline)
        (later or self.later)(unless_offline)

    def close(self, *, sync: bool = True) -> None:
        """Close so that it can be opened again without recovery.

        With `sync` that holds after a loss of power too; without, when somebody has synced the whole file system
        and then says `vouch`.
        """
        engine = self._engine
        if engine is None:
            return
        assert not self._appends.are_under_way, "appends are committed or aborted before a close"
        assert not self._pending, "changes of files are made before a close"
        engine.later = self._snapshots.later = at_once
        self._closed_end = end_offset = engine.end_offset
        if end_offset and (not self._snapshots.offsets or self._snapshots.offsets[-1] != end_offset):
            self._snapshots.take(end_offset, self._producers.snapshot(), sync=sync)
        if sync:
            self.sync_work()()
            self.flushed(end_offset)
        self._epochs.write(sync=sync)
        self._recovery_point = engine.recovery_point
        engine.close()
        self._let_go()

    def vouch(self) -> None:
        """What was closed without a sync is durable now."""
        if self._closed_end >= 0:
            self._recovery_point = self._closed_end

    def release(self) -> bool:
        """Close without a sync, to be opened at the next use; False while anything is unflushed, unwritten or under way."""
        if self._engine is not None:
            if self._appends.are_under_way or self.unflushed_messages or self._pending:
                return False
            epochs = self._epochs.collect_write()
            if epochs is not None:
                self.change(epochs)
            if self._pending:
                return False
            self.close(sync=False)
        return True

    def go_offline(self) -> None:
        """Refuse every use from now on, and write nothing any more."""
        self.is_offline = True
        if self._engine is not None:
            self._appends.give_up()
            self._let_go()

    def _let_go(self) -> None:
        self._engine = None
        self._is_cut()
        self._elsewhere = None

    def _is_cut(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.give_up()

    def delete(self) -> None:
        """Give up the data and refuse every use; the directory is the caller's to remove."""
        engine = self._engine
        self.go_offline()
        if engine is not None:
            engine.delete()

    def update_config(self, config: LogConfig) -> None:
        """Obey other settings from the next append on."""
        self.config = config
        self._retention_due_ms = 0
        if self._engine is not None:
            self._engine.update_config(config)
            self._appends.obey(config)

    # ---- where it stands ---------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        if self._engine is None:
            self.open()
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next committed record gets."""
        engine = self._engine
        return (engine if engine is not None else self.open()).end_offset

    @property
    def high_watermark(self) -> int:
        """Up to here the records are on enough replicas."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        engine = self._engine
        if engine is not None:
            offset = min(max(offset, self._log_start_offset), engine.end_offset)
            self._producers.high_watermark_moved(offset)
        self._high_watermark = offset

    @property
    def last_stable_offset(self) -> int:
        """Up to here every transaction is decided."""
        if self._engine is None:
            self.open()
        return self._last_stable()

    @property
    def flushed_end_offset(self) -> int:
        """All before it is durable."""
        engine = self._engine
        return engine.flushed_end_offset if engine is not None else self._recovery_point

    @property
    def recovery_point(self) -> int:
        """From here on everything is checked after a crash."""
        engine = self._engine
        return engine.recovery_point if engine is not None else self._recovery_point

    @property
    def checkpoint(self) -> Checkpoint:
        """What is to be written down; known without opening."""
        return Checkpoint(self.recovery_point, self._log_start_offset, self._high_watermark)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self.open().size_bytes

    @property
    def producers(self) -> ProducerState:
        """What is known of idempotent and transactional producers; to be looked at only."""
        self.open()
        return self._producers

    def _last_stable(self) -> int:
        unstable = self._producers.first_unstable_offset
        if unstable is None or unstable >= self._high_watermark:
            return self._high_watermark
        return max(unstable, self._log_start_offset)

    # ---- append ------------------------------------------------------------------------------------------

    def prepare(
        self,
        records: bytearray | memoryview,
        *,
        leader_epoch: int,
        wall_ms: int,
        origin: Origin = Origin.CLIENT,
        may_block: bool = True,
    ) -> PreparedAppend:
        """Check a leader's records and give them their offsets, in place: `records` must be writable (appends.py).

        Raises:
            KafkaError: the records are refused, and nothing has happened; RejectedRecords may name single ones.
            WouldBlock: not with `may_block`.
        """
        engine = self._engine
        if engine is None:
            engine = self.open(may_block=may_block)
        if not may_block:
            engine.be_ready_to_append()
        return self._appends.prepare(records, leader_epoch, wall_ms, origin, self._log_start_offset)

    def prepare_as_follower(
        self, records: Buffer, *, wall_ms: int, leader_epoch: int = UNDEFINED
    ) -> PreparedAppend | None:
        """Take a leader's batches over as they are; None when there is nothing that may be appended.

        Args:
            records: as fetched; a batch that is cut off at the end is left out.
            wall_ms: the time.
            leader_epoch: batches of a later epoch are left out: they come from a leader not heard of yet.

        Raises:
            KafkaError: broken batches, or such as do not continue this log.
        """
        engine = self.open()
        batches = validate_replicated(records, leader_epoch=leader_epoch)
        if not batches:
            return None
        next_offset = self._appends.next_offset
        is_empty = self._log_start_offset == engine.end_offset == next_offset
        if is_empty and batches[0][1].base_offset < next_offset <= batches[-1][1].last_offset:
            self._begin_at(batches[0][1].base_offset)  # our start lies inside the leader's batch
        return self._appends.prepare_as_follower(records, batches, wall_ms)

    def write(self, prepared: PreparedAppend) -> None:
        """Write the bytes; may run in another thread, and may raise StorageError."""
        self._appends.write(prepared)

    def commit(self, prepared: PreparedAppend, wall_ms: int) -> AppendInfo:
        """Let the records be read.

        Raises:
            KafkaError: the append was aborted together with an earlier one, or by its directory going offline.
        """
        if prepared.duplicate is not None:
            return prepared.duplicate
        info = self._appends.commit(prepared, self._log_start_offset)
        if self._unflushed_since_ms < 0:
            self._unflushed_since_ms = wall_ms
        return info

    def abort(self, prepared: PreparedAppend) -> None:
        """Undo what was prepared: this append and all later ones."""
        if not self.is_offline:
            self._appends.abort(prepared)

    def append(
        self, records: bytearray | memoryview, *, leader_epoch: int, wall_ms: int, origin: Origin = Origin.CLIENT
    ) -> AppendInfo:
        """All steps at once, for those who may wait for the disk."""
        return self._finish(self.prepare(records, leader_epoch=leader_epoch, wall_ms=wall_ms, origin=origin), wall_ms)

    def append_as_follower(self, records: Buffer, *, wall_ms: int, leader_epoch: int = UNDEFINED) -> AppendInfo | None:
        """All steps at once; None when there was nothing to append."""
        prepared = self.prepare_as_follower(records, wall_ms=wall_ms, leader_epoch=leader_epoch)
        return None if prepared is None else self._finish(prepared, wall_ms)

    def _finish(self, prepared: PreparedAppend, wall_ms: int) -> AppendInfo:
        try:
            self.write(prepared)
        except StorageError:
            self.abort(prepared)
            raise
        return self.commit(prepared, wall_ms)

    # ---- read --------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation,
        *,
        min_one_batch: bool = True,
        may_block: bool = True,
    ) -> ReadInfo:
        """Where the batches from `offset` on lie, up to what the isolation allows; empty at or behind that.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE before the log's start or behind its end.
            WouldBlock: where they lie is not known without the disk; not with `may_block`.
        """
        engine = self._engine
        if engine is None:
            engine = self.open(may_block=may_block)
        start_offset, end_offset, high_watermark = self._log_start_offset, engine.end_offset, self._high_watermark
        if not start_offset <= offset <= end_offset:
            raise out_of_range(self.name, offset, start_offset, end_offset)
        stable = self._last_stable()
        bound = end_offset if isolation == LOG_END else high_watermark if isolation == HIGH_WATERMARK else stable
        aborted: list[AbortedTransaction] | None = [] if isolation == LAST_STABLE else None
        regions: tuple[FileRegion, ...] = ()
        size = 0
        if offset < bound:
            regions, size, found_end, _ = engine.locate(
                offset, max_bytes, bound, min_one_batch=min_one_batch, may_block=may_block
            )
            if aborted is not None and size:
                aborted = engine.aborted(offset, found_end, may_block=may_block)
        return _new_tuple(ReadInfo, (regions, size, high_watermark, stable, start_offset, end_offset, aborted))

    def read_records(self, offset: int, max_bytes: int, *, may_block: bool = True) -> Buffer:
        """Whole batches in memory, at least one, from the one that holds `offset`; empty at the log's end.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE.
            WouldBlock: not with `may_block`.
        """
        engine = self.open(may_block=may_block)
        if not self._log_start_offset <= offset <= engine.end_offset:
            raise out_of_range(self.name, offset, self._log_start_offset, engine.end_offset)
        if may_block:
            return engine.read_batches(offset, max_bytes)
        return self._ask(("records", offset), lambda copy: copy.read_batches(offset, max_bytes))

    def offset_for_timestamp(self, target_ms: int, *, may_block: bool = True) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record that is not before a time; None when there is none.

        Raises:
            WouldBlock: not with `may_block`.
        """
        engine = self.open(may_block=may_block)
        start_offset = self._log_start_offset
        if may_block:
            return first_record(engine, target_ms, start_offset)
        return self._ask(("time", target_ms), lambda copy: first_record(copy, target_ms, start_offset))

    def offset_of_max_timestamp(self, *, may_block: bool = True) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the greatest timestamp; None when empty.

        Raises:
            WouldBlock: not with `may_block`.
        """
        engine = self.open(may_block=may_block)
        return latest_record(engine) if may_block else self._ask(("latest", 0), latest_record)

    def _ask(self, question: tuple[str, int], look: Callable[[Engine], T]) -> T:
        if self._elsewhere is None:
            self._elsewhere = Elsewhere(self.open())
        return self._elsewhere.ask(question, look)

    # ---- leader epochs -----------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch in this log; -1 when there is none."""
        self.open()
        return self._epochs.latest

    def assign_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """A leader's epoch begins: at `start_offset`, or at the end, for which the log need not be opened.

        Appends that are under way belong to the epoch before.
        """
        if start_offset is None and self._engine is None:
            self._epoch_to_assign = epoch
            return
        self.open()
        end_offset = self._appends.next_offset
        self._epochs.assign(epoch, end_offset if start_offset is None else max(start_offset, end_offset))

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that an offset belongs to; -1 when unknown."""
        self.open()
        return self._epochs.epoch_at(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and where it ended; (-1, -1) when that is unknown."""
        engine = self.open()
        return self._epochs.end_offset_for(epoch, engine.end_offset)

    # ---- cutting -----------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> bool:
        """Drop all from `offset` on; whoever does this writes the recovery points soon (`LogManager.truncate`)."""
        engine = self.open()
        assert not self._appends.are_under_way, "no append is under way during a truncation"
        if offset >= engine.end_offset:
            self._epochs.truncate(engine.end_offset)  # an epoch that began, and then had no records
            return False
        if offset < engine.start_offset:
            self.truncate_fully(offset)
            return True
        self._is_cut()
        engine.truncate(offset)
        self._appends.next_offset = end_offset = engine.end_offset
        self._epochs.truncate(end_offset)
        self._snapshots.truncate(end_offset)
        restore_producers(engine, self._producers, self._snapshots, end_offset, is_clean=False)
        self._log_start_offset = min(self._log_start_offset, end_offset)
        self.high_watermark = self._high_watermark
        return True

    def truncate_fully(self, offset: int) -> None:
        """Drop everything and begin anew at `offset`."""
        self.open()
        assert not self._appends.are_under_way, "no append is under way during a truncation"
        self._begin_at(offset)
        self._log_start_offset = offset
        self.high_watermark = offset

    def trim(self, log_start_offset: int, wall_ms: int) -> None:
        """Let the log begin later; what lies wholly before goes, after `file.delete.delay.ms`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE above the high watermark.
        """
        engine = self.open()
        if log_start_offset > self._high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {log_start_offset} of partition {self.name} since it is "
                f"larger than the high watermark {self._high_watermark}",
            )
        if log_start_offset > self._log_start_offset:
            self._log_start_offset = log_start_offset
            self._epochs.trim(log_start_offset)
        oldest = engine.start_offset
        doomed = engine.trim(self._log_start_offset)
        self._snapshots.trim(engine.start_offset)
        if engine.start_offset > oldest:
            self.doomed.append((wall_ms + self.config.file_delete_delay_ms, doomed))

    def retain(self, wall_ms: int) -> None:
        """Drop the oldest segments that are too old, too many or before the log's start, as the settings say.

        The active segment goes too when all of it has expired. Nothing goes at or above the high watermark, nor
        while appends are under way.
        """
        engine = self.open()
        self._retention_due_ms = 0
        if self._appends.are_under_way:
            return
        end_offset = expired_end(engine, self.config, self._log_start_offset, self._high_watermark, wall_ms)
        if end_offset > engine.start_offset:
            if end_offset == engine.end_offset:
                self.roll(wall_ms)
            self.trim(max(end_offset, self._log_start_offset), wall_ms)
        self._retention_due_ms = next_expiry_ms(engine, self.config)

    def is_retention_due(self, wall_ms: int) -> bool:
        """Whether `retain` has to look; a log that is not open is left alone until its oldest segment may expire."""
        return self._engine is not None or ("delete" in self.config.cleanup_policy and wall_ms > self._retention_due_ms)

    def roll(self, wall_ms: int) -> bool:
        """Begin a new segment; False when the active one is empty."""
        engine = self.open()
        assert not self._appends.are_under_way, "no append is under way during a roll"
        if not engine.roll(wall_ms):
            return False
        self._snapshots.take(engine.end_offset, self._producers.snapshot())
        self._appends.has_rolled = True
        return True

    def _begin_at(self, offset: int) -> None:
        self._is_cut()
        self.open().reset(offset)
        self._appends.next_offset = offset
        self._epochs.clear()
        self._producers.clear()
        self._snapshots.clear()

    # ---- flush -------------------------------------------------------------------------------------------

    @property
    def unflushed_messages(self) -> int:
        """Records behind the recovery point."""
        engine = self._engine
        return engine.end_offset - engine.flushed_end_offset if engine is not None else 0

    def is_flush_due(self, wall_ms: int) -> bool:
        """Whether records have waited for `flush.ms`, or too many, or in a segment that is full."""
        if self._engine is None or self._unflushed_since_ms < 0:
            return False
        config = self.config
        return (
            self._appends.has_rolled
            or wall_ms - self._unflushed_since_ms >= config.flush_ms
            or self.unflushed_messages >= config.flush_messages
        )

    def sync_work(self) -> Callable[[], None]:
        """What makes the log durable up to its present end; say `flushed` with that end when it has succeeded."""
        engine = self.open()
        works = [engine.collect_sync().run, self._epochs.collect_write(), self._snapshots.collect_sync()]
        if not self._is_named_durably:
            self._is_named_durably = True
            works.append(names_sync(self._disk, self.directory, self.path))
        self._appends.has_rolled = False
        self._unflushed_since_ms = -1

        def run() -> None:
            try:
                for work in works:
                    if work is not None and not self.is_offline:
                        work()
            except StorageError:
                if not self.is_offline:  # else the log was deleted while the thread was at work
                    raise

        return run

    def flushed(self, end_offset: int) -> None:
        """All before `end_offset` is durable: a sync work made when the log ended there has succeeded."""
        if self._engine is not None:
            self._engine.mark_flushed(end_offset)


__all__ = [
    "AppendInfo", "Checkpoint", "Isolation", "Log", "Origin", "PreparedAppend", "ReadInfo",
]  # fmt: skip
