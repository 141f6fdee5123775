"""The I/O threads: queues, writes off the event loop, rounds of group commit.

RULES    1. A log directory is the label `directory`.
NOT HERE The threads (`broker/io/`).
"""

from __future__ import annotations

from broker.io.io_thread_pool import IoThreadPool
from broker.process.histograms import Distribution
from broker.telemetry.families import Families, counters, gauges, histogram, label_text, summary


class IoMetrics:
    """The families of the I/O threads."""

    def __init__(self, io: IoThreadPool) -> None:
        self._io = io

    def families(self) -> Families:
        """Queues, writes, rounds."""
        yield gauges(
            "barnabas_io_queue_jobs",
            "Jobs of I/O threads that are not done.",
            [
                (label_text(("kind", kind), ("directory", directory)), jobs)
                for kind, directory, jobs in self._io.queues()
            ],
        )
        yield counters(
            "barnabas_appends_off_loop",
            "Writes that a thread made because the directory was slow, busy or unused for a second.",
            [(label_text(("directory", directory)), count) for directory, count in self._io.thread_writes().items()],
        )
        commits = self._io.group_commits()
        rounds = Distribution([commit.rounds for some in commits.values() for commit in some])
        yield summary("kafka_log_logflushstats_logflushrateandtimems", "Milliseconds of flushes.", [((), rounds)])
        yield counters(
            "barnabas_group_commit_flushes",
            "Flushes of logs in rounds of group commit.",
            [
                (label_text(("directory", directory)), sum(commit.flushes for commit in some))
                for directory, some in commits.items()
            ],
        )
        yield histogram(
            "barnabas_group_commit_round_seconds",
            "Seconds that rounds of group commit take.",
            [
                ((("directory", directory),), Distribution([commit.rounds for commit in some]))
                for directory, some in commits.items()
            ],
        )
