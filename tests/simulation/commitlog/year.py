"""A simulated year of a commit log with mixed retentions: python -m tests.simulation.commitlog.year

TOPICS    Each day the topics of `RETENTION_DAYS` get an equal share of the bytes, in batches of 1 KiB that alternate. A topic
          is kept for its number of days, as by retention; that with 0 days is a queue, whose records are deleted every hour.
          One topic is deleted and created again each month. All partitions share one commit log.
TIME      Model time; a cleaning pass every hour, as far as it is worth it (storage/commitlog/run_choice.py); with and without
          settling after it.
SCALE     Files have 128 KiB instead of 256 MiB, and two are filled each day: a year is 730 files.
FIGURES   Write amplification: bytes written, appended or copied, for each byte appended; the part of settling. Dead share: dead
          bytes of all bytes in sealed files, the mean and the greatest of the days after the first 30. Delay: from the
          deletion of a batch until it is no longer on the disk; the mean (dead bytes over time, divided by deleted bytes), and
          the greatest.
Decisions 0101 and 0108 quote them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from storage.commitlog.cleaner import Cleaner
from storage.commitlog.commit_log import CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.slots import SlotId
from storage.config.log_config import LogConfig
from tests.support.model_time_disk import ModelTimeDisk
from tests.support.segments import append, batch

HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS
RETENTION_DAYS: Final = (0, 1, 3, 7, 30, 90, 365)
MAX_DEAD_DAYS: Final = (7, 30, 365)
FILE_BYTES: Final = 128 * 1024
BATCH_BYTES: Final = 1024
_WARM_DAYS: Final = 30
_HOURS: Final = 24


@dataclass
class Topic:
    """A partition and its retention."""

    engine: CommitLogEngine
    days: int
    ends: deque[int] = field(default_factory=deque)
    """The end offset at each of the last midnights."""

    def retain(self) -> None:
        """Delete what is older than the retention, at midnight."""
        self.engine.roll(0)
        self.ends.append(self.engine.end_offset)
        if len(self.ends) > self.days:
            self.engine.trim(self.ends.popleft())


@dataclass
class Figures:
    """What was measured."""

    appended: int = 0
    dead_hours: float = 0
    """Dead bytes times hours."""
    max_delay_ms: int = 0
    shares: list[float] = field(default_factory=list)


class Year:
    """The commit log over a year."""

    def __init__(self, root: str, max_dead_days: int, *, is_settling: bool) -> None:
        self._disk = ModelTimeDisk(0)
        self._log = CommitLog(self._disk, root, random_bytes=os.urandom, new_lock=nullcontext, file_bytes=FILE_BYTES)
        self._cleaner = Cleaner(self._disk, self._log, max_dead_ms=max_dead_days * DAY_MS)
        self._root = root
        self._is_settling = is_settling
        self._topics = [self._topic(number, days) for number, days in enumerate(RETENTION_DAYS)]
        self._monthly = self._topic(100, 365)
        self.figures = Figures()

    def _topic(self, number: int, days: int) -> Topic:
        slot_id = SlotId(number.to_bytes(16, "big"), 0)
        config = LogConfig(segment_bytes=1 << 30, segment_ms=1 << 60)
        engine = CommitLogEngine(self._log, slot_id, self._root, config)
        engine.open(None)
        return Topic(engine, days)

    def run(self, days: int) -> None:
        """Append, retain and clean."""
        topics = [*self._topics, self._monthly]
        a_topic_and_hour = 2 * FILE_BYTES // BATCH_BYTES // _HOURS // len(topics) + 1
        for day in range(days):
            for hour in range(_HOURS):
                self._disk.now_ms = day * DAY_MS + hour * HOUR_MS
                for topic in topics * a_topic_and_hour:
                    append(topic.engine, batch(topic.engine.end_offset, size=BATCH_BYTES))
                    self.figures.appended += BATCH_BYTES
                queue = topics[0].engine
                queue.roll(0)
                queue.trim(queue.end_offset)
                self._clean()
            for topic in topics[1:]:
                topic.retain()
            if day % 30 == 29:
                self._log.drop(self._log.slot(SlotId((100 + day // 30).to_bytes(16, "big"), 0)))
                self._monthly = topics[-1] = self._topic(101 + day // 30, 365)
            self._measure(day)

    def _clean(self) -> None:
        self._cleaner.begin_pass(self._disk.now_ms)
        for _ in self._cleaner.clean(self._disk.now_ms):
            pass
        if self._is_settling:
            for _ in self._cleaner.settle(self._disk.now_ms):
                pass
        self.figures.dead_hours += self._cleaner.metrics.dead_bytes

    def _measure(self, day: int) -> None:
        metrics, figures = self._cleaner.metrics, self.figures
        since = [space.dead_since_ms for space in self._cleaner._space.spaces if space.dead_since_ms is not None]
        figures.max_delay_ms = max(figures.max_delay_ms, self._disk.now_ms - min(since, default=self._disk.now_ms))
        if day >= _WARM_DAYS:
            figures.shares.append(metrics.dead_bytes / (metrics.live_bytes + metrics.dead_bytes))

    def row(self, max_dead_days: int) -> list[str]:
        """One row of the table."""
        figures, metrics = self.figures, self._cleaner.metrics
        live = metrics.live_bytes
        deleted = figures.appended - live
        return [
            str(max_dead_days),
            "yes" if self._is_settling else "no",
            f"{1 + (metrics.copied_bytes + metrics.settled_bytes) / figures.appended:.2f}",
            f"{metrics.settled_bytes / figures.appended:.2f}",
            f"{100 * statistics.mean(figures.shares):.0f} %",
            f"{100 * max(figures.shares):.0f} %",
            f"{figures.dead_hours / deleted / _HOURS:.1f}",
            f"{figures.max_delay_ms / DAY_MS:.1f}",
            str(metrics.runs),
            str(len(self._log.files)),
        ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("year", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--folder", help="where the log is written; a file system in memory makes it short")
    options = parser.parse_args()
    print(
        "| max.dead.ms, days | settled | write amplification | by settling | dead share, mean | most | delay, days, mean "
        "| most | runs | files |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for max_dead_days, is_settling in product(MAX_DEAD_DAYS, (False, True)):
        with tempfile.TemporaryDirectory(dir=options.folder) as root:
            year = Year(root, max_dead_days, is_settling=is_settling)
            year.run(options.days)
            print(f"| {' | '.join(year.row(max_dead_days))} |", flush=True)


if __name__ == "__main__":
    main()
