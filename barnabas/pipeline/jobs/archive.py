"""Topics to Parquet, exactly once: the manifest says what is archived, and is all that a restart needs.

RULES    1. A round reads fixed offsets, stages files, and commits files and offsets with one rename (`store/publish.py`).
            Whoever is killed at any moment has either committed a round or not begun it.
         2. There is no checkpoint beside the archive: the next round starts where the manifest ends.
         3. An archive is one cluster's. Topics may join it later; a run must name all that it holds already.
         4. What is written is read back, and its counts and checksums go into the manifest: the audit starts from there.
NOT HERE Decoding (`decoding.py`), files (`writing.py`), compaction (`compacting.py`), trimming (`trimming.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from barnabas.pipeline.brokers import Brokers, Place, Span, Topic
from barnabas.pipeline.decoding import Decoding, decode, decoded_fields, settle_decoding
from barnabas.pipeline.jobs.compacting import compact
from barnabas.pipeline.jobs.dead_letters import send_letters
from barnabas.pipeline.jobs.rounds import Waiting, plan_round, where_to_start
from barnabas.pipeline.jobs.trimming import trim
from barnabas.pipeline.jobs.writing import JUDGED, own_session, take_stock, with_day, write_files
from barnabas.pipeline.kafka_source import read_spans
from barnabas.pipeline.settings import BrokerSettings, setting
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import DataFile, Entry, Manifest, Range, add_up
from barnabas.pipeline.store.publish import publish, recover, staging_of
from barnabas.pipeline.store.reading import SCHEMA, read_files
from barnabas.pipeline.trouble import JobError

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings(BrokerSettings):
    """What `archive` is told."""

    into: Path = setting("The folder of the archive.", metavar="FOLDER")
    topic: tuple[str, ...] = setting("A topic; may be repeated.", (), metavar="NAME")
    pattern: str | None = setting("All topics whose whole name matches this regular expression.", None)
    continuous: bool = setting("Go on until stopped, instead of ending with what is there now.", False)
    interval: float = setting("With --continuous: seconds between two looks at the topics.", 10.0)
    max_offsets_per_trigger: int = setting("The most offsets that a round takes.", 1_000_000)
    fail_on_data_loss: bool = setting("Stop where the broker has forgotten what was not archived.", True)
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
    if isinstance(settings.topic, str):
        settings = replace(settings, topic=(settings.topic,))
    if settings.max_offsets_per_trigger < 1:
        raise JobError("--max-offsets-per-trigger takes at least 1.")
    brokers = Brokers(settings)
    cluster = brokers.cluster_id()
    topics = brokers.find_topics(settings.topic, settings.pattern)  # before a folder is made
    if settings.dead_letters in topics:
        raise JobError(f"{settings.dead_letters} is archived itself, and cannot take the dead letters.")
    folder = ArchiveFolder(settings.into)
    own = own_session(spark)
    with folder.held():
        if not folder.exists():
            folder.begin(cluster, asdict(_decoding(own, settings, brokers, topics)))
        identity = folder.identity()
        if identity.cluster != cluster:
            raise JobError(f"{folder.path} is the archive of another cluster ({identity.cluster}, not {cluster}).")
        if settings.decode not in (None, identity.decoding["format"]):
            raise JobError(f"The archive {folder.path} was begun with --decode {identity.decoding['format']}.")
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
        identity = folder.identity()
        self._decoding = Decoding(**identity.decoding)
        self._group = settings.group or f"barnabas-archive-{identity.id}"
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
        """One round; False when nothing is waiting."""
        waiting = where_to_start(
            topics,
            self._manifest.ends(),
            self._manifest.topic_ids(),
            self._brokers.starts(topics),
            ends,
            fail_on_data_loss=self._settings.fail_on_data_loss,
        )
        spans = plan_round(waiting, ends, self._settings.max_offsets_per_trigger)
        if not spans:
            return False
        started = time.monotonic()
        entry = self._write(spans, waiting, topics)
        publish(self._folder, self._manifest, entry)
        self._brokers.commit(self._group, self._manifest.ends())
        held = self._manifest.ends()
        self._account(entry, sum(end - held[place] for place, end in ends.items()), time.monotonic() - started)
        return True

    def _write(self, spans: dict[Place, Span], waiting: dict[Place, Waiting], topics: dict[Place, Topic]) -> Entry:
        sequence = self._manifest.next_sequence
        staged = staging_of(self._folder, sequence)
        records = decode(read_spans(self._spark, self._settings, spans), self._decoding)
        write_files(with_day(records), staged)
        stock = take_stock(self._spark, staged, sequence)
        letters = 0
        if stock.malformed and self._settings.dead_letters is not None:
            written = read_files(self._spark, staged, [file.path for file in stock.files], JUDGED)
            group = f"{self._group}-dead-letters"
            letters = send_letters(written, self._brokers, self._settings.dead_letters, group, len(spans))
        empty = {place: Span(at.start, at.start) for place, at in waiting.items() if place not in self._manifest.ranges}
        return Entry(
            sequence,
            "append",
            datetime.now(UTC).isoformat(timespec="seconds"),
            tuple(
                _range(place, span, waiting[place], topics[place], stock.files)
                for place, span in sorted({**empty, **spans}.items())
            ),
            tuple(stock.files),
            malformed=stock.malformed,
            dead_letters=letters,
        )

    def _account(self, entry: Entry, behind: int, seconds: float) -> None:
        records = sum(file.count for file in entry.files)
        self._report.rounds += 1
        self._report.records += records
        self._report.bytes += sum(file.bytes for file in entry.files)
        self._report.malformed += entry.malformed
        self._report.dead_letters += entry.dead_letters
        self._report.behind = behind
        self._tell(
            {
                "round": entry.sequence,
                "records": records,
                "bytes": sum(file.bytes for file in entry.files),
                "files": len(entry.files),
                "seconds": round(seconds, 3),
                "behind": behind,
                **({"malformed": entry.malformed, "dead_letters": entry.dead_letters} if entry.malformed else {}),
            }
        )


def _range(place: Place, span: Span, waiting: Waiting, topic: Topic, files: list[DataFile]) -> Range:
    held = [
        part
        for file in files
        if file.topic == place.topic
        for part in file.contents
        if part.partition == place.partition
    ]
    return Range(
        place.topic,
        topic.id,
        place.partition,
        span.start,
        span.end,
        sum(part.count for part in held),
        add_up(part.checksum for part in held),
        waiting.lost_before,
    )
