"""A topic against its archive: do they hold the same, and if not, what is lost, doubled, altered or strange.

RULES    1. What is compared is what a reader finds: every data file that lies in the folder, in the manifest or not. The
            manifest is a third witness: each of its files must be there and hold what it says.
         2. Both sides are read whole, from the log's start to where the archive ends. What the broker has
            deleted since is checked against the manifest alone; what is not archived yet is said, and is no fault. An archive
            begins where the log began then: what the log has before it was taken from the archive.
         3. What a compacted topic has not any more is no fault: the manifest's checksums still vouch for it.
         4. Every offset without a record on the topic is explained: retention, an aborted transaction, a transaction's marker,
            compaction. What nothing explains is a fault.
         5. An audit without a fault says so to `archive --trim`; one with a fault takes that back. How far the archive went is
            remembered: one that ends earlier than an audit before found it has lost rounds.
         6. Every fault is a line of the report, which says where it is.
NOT HERE The comparison itself (`comparison.py`), the archive's side (`files_check.py`, `table_check.py`), malformed records
         and their letters (`malformed_check.py`), the page (`report_page.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Brokers, Place, Span, Topic
from barnabas.pipeline.checksums import add_up, record_hash
from barnabas.pipeline.datetimes import now
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.audit.comparison import Stretch, differences, differing, steps_back, sum_stretches, within
from barnabas.pipeline.jobs.audit.files_check import AuditedFiles, listed
from barnabas.pipeline.jobs.audit.gaps import explain_gaps
from barnabas.pipeline.jobs.audit.malformed_check import AuditedMalformed
from barnabas.pipeline.jobs.audit.report_page import write_page
from barnabas.pipeline.jobs.audit.table_check import AuditedTable
from barnabas.pipeline.jobs.data_files import own_session
from barnabas.pipeline.jobs.trim import Verified, read_reached, write_verified
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import Tell
from barnabas.pipeline.settings import BrokerSettings, setting, texts
from barnabas.pipeline.spark.rows import see_that_it_lives
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.manifest import Contents, Manifest, Range, contents_of

STRETCH = 10_000
LINES = 50
"""So many files at fault are named, of each kind."""
KINDS = ("lost", "doubled", "altered", "strange")


@dataclass(frozen=True, kw_only=True)
class AuditSettings(BrokerSettings):
    """What `audit` is told."""

    archive: Path = setting("The folder of the archive.", metavar="FOLDER")
    topic: tuple[str, ...] = setting("A topic of it; may be repeated.  [default: all]", (), metavar="NAME")
    page: Path | None = setting("Where the report goes as HTML.  [default: _barnabas/audit.html of the archive]", None)
    examples: int = setting("How many differing records are named at most.", 20)


@dataclass
class PartitionAudit:
    """What was found about one partition."""

    topic: str
    partition: int
    log_start: int
    log_end: int
    archived_from: int
    archived_to: int
    compared_from: int
    topic_records: int = 0
    archive_records: int = 0
    lost: int = 0
    doubled: int = 0
    altered: int = 0
    strange: int = 0
    compacted_since: int = 0
    gaps: dict[str, int] = field(default_factory=dict)
    steps_back: int = 0
    most_back_ms: int = 0

    @property
    def pending(self) -> int:
        """How many offsets are not archived yet."""
        return self.log_end - self.archived_to

    @property
    def agrees(self) -> bool:
        """Whether the two sides hold the same."""
        return not any(getattr(self, kind) for kind in KINDS) and not self.gaps.get("unexplained")


@dataclass
class AuditReport:
    """The whole finding; the exit code says `agrees`."""

    archive: str
    agrees: bool
    records: int
    lost: int
    doubled: int
    altered: int
    strange: int
    files: int
    missing_files: list[str]
    unknown_files: list[str]
    altered_files: list[str]
    unreadable_files: list[str]
    misdecoded: int
    malformed: int
    miscounted_rounds: list[str]
    missing_letters: int
    letters: list[dict[str, Any]]
    cut_off: list[str]
    partitions: list[dict[str, Any]]
    examples: list[dict[str, Any]]
    days: dict[str, int]
    when: str
    page: str
    seconds: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list)


def audit(spark: SparkSession, settings: AuditSettings, tell: Tell = lambda _: None) -> AuditReport:
    """Compare; the report says whether the two agree."""
    started = time.monotonic()
    brokers = Brokers(settings)
    folder = ArchiveFolder(settings.archive)
    manifest, lying = listed(folder)
    held = manifest.topic_ids()
    if not held:
        raise JobError(f"The manifest of the archive {folder.path} has no entry: there is nothing to compare.")
    wanted = set(texts(settings.topic)) or set(held)
    for name in sorted(wanted - held.keys()):
        raise JobError(f"The archive {folder.path} holds no topic {name}.")
    identity = folder.identity()
    if brokers.cluster_id() != identity.cluster:
        raise JobError(f"{folder.path} is the archive of another cluster ({identity.cluster}).")
    topics = brokers.find_topics(wanted)
    for name, topic in topics.items():
        if topic.id != held[name]:
            raise JobError(
                f"The topic {name} was deleted and made again since it was archived: they cannot be compared."
            )
    own = own_session(spark)
    is_all = not settings.topic
    files = (
        AuditedFiles(own, folder, manifest, topics, lying, is_all=is_all)
        if identity.sink == PARQUET
        else AuditedTable(own, folder, manifest, topics, is_all=is_all)
    )
    report = _Audit(own, settings, brokers, folder, manifest, topics, files, tell).run()
    report.seconds = round(time.monotonic() - started, 1)
    page = Path(settings.page or folder.own / "audit.html")
    report.page = str(page)
    write_page(page, report)
    return report


class _Audit:
    """One audit, from listing the files to the verdict."""

    def __init__(
        self,
        spark: SparkSession,
        settings: AuditSettings,
        brokers: Brokers,
        folder: ArchiveFolder,
        manifest: Manifest,
        topics: dict[str, Topic],
        files: AuditedFiles | AuditedTable,
        tell: Tell,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._brokers = brokers
        self._folder = folder
        self._manifest = manifest
        self._topics = topics
        self._tell = tell
        self._places = _places(manifest, brokers, topics, is_files=isinstance(files, AuditedFiles))
        self._files = files
        self._reached = read_reached(folder)

    def run(self) -> AuditReport:
        self._files.check()
        self._tell({"step": "files", "files": len(self._files.readable), "at_fault": len(self._files.faults())})
        examples = self._compare()
        self._explain()
        for row in steps_back(self._files.records()).collect():
            place = self._place(row)
            place.steps_back, place.most_back_ms = row["times"], row["most_ms"]
        malformed = AuditedMalformed(self._spark, self._manifest.rounds, self._files.malformed(), self._topics)
        is_decoded = self._folder.identity().decoding["format"] != "raw"
        if is_decoded:
            malformed.check(self._settings, self._brokers, self._settings.examples)
        else:
            malformed.refuse()
        places = list(self._places.values())
        ends = {str(place): end for place, end in self._manifest.ends().items()}
        cut_off = self._cut_off(ends)
        see_that_it_lives(self._spark)  # else some of what was looked at may be missing
        agrees = all(place.agrees for place in places) and not (self._files.faults() or malformed.faults() or cut_off)
        when = now()
        reached = {place: max(ends.get(place, 0), self._reached.get(place, 0)) for place in ends | self._reached}
        write_verified(self._folder, when, self._verified() if agrees else [], reached)
        totals = {kind: sum(getattr(place, kind) for place in places) for kind in KINDS}
        return AuditReport(
            archive=str(self._folder.path),
            agrees=agrees,
            records=sum(place.topic_records for place in places),
            **totals,
            files=len(self._files.readable),
            missing_files=self._files.missing,
            unknown_files=self._files.unknown,
            altered_files=self._files.altered,
            unreadable_files=self._files.unreadable,
            misdecoded=self._files.misdecoded,
            malformed=malformed.count,
            miscounted_rounds=malformed.miscounted,
            missing_letters=sum(one.missing or 0 for one in malformed.letters),
            letters=[asdict(one) for one in malformed.letters],
            cut_off=cut_off,
            partitions=[{**asdict(place), "pending": place.pending, "agrees": place.agrees} for place in places],
            examples=examples,
            days=_days(self._manifest, self._topics),
            when=when,
            page="",
            lines=[*_lines(examples), *self._lines(), *malformed.lines(), *_named("cut off", cut_off)],
        )

    def _lines(self) -> list[dict[str, Any]]:
        """The files at fault, and offsets that nothing explains (rule 6)."""
        unexplained = [
            f"{one.gaps['unexplained']} offsets of {place} from {one.compared_from} to {one.archived_to}"
            for place, one in self._places.items()
            if one.gaps.get("unexplained")
        ]
        kinds = ("missing", "unknown", "altered", "unreadable")
        files = [line for kind in kinds for line in _named(f"{kind} file", getattr(self._files, kind))]
        return [*files, *_named("unexplained", unexplained)]

    def _cut_off(self, ends: dict[str, int]) -> list[str]:
        """The partitions that were archived further when an audit saw them (rule 5)."""
        wanted = {place: end for place, end in self._reached.items() if place.rpartition("-")[0] in self._topics}
        if not self._settings.topic:
            wanted = self._reached
        return [
            f"{place}, which was archived up to {end}, and ends at {ends.get(place, 0)}"
            for place, end in sorted(wanted.items())
            if ends.get(place, 0) < end
        ]

    def _compare(self) -> list[dict[str, Any]]:
        """Count what differs (rule 2); some of it by name."""
        spans = {place: Span(one.compared_from, one.archived_to) for place, one in self._places.items()}
        topic = _hashed(read_spans(self._spark, self._settings, spans))
        held = _hashed(_from_on(self._files.records(), spans))
        here, there = sum_stretches(topic, STRETCH), sum_stretches(held, STRETCH)
        for stretch, total in here.items():
            self._place(stretch).topic_records += total.records
        for stretch, total in there.items():
            self._place(stretch).archive_records += total.records
        odd = differing(here, there)
        self._tell({"step": "records", "records": sum(one.records for one in here.values()), "stretches": len(odd)})
        if not odd:
            return []
        found = differences(within(topic, odd, STRETCH), within(held, odd, STRETCH)).cache()
        try:
            is_away = (f.col("kind") == "strange") & f.col("topic").isin(self._compacted())
            for row in found.where(is_away).groupBy("topic", "partition").count().collect():
                self._place(row).compacted_since = row["count"]
            for row in found.where(~is_away).groupBy("kind", "topic", "partition").count().collect():
                setattr(self._place(row), row["kind"], row["count"])
            named = (
                found.where(~is_away).orderBy("topic", "partition", "offset").limit(self._settings.examples).collect()
            )
            return [row.asDict() for row in named]
        finally:
            found.unpersist()

    def _compacted(self) -> list[str]:
        """The topics whose brokers remove records with later ones of the same key (rule 3)."""
        return [name for name in self._topics if "compact" in self._brokers.topic_settings(name)["cleanup.policy"]]

    def _place(self, row: Any) -> PartitionAudit:
        """The partition of a row; one that only a stranger's file names has nothing else."""
        place = Place(*row[:2]) if isinstance(row, Stretch) else Place(row["topic"], row["partition"])
        return self._places.setdefault(place, PartitionAudit(*place, 0, 0, 0, 0, 0))

    def _explain(self) -> None:
        """Say what the missing offsets are (rule 4)."""
        spans, committed = {}, {}
        for place, one in self._places.items():
            gone = (
                read.start - read.lost_before
                for read in self._manifest.ranges.get(place, ())
                if read.lost_before is not None
            )
            one.gaps = {"retention": lost} if (lost := sum(gone)) else {}
            if one.archived_to - one.compared_from > one.topic_records:
                spans[place] = Span(one.compared_from, one.archived_to)
                committed[place] = one.topic_records
        for place, gaps in explain_gaps(self._spark, self._settings, self._brokers, spans, committed).items():
            self._places[place].gaps |= {kind: count for kind, count in asdict(gaps).items() if count}

    def _verified(self) -> list[Verified]:
        return [
            Verified(place.topic, self._topics[place.topic].id, place.partition, one.archived_to)
            for place, one in self._places.items()
        ]


def _places(
    manifest: Manifest, brokers: Brokers, topics: dict[str, Topic], *, is_files: bool
) -> dict[Place, PartitionAudit]:
    there = {Place(topic.name, number) for topic in topics.values() for number in range(topic.partitions)}
    places = sorted(there.union(place for place in manifest.ranges if place.topic in topics))
    starts, ends = brokers.starts(places), brokers.ends(places)
    found = {}
    for place in places:
        ranges = manifest.ranges.get(place, [])
        written = contents_of(manifest.files.values(), place)
        if is_files and _total(ranges) != _total(written):
            raise JobError(f"The manifest contradicts itself about {place}: its files and its ranges do not add up.")
        if not ranges:  # of a partition that came later nothing is archived yet
            start = starts[place]
            found[place] = PartitionAudit(*place, start, ends[place], start, start, start)
            continue
        first, end = ranges[0].start, ranges[-1].end
        if end > ends[place]:
            raise JobError(f"{place} ends at {ends[place]}, and it is archived up to {end}: it is not what it was.")
        start = min(starts[place], end)
        found[place] = PartitionAudit(*place, starts[place], ends[place], first, end, start)
    return found


def _total(parts: Sequence[Range] | Sequence[Contents]) -> tuple[int, int]:
    """How many records, and their checksum."""
    return sum(part.count for part in parts), add_up(part.checksum for part in parts)


def _hashed(records: DataFrame) -> DataFrame:
    return records.select("topic", "partition", "offset", record_hash().alias("hash"))


def _from_on(records: DataFrame, spans: dict[Place, Span]) -> DataFrame:
    """The archive's records from where the comparison starts; those of partitions that nobody knows stay too."""
    later = f.lit(True)
    for place, span in spans.items():
        if span.start:
            is_before = (f.col("topic") == place.topic) & (f.col("partition") == place.partition)
            later &= ~(is_before & (f.col("offset") < span.start))
    return records.where(later)


def _lines(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records that differ, by name."""
    return [
        {"fault": one["kind"], "where": f"{one['topic']}-{one['partition']}, offset {one['offset']}"}
        for one in examples
    ]


def _named(fault: str, places: list[str]) -> list[dict[str, Any]]:
    return [{"fault": fault, "where": place} for place in places[:LINES]]


def _days(manifest: Manifest, topics: dict[str, Topic]) -> dict[str, int]:
    days: dict[str, int] = {}
    for file in manifest.files.values():
        if file.topic in topics:
            day = file.folder.rpartition("=")[2]
            days[day] = days.get(day, 0) + file.count
    return dict(sorted(days.items()))
