"""Topics to Parquet, Delta or Iceberg, exactly once: the manifest says what is archived, and is all that a restart needs.

RULES    1. A round reads fixed offsets, stages files, and commits files and offsets with one rename (`store/publish.py`);
            a table of Delta or Iceberg takes it once (`store/lakes.py`).
            Whoever is killed at any moment has either committed a round or not begun it.
         2. There is no checkpoint beside the archive: the next round starts where the manifest ends.
         3. An archive is one cluster's. Topics may join it later; a run must name all that it holds already.
         4. What is written is read back, and its counts and checksums go into the manifest: the audit starts from there.
NOT HERE Decoding (`decoding.py`), what a round writes (`sinks.py`), compaction (`compaction.py`), trimming (`trim.py`).
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from barnabas.pipeline.brokers import Brokers, Place, Span, Topic
from barnabas.pipeline.datetimes import now
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.archive.compaction import compact
from barnabas.pipeline.jobs.archive.sinks import Total, keeper_of
from barnabas.pipeline.jobs.data_files import own_session, with_day
from barnabas.pipeline.jobs.dead_letters import send_letters
from barnabas.pipeline.jobs.rounds import RoundSettings, Waiting, plan_round, where_to_start
from barnabas.pipeline.jobs.trim import trim
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import Tell
from barnabas.pipeline.settings import setting, texts
from barnabas.pipeline.spark.value_decoding import Decoding, decode, decoded_fields, is_begun_with, settle_decoding
from barnabas.pipeline.store.archive_reader import SCHEMA
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.lakes import SINKS
from barnabas.pipeline.store.manifest import Entry, Manifest, Range
from barnabas.pipeline.store.publish import recover


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings(RoundSettings):
    """What `archive` is told."""

    into: Path = setting("The folder of the archive.", metavar="FOLDER")
    topic: tuple[str, ...] = setting("A topic; may be repeated.", (), metavar="NAME")
    pattern: str | None = setting("All topics whose whole name matches this regular expression.", None)
    continuous: bool = setting("Go on until stopped, instead of ending with what is there now.", False)
    interval: float = setting("With --continuous: seconds between two looks at the topics.", 10.0)
    format: str | None = setting(
        "What the archive is kept in: parquet, delta or iceberg.  [default: as before, else parquet]", None
    )
    decode: str | None = setting("How values are decoded: raw, json or avro.  [default: as before, else raw]", None)
    schema: Path | None = setting("The schema of the values; JSON without one is inferred.", None, metavar="FILE")
    framing: str = setting("How Avro is framed: plain, or confluent (a magic byte and a schema id before it).", "plain")
    dead_letters: str | None = setting("The topic that malformed records are sent to.", None, metavar="TOPIC")
    compact_above: int = setting("A day with more small files than this gets them put together; 0 is never.", 16)
    trim: bool = setting("Delete on the broker what the last audit has verified.", False)
    group: str | None = setting("The consumer group that shows the progress.  [default: barnabas-archive-<id>]", None)


@dataclass
class ArchiveReport:
    """What a run did."""

    archive: str
    rounds: int = 0
    records: int = 0
    bytes: int = 0
    malformed: int = 0
    dead_letters: int = 0
    compacted: int = 0
    trimmed: int = 0
    seconds: float = 0.0
    behind: int = 0


def archive(spark: SparkSession, settings: ArchiveSettings, tell: Tell = lambda _: None) -> ArchiveReport:
    """Archive what the topics hold now, or follow them until stopped."""
    if not settings.topic and settings.pattern is None:
        raise JobError("archive needs --topic or --pattern: the topics to archive.")
    settings = replace(settings, topic=texts(settings.topic))
    brokers = Brokers(settings)
    cluster = brokers.cluster_id()
    topics = brokers.find_topics(settings.topic, settings.pattern)  # before a folder is made
    if settings.format not in (None, *SINKS):
        raise JobError(f"--format takes {', '.join(SINKS)}, and {settings.format} is none of them.")
    if settings.dead_letters in topics:
        raise JobError(f"{settings.dead_letters} is archived itself, and cannot take the dead letters.")
    folder = ArchiveFolder(settings.into)
    own = own_session(spark)
    with folder.held():
        if not folder.exists():
            folder.begin(cluster, asdict(_decoding(own, settings, brokers, topics)), settings.format or PARQUET)
        identity = folder.identity()
        if identity.cluster != cluster:
            raise JobError(f"{folder.path} is the archive of another cluster ({identity.cluster}, not {cluster}).")
        if settings.decode not in (None, identity.decoding["format"]):
            raise JobError(f"The archive {folder.path} was begun with --decode {identity.decoding['format']}.")
        decoding = Decoding(**identity.decoding)
        if settings.schema is not None and decoding.format != "raw" and not is_begun_with(settings.schema, decoding):
            raise JobError(f"The archive {folder.path} was begun with another schema than {settings.schema}.")
        if settings.format not in (None, identity.sink):
            raise JobError(f"The archive {folder.path} was begun with --format {identity.sink}.")
        run = _Run(own, settings, brokers, folder, tell)
        try:
            return run.follow() if settings.continuous else run.catch_up()
        except BaseException:
            recover(folder)  # a full disk gets its room back at once
            raise


def _decoding(spark: SparkSession, settings: ArchiveSettings, brokers: Brokers, topics: dict[str, Topic]) -> Decoding:
    """How a new archive decodes; a schema is inferred from the first records that there are."""
    places = [Place(topic.name, number) for topic in topics.values() for number in range(topic.partitions)]
    starts, ends = brokers.starts(places), brokers.ends(places)
    waiting = {place: Waiting(start) for place, start in starts.items()}
    first = read_spans(spark, settings, plan_round(waiting, ends, settings.max_offsets_per_trigger))
    return settle_decoding(spark, settings.decode or "raw", settings.schema, settings.framing, first)


class _Run:
    """One run of the job, from its first round to its last."""

    def __init__(
        self, spark: SparkSession, settings: ArchiveSettings, brokers: Brokers, folder: ArchiveFolder, tell: Tell
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._brokers = brokers
        self._folder = folder
        self._tell = tell
        self._manifest: Manifest = recover(folder)
        self._keeper = keeper_of(spark, folder)
        identity = folder.identity()
        self._decoding = Decoding(**identity.decoding)
        self._name = f"barnabas-archive-{identity.id}"
        self._group = settings.group or self._name
        self._started = time.monotonic()
        self._report = ArchiveReport(str(folder.path))

    def catch_up(self) -> ArchiveReport:
        """Rounds up to what the topics hold now."""
        topics = self._topics()
        ends = self._brokers.ends(topics)
        while self._round(topics, ends):
            pass
        self._tidy()
        if self._settings.trim:
            trimmed = trim(
                self._brokers, self._folder, self._manifest, {topic.name: topic for topic in topics.values()}
            )
            self._report.trimmed = len(trimmed)
        return self._ended()

    def follow(self) -> ArchiveReport:
        """Rounds until somebody interrupts."""
        try:
            while True:
                topics = self._topics()
                if not self._round(topics, self._brokers.ends(topics)):
                    self._tidy()
                    time.sleep(self._settings.interval)
        except KeyboardInterrupt:
            recover(self._folder)
            return self._ended()

    def _tidy(self) -> None:
        """Put small files together, as long as there are too many somewhere."""
        above = self._settings.compact_above
        schema = SCHEMA + decoded_fields(self._spark, self._decoding)
        while above and (entry := compact(self._spark, self._folder, self._manifest, above, schema)):
            self._report.compacted += len(entry.replaces)
            self._tell({"round": entry.sequence, "joined_files": len(entry.replaces), "files": len(entry.files)})

    def _ended(self) -> ArchiveReport:
        self._report.seconds = time.monotonic() - self._started
        return self._report

    def _topics(self) -> dict[Place, Topic]:
        found = self._brokers.find_topics(self._settings.topic, self._settings.pattern)
        left_out = sorted(self._manifest.topic_ids().keys() - found.keys())
        if left_out:
            raise JobError(
                f"The archive {self._folder.path} holds {', '.join(left_out)}, and this run does not name it: "
                "name all its topics, or another folder."
            )
        return {Place(topic.name, number): topic for topic in found.values() for number in range(topic.partitions)}

    def _round(self, topics: dict[Place, Topic], ends: dict[Place, int]) -> bool:
        """One round; False when nothing is waiting, and every partition is in the manifest."""
        waiting = where_to_start(
            topics,
            self._manifest.ends(),
            self._manifest.topic_ids(),
            self._brokers.starts(topics),
            ends,
            fail_on_data_loss=self._settings.fail_on_data_loss,
        )
        self._show()
        resumed = self._keeper.resumed(waiting, self._manifest.next_sequence)
        spans = resumed or plan_round(waiting, ends, self._settings.max_offsets_per_trigger)
        if not spans and waiting.keys() <= self._manifest.ranges.keys():
            return False
        started = time.monotonic()
        entry = self._write(spans, waiting, topics)
        self._keeper.commit(self._manifest, entry)
        held = self._manifest.ends()
        self._account(entry, sum(end - held[place] for place, end in ends.items()), time.monotonic() - started)
        return True

    def _show(self) -> None:
        """Let any tool see the lag: of the round before, also when the run that made it was killed at once."""
        if self._manifest.ranges:
            self._brokers.commit(self._group, self._manifest.ends())

    def _write(self, spans: dict[Place, Span], waiting: dict[Place, Waiting], topics: dict[Place, Topic]) -> Entry:
        sequence = self._manifest.next_sequence
        records = decode(read_spans(self._spark, self._settings, spans), self._decoding)
        kept = self._keeper.keep(with_day(records), sequence, spans)
        letters = 0
        if kept.malformed and self._settings.dead_letters is not None:
            group = f"{self._name}-dead-letters"  # whatever group shows the lag: another one would send again
            letters = send_letters(kept.records, self._brokers, self._settings.dead_letters, group, len(spans))
        empty = {place: Span(at.start, at.start) for place, at in waiting.items() if place not in self._manifest.ranges}
        return Entry(
            sequence,
            "append",
            now(),
            tuple(
                _range(place, span, waiting[place], topics[place], kept.totals.get(place, Total()))
                for place, span in sorted({**empty, **spans}.items())
            ),
            kept.files,
            malformed=kept.malformed,
            dead_letters=letters,
            letters_topic=(self._settings.dead_letters or "") if letters else "",
        )

    def _account(self, entry: Entry, behind: int, seconds: float) -> None:
        records, size = sum(read.count for read in entry.ranges), sum(file.bytes for file in entry.files)
        self._report.rounds += 1
        self._report.records += records
        self._report.bytes += size
        self._report.malformed += entry.malformed
        self._report.dead_letters += entry.dead_letters
        self._report.behind = behind
        self._tell(
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


def _range(place: Place, span: Span, waiting: Waiting, topic: Topic, total: Total) -> Range:
    return Range(
        place.topic,
        topic.id,
        place.partition,
        span.start,
        span.end,
        total.records,
        total.checksum,
        waiting.lost_before,
    )
