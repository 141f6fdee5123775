"""Compares topics with their archive: finds lost, doubled, altered and unexpected records.

RULES    1. The audit reads what any reader finds: every data file in the folder, whether the manifest names it or not. It
            also checks the manifest: each of its files must exist, unchanged.
         2. Both sides are read completely, from the log start offset to the archive's end. Records that the broker has
            deleted are checked against the manifest alone. Offsets that are not archived yet are reported, not faults. An
            archive begins at the log start offset of its first round: earlier records of the log count as lost.
         3. Records that compaction has removed from the topic are not faults: the manifest's checksums cover them.
         4. Each offset without a record is explained: retention, an aborted transaction, a transaction marker, compaction.
            An unexplained offset is a fault.
         5. An audit without faults permits `archive --trim`; an audit with faults withdraws the permission. The audit stores
            each partition's archived end: if a later audit finds a smaller end, rounds were cut off.
         6. Each fault is a line of the report, with its position.
         7. An archive may be written meanwhile. If a job compacts files that the audit reads, the audit has no result.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span, Topic
from barnabas.pipeline.checksums import add_checksums, record_hash
from barnabas.pipeline.datetimes import now
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.audit.comparison import (
    OffsetBlock,
    differences,
    differing,
    in_blocks,
    steps_back,
    sum_blocks,
)
from barnabas.pipeline.jobs.audit.files_check import AuditedFiles, manifest_and_files
from barnabas.pipeline.jobs.audit.gaps import explain_gaps
from barnabas.pipeline.jobs.audit.malformed_check import AuditedMalformed
from barnabas.pipeline.jobs.audit.report_page import write_page
from barnabas.pipeline.jobs.audit.table_check import AuditedTable
from barnabas.pipeline.jobs.data_files import isolated_session
from barnabas.pipeline.jobs.trim import Verified, read_verified, write_verified
from barnabas.pipeline.kafka.kafka_source import read_spans
from barnabas.pipeline.reporting.reporter import OnStep
from barnabas.pipeline.settings import BrokerSettings, as_tuple, setting
from barnabas.pipeline.spark.rows import check_jvm_alive
from barnabas.pipeline.store.durable_files import RESTORE
from barnabas.pipeline.store.folder import PARQUET, ArchiveFolder
from barnabas.pipeline.store.manifest import Manifest, Total, totals_of

MAX_FAULT_LINES = 50
"""The most files reported of each kind of fault."""
DIFFERENCES = ("lost", "doubled", "altered", "unexpected")


@dataclass(frozen=True, kw_only=True)
class AuditSettings(BrokerSettings):
    """Settings of `audit`."""

    archive: Path = setting("The folder of the archive.", metavar="FOLDER")
    topic: tuple[str, ...] = setting("A topic of the archive; may be repeated.  [default: all]", (), metavar="NAME")
    page: Path | None = setting("The file of the HTML report.  [default: _barnabas/audit.html of the archive]", None)
    examples: int = setting("The most differing records listed.", 20)


@dataclass
class PartitionAudit:
    """The result for one partition."""

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
    unexpected: int = 0
    compacted_since: int = 0
    gaps: dict[str, int] = field(default_factory=dict)
    steps_back: int = 0
    most_back_ms: int = 0

    @property
    def pending(self) -> int:
        """The number of offsets that are not archived yet."""
        return self.log_end - self.archived_to

    @property
    def agrees(self) -> bool:
        """Whether topic and archive hold the same records."""
        return not any(getattr(self, kind) for kind in DIFFERENCES) and not self.gaps.get("unexplained")


@dataclass
class AuditReport:
    """The result of an audit; the exit code depends on `agrees`."""

    archive: str
    agrees: bool
    records: int
    lost: int
    doubled: int
    altered: int
    unexpected: int
    files: int
    missing_files: list[str]
    unknown_files: list[str]
    altered_files: list[str]
    unreadable_files: list[str]
    misdecoded: int
    malformed: int
    miscounted_rounds: list[str]
    missing_dead_letters: int
    dead_letter_topics: list[dict[str, Any]]
    cut_off: list[str]
    partitions: list[dict[str, Any]]
    examples: list[dict[str, Any]]
    days: dict[str, int]
    when: str
    page: str
    seconds: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list)


def audit(spark: SparkSession, settings: AuditSettings, on_step: OnStep = lambda _: None) -> AuditReport:
    """Compares topics and archive, and writes the HTML page. Raises JobError if they cannot be compared."""
    started = time.monotonic()
    brokers = Brokers(settings)
    folder = ArchiveFolder(settings.archive)
    manifest, data_paths = manifest_and_files(folder)
    topic_ids = manifest.topic_ids()
    if not topic_ids:
        raise JobError(f"The manifest of the archive {folder.path} has no entry: there is nothing to compare.")
    topics_wanted = set(as_tuple(settings.topic)) or set(topic_ids)
    for name in sorted(topics_wanted - topic_ids.keys()):
        raise JobError(f"The archive {folder.path} holds no topic {name}.")
    metadata = folder.metadata()
    if brokers.cluster_id() != metadata.cluster:
        raise JobError(f"{folder.path} is the archive of another cluster ({metadata.cluster}).")
    topics = brokers.find_topics(topics_wanted)
    for name, topic in topics.items():
        if topic.id != topic_ids[name]:
            raise JobError(
                f"The topic {name} was deleted and created again since it was archived: they cannot be compared."
            )
    session = isolated_session(spark)
    is_all = not settings.topic
    files = (
        AuditedFiles(session, folder, manifest, topics, data_paths, is_all=is_all)
        if metadata.sink == PARQUET
        else AuditedTable(session, folder, manifest, topics, is_all=is_all)
    )
    report = _Audit(session, settings, brokers, folder, manifest, topics, files, on_step).run()
    report.seconds = round(time.monotonic() - started, 1)
    page = Path(settings.page or folder.internal / "audit.html")
    report.page = str(page)
    write_page(page, report)
    return report


@dataclass
class _Audit:
    """One audit."""

    spark: SparkSession
    settings: AuditSettings
    brokers: Brokers
    folder: ArchiveFolder
    manifest: Manifest
    topics: dict[str, Topic]
    files: AuditedFiles | AuditedTable
    on_step: OnStep

    def __post_init__(self) -> None:
        self._partitions = _partition_audits(
            self.manifest, self.brokers, self.topics, is_files=isinstance(self.files, AuditedFiles)
        )
        _, self._reached = read_verified(self.folder)

    def run(self) -> AuditReport:
        try:
            report, reached = self._run()
        finally:
            self._refuse_compacted()  # instead of faults or errors that are its consequences
        write_verified(self.folder, report.when, self._verified() if report.agrees else [], reached)
        return report

    def _refuse_compacted(self) -> None:
        """Raises JobError if a job has replaced files of the archive since the audit began (rule 7)."""
        if self.manifest.files.keys() - self.folder.manifest().files.keys():
            raise JobError(f"Files of the archive {self.folder.path} were compacted during the audit: run it again.")

    def _run(self) -> tuple[AuditReport, dict[str, int]]:
        """Returns the report and the largest ends of all audits."""
        self.files.check()
        self.on_step({"step": "files", "files": len(self.files.readable), "at_fault": len(self.files.faults())})
        examples = self._compare()
        self._explain()
        for row in steps_back(self.files.records()).collect():
            result = self._audit_of(row)
            result.steps_back, result.most_back_ms = row["times"], row["most_ms"]
        malformed = self._check_malformed()
        ends = {str(tp): end for tp, end in self.manifest.end_offsets().items()}
        cut_off = self._cut_off(ends)
        check_jvm_alive(self.spark)  # a killed JVM may have returned incomplete results
        report = self._report(examples, malformed, cut_off)
        return report, {tp: max(ends.get(tp, 0), self._reached.get(tp, 0)) for tp in ends | self._reached}

    def _check_malformed(self) -> AuditedMalformed:
        malformed = AuditedMalformed(self.spark, self.manifest.rounds, self.files.malformed(), self.topics)
        if self.folder.metadata().decoding["format"] != "raw":
            malformed.check(self.settings, self.brokers, self.settings.examples)
        else:
            malformed.check_not_decoded()
        return malformed

    def _report(self, examples: list[dict[str, Any]], malformed: AuditedMalformed, cut_off: list[str]) -> AuditReport:
        partitions = list(self._partitions.values())
        is_faulty = self.files.faults() or malformed.faults() or cut_off
        totals = {kind: sum(getattr(partition, kind) for partition in partitions) for kind in DIFFERENCES}
        return AuditReport(
            archive=str(self.folder.path),
            agrees=not is_faulty and all(partition.agrees for partition in partitions),
            records=sum(partition.topic_records for partition in partitions),
            **totals,
            files=len(self.files.readable),
            missing_files=self.files.missing,
            unknown_files=self.files.unknown,
            altered_files=self.files.altered,
            unreadable_files=self.files.unreadable,
            misdecoded=self.files.misdecoded,
            malformed=malformed.count,
            miscounted_rounds=malformed.miscounted,
            missing_dead_letters=sum(topic.missing or 0 for topic in malformed.dead_letter_topics),
            dead_letter_topics=[asdict(topic) for topic in malformed.dead_letter_topics],
            cut_off=cut_off,
            partitions=[
                {**asdict(partition), "pending": partition.pending, "agrees": partition.agrees}
                for partition in partitions
            ],
            examples=examples,
            days=_days(self.manifest, self.topics),
            when=now(),
            page="",
            lines=[*_lines(examples), *self._lines(), *malformed.lines(), *_fault_lines("cut off", cut_off)],
        )

    def _lines(self) -> list[dict[str, Any]]:
        """The fault lines of files and of unexplained offsets (rule 6)."""
        unexplained = [
            f"{partition.gaps['unexplained']} offsets of {tp} from {partition.compared_from} to {partition.archived_to}"
            for tp, partition in self._partitions.items()
            if partition.gaps.get("unexplained")
        ]
        kinds = ("missing", "unknown", "altered", "unreadable")
        files = [line for kind in kinds for line in _fault_lines(f"{kind} file", getattr(self.files, kind))]
        return [*files, *_fault_lines("unexplained", unexplained)]

    def _cut_off(self, ends: dict[str, int]) -> list[str]:
        """The partitions whose archived end is below that of an earlier audit (rule 5)."""
        reached = {tp: end for tp, end in self._reached.items() if tp.rpartition("-")[0] in self.topics}
        if not self.settings.topic:
            reached = self._reached
        return [
            f"{tp}, which was archived up to {end}, and ends at {ends.get(tp, 0)}"
            for tp, end in sorted(reached.items())
            if ends.get(tp, 0) < end
        ]

    def _compare(self) -> list[dict[str, Any]]:
        """Counts the differing records (rule 2) and returns examples."""
        spans = {tp: Span(partition.compared_from, partition.archived_to) for tp, partition in self._partitions.items()}
        topic = _hashed(read_spans(self.spark, self.settings, spans))
        archived = _hashed(_from_compared_start(self.files.records(), spans))
        topic_sums, archive_sums = sum_blocks(topic), sum_blocks(archived)
        for block, total in topic_sums.items():
            self._audit_of(block).topic_records += total.records
        for block, total in archive_sums.items():
            self._audit_of(block).archive_records += total.records
        differing_blocks = differing(topic_sums, archive_sums)
        records = sum(total.records for total in topic_sums.values())
        self.on_step({"step": "records", "records": records, "differing_blocks": len(differing_blocks)})
        if not differing_blocks:
            return []
        found = differences(in_blocks(topic, differing_blocks), in_blocks(archived, differing_blocks)).cache()
        try:
            is_compacted = (f.col("kind") == "unexpected") & f.col("topic").isin(self._compacted())
            for row in found.where(is_compacted).groupBy("topic", "partition").count().collect():
                self._audit_of(row).compacted_since = row["count"]
            for row in found.where(~is_compacted).groupBy("kind", "topic", "partition").count().collect():
                setattr(self._audit_of(row), row["kind"], row["count"])
            named = found.where(~is_compacted).orderBy("topic", "partition", "offset").limit(self.settings.examples)
            return [row.asDict() for row in named.collect()]
        finally:
            found.unpersist()

    def _compacted(self) -> list[str]:
        """The topics with the cleanup policy `compact` (rule 3)."""
        return [name for name in self.topics if "compact" in self.brokers.topic_configs(name)["cleanup.policy"]]

    def _audit_of(self, row: Any) -> PartitionAudit:
        """The result of a row's partition; created for a partition that only an unknown file has."""
        tp = TopicPartition(*row[:2]) if isinstance(row, OffsetBlock) else TopicPartition.of(row)
        return self._partitions.setdefault(tp, PartitionAudit(*tp, 0, 0, 0, 0, 0))

    def _explain(self) -> None:
        """Explains the offsets without a record (rule 4)."""
        spans, committed = {}, {}
        for tp, partition in self._partitions.items():
            lost_counts = (
                read.start - read.lost_before
                for read in self.manifest.ranges.get(tp, ())
                if read.lost_before is not None
            )
            partition.gaps = {"retention": lost} if (lost := sum(lost_counts)) else {}
            if partition.archived_to - partition.compared_from > partition.topic_records:
                spans[tp] = Span(partition.compared_from, partition.archived_to)
                committed[tp] = partition.topic_records
        for tp, gaps in explain_gaps(self.spark, self.settings, self.brokers, spans, committed).items():
            self._partitions[tp].gaps |= {kind: count for kind, count in asdict(gaps).items() if count}

    def _verified(self) -> list[Verified]:
        return [
            Verified(tp.topic, self.topics[tp.topic].id, tp.partition, partition.archived_to)
            for tp, partition in self._partitions.items()
        ]


def _partition_audits(
    manifest: Manifest, brokers: Brokers, topics: dict[str, Topic], *, is_files: bool
) -> dict[TopicPartition, PartitionAudit]:
    existing = {tp for topic in topics.values() for tp in topic.topic_partitions()}
    partitions = sorted(existing.union(tp for tp in manifest.ranges if tp.topic in topics))
    starts, ends = brokers.beginning_offsets(partitions), brokers.end_offsets(partitions)
    totals = totals_of(manifest.files.values())
    found = {}
    for tp in partitions:
        ranges = manifest.ranges.get(tp, [])
        read = Total(sum(span.count for span in ranges), add_checksums(span.checksum for span in ranges))
        if is_files and read != totals.get(tp, Total()):
            raise JobError(
                f"The manifest contradicts itself about {tp}: the records of its files are not those of its ranges; {RESTORE}."
            )
        if not ranges:  # a new partition without archived offsets
            start = starts[tp]
            found[tp] = PartitionAudit(*tp, start, ends[tp], start, start, start)
            continue
        first, end = ranges[0].start, ranges[-1].end
        if end > ends[tp]:
            raise JobError(
                f"{tp} ends at {ends[tp]}, but is archived up to {end}: its log was replaced or truncated, and cannot be "
                "compared."
            )
        start = min(starts[tp], end)
        found[tp] = PartitionAudit(*tp, starts[tp], ends[tp], first, end, start)
    return found


def _hashed(records: DataFrame) -> DataFrame:
    return records.select("topic", "partition", "offset", record_hash().alias("hash"))


def _from_compared_start(records: DataFrame, spans: dict[TopicPartition, Span]) -> DataFrame:
    """The archive's records from the compared start on, and those of unknown partitions."""
    condition = f.lit(True)
    for tp, span in spans.items():
        if span.start:
            is_partition = (f.col("topic") == tp.topic) & (f.col("partition") == tp.partition)
            condition &= ~(is_partition & (f.col("offset") < span.start))
    return records.where(condition)


def _lines(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fault lines of differing records."""
    return [
        {"fault": example["kind"], "where": f"{example['topic']}-{example['partition']}, offset {example['offset']}"}
        for example in examples
    ]


def _fault_lines(fault: str, positions: list[str]) -> list[dict[str, Any]]:
    return [{"fault": fault, "where": position} for position in positions[:MAX_FAULT_LINES]]


def _days(manifest: Manifest, topics: dict[str, Topic]) -> dict[str, int]:
    days: dict[str, int] = {}
    for file in manifest.files.values():
        if file.topic in topics:
            day = file.folder.rpartition("=")[2]
            days[day] = days.get(day, 0) + file.count
    return dict(sorted(days.items()))
