"""Archives topics as Parquet, Delta or Iceberg, exactly once. The manifest is the only state that a restart needs.

RULES    1. A round reads fixed offsets, stages files, and commits files and offsets with one rename (`store/publish.py`). A
            Delta or Iceberg table accepts a round once (`store/lakes.py`). A killed run has committed a round or has not.
         2. There is no checkpoint: the next round starts at the manifest's end offsets.
         3. An archive belongs to one cluster. Topics may be added. Each run must name all archived topics.
         4. Written records are read back. Their counts and checksums go into the manifest, for the audit.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from barnabas.client.errors import BAD_EXPRESSION
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span, Topic
from barnabas.pipeline.datetimes import now
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.archive.compaction import compact
from barnabas.pipeline.jobs.archive.sinks import open_sink
from barnabas.pipeline.jobs.data_files import isolated_session, with_day
from barnabas.pipeline.jobs.dead_letters import send_dead_letters
from barnabas.pipeline.jobs.round_changes import check_not_replaced, skipping_deleted_records
from barnabas.pipeline.jobs.rounds import ContinuousSettings, StartPosition, plan_round, start_positions
from barnabas.pipeline.jobs.trim import trim
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import OnStep
from barnabas.pipeline.settings import as_tuple, setting
from barnabas.pipeline.spark.value_decoding import Decoding, check_decoding, choose_decoding, decode, decoded_fields
from barnabas.pipeline.store.archive_reader import SCHEMA
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.lakes import SINK_FORMATS
from barnabas.pipeline.store.manifest import Entry, Manifest, Range, Total
from barnabas.pipeline.store.publish import recover


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings(ContinuousSettings):
    """Settings of `archive`."""

    into: Path = setting("The folder of the archive.", metavar="FOLDER")
    topic: tuple[str, ...] = setting("A topic; may be repeated.", (), metavar="NAME")
    pattern: str | None = setting("All topics whose full name matches this regular expression.", None)
    format: str | None = setting(
        "The format of the archive: parquet, delta or iceberg.  [default: parquet for a new archive]", None
    )
    decode: str | None = setting("How values are decoded: raw, json or avro.  [default: raw for a new archive]", None)
    schema: Path | None = setting("The schema of the values; JSON without one is inferred.", None, metavar="FILE")
    framing: str | None = setting(
        "How Avro is framed: plain, or confluent (a magic byte and a schema id before it).  "
        "[default: plain for a new archive]",
        None,
    )
    dead_letters: str | None = setting("The topic to which malformed records are sent.", None, metavar="TOPIC")
    compact_above: int = setting("Compact a day that has more small files than this; 0 is never.", 16)
    trim: bool = setting("Delete the records on the broker that the last audit has verified.", False)
    group: str | None = setting("The consumer group that shows the progress.  [default: barnabas-archive-<id>]", None)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            matches = re.compile("" if self.pattern is None else self.pattern).fullmatch
        except BAD_EXPRESSION as failure:
            raise JobError(f"--pattern {self.pattern!r} is not a regular expression: {failure}.") from failure
        letters = self.dead_letters
        if letters and (letters in as_tuple(self.topic) or matches(letters)):  # the topic may not exist yet
            raise JobError(f"{letters} is archived itself: choose another topic for the dead letters.")
        if self.trim and self.continuous:
            raise JobError("--trim and --continuous exclude each other: trim in another run, after an audit.")


@dataclass
class ArchiveReport:
    """The result of a run."""

    archive: str
    rounds: int = 0
    records: int = 0
    bytes: int = 0
    """Of the written Parquet files; 0 for tables."""
    malformed: int = 0
    dead_letters: int = 0
    compacted: int = 0
    """The number of files that compaction replaced."""
    trimmed: int = 0
    """The number of partitions in which records were deleted on the broker."""
    seconds: float = 0.0
    behind: int = 0
    """Committed offsets that were not archived yet after the last round."""


def archive(spark: SparkSession, settings: ArchiveSettings, on_step: OnStep = lambda _: None) -> ArchiveReport:
    """Archives the topics up to their current ends; with `continuous`, until it is interrupted.

    Raises JobError for settings that contradict the archive, and for lost or replaced topics.
    """
    if not settings.topic and settings.pattern is None:
        raise JobError("archive needs --topic or --pattern: the topics to archive.")
    settings = replace(settings, topic=as_tuple(settings.topic))
    brokers = Brokers(settings)
    cluster = brokers.cluster_id()
    topics = brokers.find_topics(settings.topic, settings.pattern)  # before the folder is created
    if settings.format not in (None, *SINK_FORMATS):
        raise JobError(f"--format takes {', '.join(SINK_FORMATS)}, not {settings.format}.")
    folder = ArchiveFolder(settings.into)
    session = isolated_session(spark)
    with folder.lock():
        if not folder.exists():
            folder.create(cluster, asdict(_decoding(session, settings, brokers, topics)), settings.format or PARQUET)
        metadata = folder.metadata()
        if metadata.cluster != cluster:
            raise JobError(f"{folder.path} is the archive of another cluster ({metadata.cluster}, not {cluster}).")
        where, decoding = f"The archive {folder.path}", Decoding(**metadata.decoding)
        check_decoding(where, decoding, settings.decode, settings.schema, settings.framing)
        if settings.format not in (None, metadata.sink):
            raise JobError(
                f"{where} was created with --format {metadata.sink}: use another folder for {settings.format}."
            )
        run = _Run(session, settings, brokers, folder, on_step)
        try:
            return run.run_until_stopped() if settings.continuous else run.catch_up()
        except BaseException:
            recover(folder)  # frees the staged files at once, for example on a full disk
            raise


def _decoding(spark: SparkSession, settings: ArchiveSettings, brokers: Brokers, topics: dict[str, Topic]) -> Decoding:
    """The decoding of a new archive. A missing schema is inferred from the first records."""
    spans = brokers.spans(topics.values())
    positions = {tp: StartPosition(span.start) for tp, span in spans.items()}
    ends = {tp: span.end for tp, span in spans.items()}
    first = read_spans(spark, settings, plan_round(positions, ends, settings.max_offsets_per_trigger))
    return choose_decoding(spark, settings.decode or "raw", settings.schema, settings.framing, first)


@dataclass
class _Run:
    """One run of the job."""

    spark: SparkSession
    settings: ArchiveSettings
    brokers: Brokers
    folder: ArchiveFolder
    on_step: OnStep

    def __post_init__(self) -> None:
        self._manifest: Manifest = recover(self.folder)
        self._sink = open_sink(self.spark, self.folder)
        metadata = self.folder.metadata()
        self._decoding = Decoding(**metadata.decoding)
        self._name = f"barnabas-archive-{metadata.id}"
        self._group = self.settings.group or self._name
        self._started = time.monotonic()
        self._report = ArchiveReport(str(self.folder.path))

    def catch_up(self) -> ArchiveReport:
        """Runs rounds up to the topics' current ends."""
        topics = self._topics()
        ends = self.brokers.end_offsets(topics)
        while self._round(topics, ends):
            pass
        self._compact_all()
        if self.settings.trim:
            trimmed = trim(self.brokers, self.folder, self._manifest, {topic.name: topic for topic in topics.values()})
            self._report.trimmed = len(trimmed)
        return self._finish()

    def run_until_stopped(self) -> ArchiveReport:
        """Runs rounds until KeyboardInterrupt."""
        try:
            while True:
                topics = self._topics()
                if not self._round(topics, self.brokers.end_offsets(topics)):
                    self._compact_all()
                    time.sleep(self.settings.interval)
        except KeyboardInterrupt:
            recover(self.folder)
            return self._finish()

    def _compact_all(self) -> None:
        """Compacts as long as a day has too many small files."""
        above = self.settings.compact_above
        schema = SCHEMA + decoded_fields(self.spark, self._decoding)
        while above and (entry := compact(self.spark, self.folder, self._manifest, above, schema)):
            self._report.compacted += len(entry.replaces)
            self.on_step({"round": entry.sequence, "compacted_files": len(entry.replaces), "files": len(entry.files)})

    def _finish(self) -> ArchiveReport:
        self._report.seconds = time.monotonic() - self._started
        return self._report

    def _topics(self) -> dict[TopicPartition, Topic]:
        found = self.brokers.find_topics(self.settings.topic, self.settings.pattern)
        unnamed = sorted(self._manifest.topic_ids().keys() - found.keys())
        if unnamed:
            raise JobError(
                f"The archive {self.folder.path} also holds {', '.join(unnamed)}: "
                "name all its topics, or use another folder."
            )
        return {tp: topic for topic in found.values() for tp in topic.topic_partitions()}

    def _round(self, topics: dict[TopicPartition, Topic], ends: dict[TopicPartition, int]) -> bool:
        """Runs one round. Returns False if there is nothing to read and each partition is in the manifest."""
        read, ids = self._manifest.end_offsets(), self._manifest.topic_ids()
        positions = start_positions(self.settings, topics, read, ids, self.brokers.beginning_offsets(topics), ends)
        self._commit_progress()
        interrupted_round = self._sink.interrupted_round(positions, self._manifest.next_sequence)
        spans = interrupted_round or plan_round(positions, ends, self.settings.max_offsets_per_trigger)
        if not spans and positions.keys() <= self._manifest.ranges.keys():
            return False
        started = time.monotonic()
        with skipping_deleted_records(
            self.settings, spans, lambda: self.brokers.beginning_offsets(spans), lambda: recover(self.folder)
        ):
            entry = self._write(spans, positions, topics)
            check_not_replaced(self.brokers, {topics[tp] for tp in spans})
            self._sink.commit(self._manifest, entry)
            archived_ends = self._manifest.end_offsets()
            behind = sum(end - archived_ends[tp] for tp, end in ends.items())
            self._report_round(entry, behind, time.monotonic() - started)
        return True

    def _commit_progress(self) -> None:
        """Commits the offsets of the previous round for the consumer group, which makes the lag visible, also after a crash."""
        if self._manifest.ranges:
            self.brokers.commit(self._group, self._manifest.end_offsets())

    def _write(
        self,
        spans: dict[TopicPartition, Span],
        positions: dict[TopicPartition, StartPosition],
        topics: dict[TopicPartition, Topic],
    ) -> Entry:
        sequence = self._manifest.next_sequence
        records = decode(read_spans(self.spark, self.settings, spans), self._decoding)
        written = self._sink.write(with_day(records), sequence, spans)
        sent_letters = 0
        if written.malformed and self.settings.dead_letters is not None:
            group = f"{self._name}-dead-letters"  # not --group: another group would send the letters again
            sent_letters = send_dead_letters(
                written.records, self.brokers, self.settings.dead_letters, group, len(spans)
            )
        empty = {tp: Span(at.start, at.start) for tp, at in positions.items() if tp not in self._manifest.ranges}
        return Entry(
            sequence,
            "append",
            now(),
            tuple(
                _range(tp, span, positions[tp], topics[tp], written.totals.get(tp, Total()))
                for tp, span in sorted({**empty, **spans}.items())
            ),
            written.files,
            malformed=written.malformed,
            dead_letters=sent_letters,
            dead_letters_topic=(self.settings.dead_letters or "") if sent_letters else "",
        )

    def _report_round(self, entry: Entry, behind: int, seconds: float) -> None:
        records, size = sum(read.count for read in entry.ranges), sum(file.bytes for file in entry.files)
        self._report.rounds += 1
        self._report.records += records
        self._report.bytes += size
        self._report.malformed += entry.malformed
        self._report.dead_letters += entry.dead_letters
        self._report.behind = behind
        self.on_step(
            {
                "round": entry.sequence,
                "records": records,
                "bytes": size,
                "files": len(entry.files),
                "seconds": round(seconds, 3),
                "behind": behind,
                **({"malformed": entry.malformed, "dead_letters": entry.dead_letters} if entry.malformed else {}),
            }
        )


def _range(tp: TopicPartition, span: Span, position: StartPosition, topic: Topic, total: Total) -> Range:
    return Range(
        tp.topic, topic.id, tp.partition, span.start, span.end, total.records, total.checksum, position.lost_before
    )
