"""The life of one partition's log: known, being opened, open, durable, closed, offline.

RULES    1. A log opens nothing before it is first used; recovery happens then, if it must. What needs no opening:
            names, settings, the checkpointed figures.
         2. Who may not wait for the disk says `may_block=False` and may be told WouldBlock (would_block.py); a thread
            opens the log then, once for all who asked.
         3. Changes of files that need not be made at once are counted until they are made (deferred_file_ops.py).
         4. The recovery point moves only by `flushed`: all before it, and the epochs up to it, are durable then.
         5. After a StorageError the log directory goes offline (`go_offline`); from then on every use is refused with
            KAFKA_STORAGE_ERROR.
NOT HERE What one does with an open log (log.py), what opening has to mend (recovery.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from storage.config.log_config import LogConfig
from storage.engine import Engine, EngineFactory
from storage.io.checkpoint_file import PARTITION_METADATA, CorruptCheckpoint, read_topic_id, write_topic_id
from storage.io.deferred_file_ops import Change, Later, at_once
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_space import ROOMY
from storage.io.flush_task import SEGMENTS_AT_A_TIME, Sync
from storage.io.path_guard import ALONE
from storage.io.would_block import WouldBlock
from storage.log.append_pipeline import Appends
from storage.log.async_lookup import Elsewhere
from storage.log.leader_epoch_cache import UNDEFINED, LeaderEpochs
from storage.log.producer_snapshots import Snapshots
from storage.log.producer_state import ProducerState
from storage.log.recovery import OpenParts, open_parts

NEVER_CLEANED: Final = -1

_log = logging.getLogger("barnabas.storage")


class Checkpoint(NamedTuple):
    """What is written down of a log from time to time, and known of it before it is opened."""

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    first_dirty_offset: int = NEVER_CLEANED
    """Where the next compaction begins."""


class OpenableLog:
    """A log with its names, settings and files; `Log` is one that can be used."""

    __slots__ = (
        "_appends", "_closed_end", "_disk", "_elsewhere", "_engine", "_engine_factory", "_epoch_to_assign", "_epochs",
        "_high_watermark", "_is_clean", "_is_named_durably", "_is_new", "_log_start_offset", "_opening", "_pending",
        "_producers", "_recovery_point", "_refusal", "_retention_due_ms", "_settling", "_snapshots", "_topic_id",
        "_unflushed_since_ms", "config", "cuts", "directory", "doomed", "first_dirty_offset", "is_being_cleaned",
        "is_offline", "is_spotless", "is_uncleanable", "later", "name", "partition", "path", "room", "settled_end",
        "topic", "visits",
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
            is_new: whether the directory was made just now; its name is not durable yet then, nor perhaps after a kill.
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
        """Makes the changes of files that need not be made at this moment (deferred_file_ops.py)."""
        self.room = ROOMY  # of its directory
        self.visits = ALONE
        """Who is at its files in other threads."""
        self._pending: set[object] = set()  # one for each change handed to `later` and not made yet
        self.doomed: list[tuple[int, list[str]]] = []
        """Files out of use, with the time from which they may be deleted."""
        self._topic_id = topic_id
        self._is_clean = is_clean
        self._is_new = is_new
        self._is_named_durably = not is_new and (is_clean or known.recovery_point > 0)
        self._recovery_point, self._log_start_offset, self._high_watermark, self.first_dirty_offset = known
        self.cuts = 0
        """How often something was taken off its end, or all of it away."""
        self.settled_end = 0
        """All before it is durable, and so is what decides the transactions there."""
        self._settling: dict[int, int] = {}  # what it will be when the sync up to an end has succeeded
        self.is_being_cleaned = self.is_uncleanable = False
        self.is_spotless = False
        """Whether there was nothing to compact when it was closed."""
        self._epoch_to_assign = UNDEFINED
        self._unflushed_since_ms = self._closed_end = -1
        self._retention_due_ms = 0
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
        return f"{type(self).__name__}({self.path!r}, {'open' if self._engine is not None else 'not open'})"

    # ---- life --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it has been used, and so opened (rule 1)."""
        return self._engine is not None

    @property
    def is_untouched(self) -> bool:
        """Whether it was made just now and not used since: it holds nothing, and need not be opened to see that."""
        is_closed = self._engine is None and self._closed_end < 0
        return is_closed and self._is_new and not self.is_offline

    @property
    def needs_recovery(self) -> bool:
        """Whether opening it will scan what lies behind the recovery point."""
        return not self._is_clean

    @property
    def known_topic_id(self) -> bytes | None:
        """The topic's id, if somebody has asked for it before; opens no file."""
        return self._topic_id

    @property
    def topic_id(self) -> bytes | None:
        """The topic's id; None where the partition's metadata file is missing or tells nothing."""
        if self._topic_id is None:
            try:
                self._topic_id = read_topic_id(self._disk, f"{self.path}/{PARTITION_METADATA}")
            except CorruptCheckpoint as error:
                _log.warning("%s The log is taken for that of the topic of its name", error)
        return self._topic_id

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Write down whose log this is, where that is not known."""
        write_topic_id(self._disk, f"{self.path}/{PARTITION_METADATA}", topic_id)
        self._topic_id = topic_id

    def bytes_to_recover(self) -> int:
        """How much opening it will have to check; opens no file."""
        if self._is_clean:
            return 0
        engine = self._new_engine()
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
            self._opening = WouldBlock(self._opener(), partial(self._opened, self.config))
        raise self._opening

    def _opener(self) -> Callable[[], OpenParts]:
        """Closed work that opens what lies on disk."""
        return partial(
            open_parts,
            self._disk,
            self.path,
            self.name,
            self._new_engine(),
            recovery_point=None if self._is_clean else self._recovery_point,
            log_start_offset=self._log_start_offset,
        )

    def _new_engine(self) -> Engine:
        engine = self._engine_factory(self.path, self.config)
        engine.compacted_end = self.first_dirty_offset
        return engine

    def _opened(self, config: LogConfig, parts: OpenParts | KafkaError) -> None:
        self._opening = None
        if isinstance(parts, KafkaError):
            self._refusal = parts
        elif not self.is_offline:
            engine = self._adopt(parts)
            if self.config is not config:
                engine.update_config(self.config)

    def _adopt(self, parts: OpenParts) -> Engine:
        engine, self._epochs, self._producers, self._snapshots, self._log_start_offset, doomed = parts
        self._appends = Appends(self.name, parts, self.config)
        self.settled_end = self._undecided_from(engine) if engine.flushed_end_offset == engine.end_offset else 0
        self._settling = {}
        self._engine = engine
        engine.later = self._snapshots.later = self.change
        self._is_clean = True
        if doomed:
            self.doomed.append((0, doomed))
        engine.enter_service()
        self.is_spotless = False
        self.high_watermark = self._high_watermark
        if self._epoch_to_assign != UNDEFINED:
            self._epochs.assign(self._epoch_to_assign, engine.end_offset)
            self._epoch_to_assign = UNDEFINED
        return engine

    def _undecided_from(self, engine: Engine) -> int:
        undecided = self._producers.first_undecided_offset
        return engine.end_offset if undecided is None else undecided

    @property
    def is_busy(self) -> bool:
        """Whether it is better left alone at this moment: others are at its files, or it is offline."""
        return self.is_in_use_elsewhere or self.is_changing

    @property
    def is_in_use_elsewhere(self) -> bool:
        """Whether somebody else is at its files, or it is offline."""
        return self.is_offline or self._opening is not None or self.is_being_cleaned

    @property
    def is_changing(self) -> bool:
        """Whether changes of its files are still to be made."""
        return bool(self._pending)

    def change(self, change: Change, later: Later | None = None) -> None:
        """Make a change of its files, now or later (deferred_file_ops.py)."""
        pending = object()
        self._pending.add(pending)
        (later or self.later)(partial(self._make_change, change, pending))

    def visit(self, work: Change) -> None:
        """Do something at its files by their names, in any thread; nothing when it is offline or was deleted."""
        self.visits.visit(self, work)

    def _make_change(self, change: Change, pending: object) -> None:
        try:
            self.visit(change)
        except StorageError as error:
            if not self.is_offline:  # else the directory failed, or the log was deleted meanwhile
                if not error.is_full:  # else it is made again
                    self._pending.discard(pending)
                raise
        self._pending.discard(pending)

    def close(self, *, sync: bool = True) -> None:
        """Close so that it can be opened again without recovery.

        With `sync` that holds after a loss of power too; without, when somebody has synced the whole file system,
        says `vouch` and syncs it again.
        """
        engine = self._engine
        if engine is None:
            return
        assert not self._appends.are_under_way, "appends are committed or aborted before a close"
        assert not self._pending, "changes of files are made before a close"
        engine.later = self._snapshots.later = at_once
        self._closed_end = end_offset = engine.end_offset
        if end_offset and not self._snapshots.has(end_offset):
            self._snapshots.take(end_offset, self._producers.snapshot(), sync=sync)
        if sync:
            self._sync_all()
            self._epochs.write()
        else:
            self._epochs.write_beside()
        self._recovery_point = end_offset if sync else engine.recovery_point
        engine.close(sync=sync)
        self._let_go()

    def _sync_all(self) -> None:
        """Make it durable now, some segments at a time."""
        is_complete = False
        while not is_complete:
            work = self.sync_work(SEGMENTS_AT_A_TIME)
            work()
            self.flushed(work.end_offset)
            is_complete = work.is_complete

    @property
    def is_closed_unsynced(self) -> bool:
        """Whether it was used and let go of, so that what was written then may not be durable."""
        return self._engine is None and self._closed_end >= 0

    def vouch(self) -> None:
        """What was closed without a sync is durable now, and gets its names."""
        if self._closed_end >= 0:
            self._epochs.put_in_place()
            self._recovery_point = self._closed_end

    def release(self) -> bool:
        """Close without a sync, to be opened at the next use; False while anything is unflushed, unwritten or under way,
        there is no room for what is written then, or it is offline.
        """
        if self._engine is not None:
            if self._appends.are_under_way or self._pending or self.unflushed_messages:
                return False
            if self.recovery_point < self._engine.segments()[-1].base_offset:
                return False
            epochs = self._epochs.collect_write()
            if epochs is not None:
                self.change(epochs)
            if self._pending:
                return False
            try:
                self.close(sync=False)
            except StorageError as error:
                if not error.is_full:
                    raise
                self._closed_end = -1
                self._engine.later = self._snapshots.later = self.change
                return False
        return not self.is_offline

    def go_offline(self) -> None:
        """Refuse every use from now on, and write nothing any more."""
        self.is_offline = True
        self._opening = None  # else what the thread opens would keep itself
        if self._engine is not None:
            self._appends.give_up()
            self._let_go()

    def _let_go(self) -> None:
        if self._engine is not None:
            self._engine.later = self._snapshots.later = at_once  # else the log and its parts would keep each other
            self._engine.leave_service()
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
        self.is_spotless = False
        self._retention_due_ms = 0
        if self._engine is not None:
            self._engine.update_config(config)
            self._appends.obey(config)

    # ---- what is known without opening ------------------------------------------------------------------

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
        return Checkpoint(self.recovery_point, self._log_start_offset, self._high_watermark, self.first_dirty_offset)

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

    def sync_work(self, most: int | None = None) -> Sync:
        """What makes the log durable up to its present end; say `flushed` with that end when it has succeeded.

        `most`: of so many segments, the oldest first, which need not be all.
        """
        engine = self.open()
        snapshots, epochs = self._snapshots.collect_sync(most), self._epochs.collect()
        end_offset, files, is_complete = engine.collect_sync(most)
        is_complete = is_complete and self._snapshots.are_synced
        if end_offset == engine.end_offset:  # else what decides a transaction before it may lie behind it
            self._settling[end_offset] = self._undecided_from(engine)
        if is_complete:  # else another is due
            self._appends.has_rolled = False
            self._unflushed_since_ms = -1
        work = self._sync_of(files, snapshots, epochs)
        work.end_offset, work.is_complete = end_offset, is_complete
        return work

    def _sync_of(
        self, files: Sequence[File] = (), snapshots: Sequence[File] = (), epochs: Sequence[tuple[str, bytes]] = ()
    ) -> Sync:
        """A sync of these, and of what makes durable that there is this log, and whose it is, until it is."""
        names, written = [self.path] if snapshots or epochs else [], []
        if not self._is_named_durably:
            names, written = [self.path, self.directory], [f"{self.path}/{PARTITION_METADATA}"]
        # Not wanted any more: the directory failed, or the log was deleted while the thread was at work.
        is_wanted = lambda: not self.is_offline  # noqa: E731
        return Sync(
            self._disk, [*files, *snapshots], is_wanted, replaced=epochs, written=written, names=names, visit=self.visit
        )

    def _be_named_durably(self) -> None:
        """Now, and nothing else."""
        if not self._is_named_durably:
            self._sync_of()()
            self._is_named_durably = True

    def flushed(self, end_offset: int) -> None:
        """All before `end_offset` is durable: a sync work made when the log ended there has succeeded."""
        self._is_named_durably = True
        if self._engine is not None:
            self._engine.mark_flushed(end_offset)
            self.settled_end = max(self.settled_end, self._settling.pop(end_offset, 0))
