"""Product limits that a simulation would not reach, lowered so that the code behind them runs.

NOT HERE The open-file limit (simulator.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType

import storage.commitlog.commit_log_engine
import storage.commitlog.run_choice
import storage.commitlog.run_file
import storage.compaction.cleaner
import storage.directories.log_directory
import storage.directories.log_manager
import storage.log.log_flush
import storage.log.recovery
import storage.log.retention
import storage.segments.active_segment
import storage.segments.durability
import storage.segments.indexes
import storage.segments.segment_engine
import storage.segments.segment_files

_LIMITS: tuple[tuple[tuple[tuple[ModuleType, str], ...], int], ...] = (
    (((storage.segments.indexes, "WARM_BYTES"),), 24),
    (((storage.segments.indexes, "_SURPLUS_ENTRIES"),), 1),
    (((storage.segments.indexes, "_PENDING_ENTRIES"),), 2),
    (((storage.segments.active_segment, "_RECENT_BATCHES"),), 1),
    (((storage.segments.active_segment, "_RECOVERY_READ_BYTES"),), 150),
    (((storage.segments.segment_files, "FIRST_READ_BYTES"),), 100),
    (((storage.segments.segment_files, "LONG_READ_BYTES"),), 150),
    (((storage.commitlog.run_choice, "SETTLED_FILES"),), 2),
    (((storage.commitlog.run_file, "FRAME_BYTES"),), 400),
    (((storage.commitlog.run_file, "_STEP_BYTES"),), 150),
    (((storage.log.recovery, "REPLAY_BYTES"),), 150),
    (((storage.log.recovery, "RECALLED_BYTES"),), 150),
    (((storage.commitlog.commit_log_engine, "_SNAPSHOT_RECORDS"),), 2),
    (((storage.commitlog.commit_log_engine, "_MAX_RECORDS"),), 6),
    (((storage.commitlog.commit_log_engine, "_RECOVERED_BYTES"),), 150),
    (((storage.directories.log_manager, "LAZY_RECOVERY_BYTES"),), 300),
    (((storage.directories.log_directory, "SYNCED_ONE_BY_ONE"),), 0),
    (((storage.log.log_flush, "SEGMENTS_AT_A_TIME"),), 1),
    (((storage.log.retention, "MAX_SEGMENTS_PER_PASS"),), 1),
    (((storage.segments.segment_engine, "SEGMENTS_AT_A_TIME"),), 1),
    (((storage.segments.durability, "TRIMMED_FILES"),), 1),
    (((storage.compaction.cleaner, "MAX_REPLACED"),), 2),
)
"""Each where it is looked up, with a value that is small for it."""


@contextmanager
def small_limits(random: Random) -> Iterator[None]:
    """Lower some of the limits, none, or all."""
    share = random.choice((0.0, 0.5, 1.0))
    before: list[tuple[ModuleType, str, int]] = []
    for targets, value in _LIMITS:
        if random.random() < share:
            for module, name in targets:
                before.append((module, name, getattr(module, name)))
                setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
