"""The summary of a cleanly closed log: with it the next open reads no file.

FORMAT   `stamp`: inode, size and ctime of the partition's directory and of the active segment's files (Engine.stamp).
         `body`: a JSON array of
             0  the engine's summary (segments, the active segment's end, timestamps and last index entries)
             1  leader epochs, 2  their start offsets
             3  offsets of the producer snapshots
             4  for each producer the fields of its entry and of its last batches
RULES    1. A close makes the summary, the log manager adds the stamp when everything is durable, and the next open uses the
            summary only if the stamp is still that of the files: Apache Kafka, a restored backup or an operator may have
            changed them.
         2. A log has no summary if its next open has work to do (files to delete), or if the summary would be long.
NOT HERE The file with the summaries of a log directory (directories/summary_file.py). Why: docs/decisions/0061-log-summaries.md
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from storage.engine import Engine
from storage.io.checkpoint_file import LEADER_EPOCHS
from storage.io.disk import Disk
from storage.log.leader_epoch_cache import LeaderEpochCache
from storage.log.producer_snapshots import ProducerSnapshots
from storage.log.producer_state import ProducerState
from storage.log.recovery import RecoveredLog, open_log

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode

_MAX_EPOCHS: Final = 64
_MAX_PRODUCERS: Final = 32


class LogSummary(NamedTuple):
    """The summary of a closed log."""

    stamp: str
    """Empty until the files are durable."""
    body: str


def summarize(
    engine: Engine, epochs: LeaderEpochCache, producers: ProducerState, snapshots: ProducerSnapshots
) -> LogSummary | None:
    """The summary of a log that was closed just now; None if it has none (rule 2)."""
    summary, entries = engine.summary(), epochs.entries()
    if summary is None or len(entries) > _MAX_EPOCHS or len(producers.producers) > _MAX_PRODUCERS:
        return None
    known = [epoch for epoch, _ in entries], [offset for _, offset in entries]
    return LogSummary("", _encode([summary, *known, snapshots.offsets, producers.summary()]))


def stamped(summary: LogSummary, new_engine: Callable[[], Engine]) -> LogSummary:
    """The summary with its stamp: all files of the log are durable."""
    return summary if summary.stamp else LogSummary(new_engine().stamp(_decode(summary.body)[0][0]), summary.body)


def open_with_summary(
    disk: Disk,
    directory: str,
    name: str,
    new_engine: Callable[[], Engine],
    summary: LogSummary | None,
    *,
    recovery_point: int | None,
    log_start_offset: int,
) -> RecoveredLog:
    """Open the log from its summary if that is valid, else from its files (`open_log`)."""
    if summary is not None and summary.stamp:
        parts = _reopen(disk, directory, name, new_engine(), summary, log_start_offset)
        if parts is not None:
            return parts
    return open_log(disk, directory, name, new_engine, recovery_point=recovery_point, log_start_offset=log_start_offset)


def _reopen(
    disk: Disk, directory: str, name: str, engine: Engine, summary: LogSummary, log_start_offset: int
) -> RecoveredLog | None:
    """Open the log that `summary` describes; None if the files were changed since."""
    (engine_summary, epochs, start_offsets, snapshot_offsets, known_producers), _ = _decode(summary.body)
    if engine.stamp(engine_summary) != summary.stamp:
        return None
    engine.reopen(engine_summary)
    if engine.end_offset < log_start_offset:
        return None
    cache = LeaderEpochCache(disk, f"{directory}/{LEADER_EPOCHS}", (epochs, start_offsets))
    producers = ProducerState(name)
    if known_producers:
        producers.resume(known_producers)
    log_start_offset = max(log_start_offset, engine.start_offset)
    cache.trim(log_start_offset)
    snapshots = ProducerSnapshots(disk, directory, snapshot_offsets)
    return RecoveredLog(engine, cache, producers, snapshots, log_start_offset, [])
