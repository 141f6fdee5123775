"""Maintains event-time windows of a topic as Parquet: counts, sums, minima, maxima and averages by group.

FORMAT   current/windows    a row per window and group; `is_final` tells whether it may still change
         current/late       late records of final windows, as rows of the same kind with the version in which they arrived
         _barnabas/aggregate.json   the computation, the current version, its end offsets, the watermark
RULES    1. A round reads fixed offsets. Its version is committed by one rename together with end offsets and watermark
            (`store/versions.py`): each record is counted once, also after a crash.
         2. A record is late relative to the watermark at the start of its round. A final window never changes. Late records are
            counted, reported and stored separately.
         3. The first version fixes the computation: other windows, groups, measures or schemas need another folder. Only the
            allowed lateness may change.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Span
from barnabas.pipeline.datetimes import parse_duration_s, time_text
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.aggregate import windows
from barnabas.pipeline.jobs.aggregate.aggregate_files import FINAL, OPEN, VersionWriter, open_sums
from barnabas.pipeline.jobs.aggregate.input_source import ArchiveInput, InputSource, TopicInput
from barnabas.pipeline.jobs.aggregate.measures import check_distinct_names, parse_column, parse_measure
from barnabas.pipeline.jobs.aggregate.watermark import watermark
from barnabas.pipeline.jobs.aggregate.windows import COUNTED, LEFT_OUT, MALFORMED, OWN_COLUMNS, TIMELESS, WindowSpec
from barnabas.pipeline.jobs.data_files import isolated_session
from barnabas.pipeline.jobs.round_changes import skipping_deleted_records
from barnabas.pipeline.jobs.rounds import ContinuousSettings, StartPosition, plan_round, start_positions
from barnabas.pipeline.reporting.reporter import OnStep
from barnabas.pipeline.settings import as_tuple, setting
from barnabas.pipeline.spark.rows import collect_rows
from barnabas.pipeline.spark.value_decoding import Decoding, check_decoding, choose_decoding, decode
from barnabas.pipeline.store.archive_reader import COLUMNS, no_records
from barnabas.pipeline.store.versions import Versions, open_versions

SECOND_US = 1_000_000
FORMER_NAMES = {"asked": "computation"}
"""Fields of aggregate.json until 2026-11-28."""
RARE_COUNTS = (MALFORMED, LEFT_OUT, TIMELESS, "late", "lost")
"""Counts that a step reports only if they are not 0."""


@dataclass(frozen=True, kw_only=True)
class AggregateSettings(ContinuousSettings):
    """Settings of `aggregate`."""

    topic: str = setting("The topic.", metavar="NAME")
    into: Path = setting("The folder of the result.", metavar="FOLDER")
    window: str = setting("The length of a window, such as `1 hour`.", metavar="DURATION")
    slide: str | None = setting(
        "The time between the starts of two windows.  [default: the window's length]", None, metavar="DURATION"
    )
    lateness: str = setting("The allowed lateness of events.", "10 minutes", metavar="DURATION")
    time: str | None = setting(
        "The event time, such as data.moment: a column or an expression.  [default: the record's timestamp]", None
    )
    by: tuple[str, ...] = setting(
        "A column to group by, such as data.carrier, or an expression with `as NAME`; may be repeated.", ()
    )
    compute: tuple[str, ...] = setting(
        "count, sum, min, max or avg of a column or an expression, such as `avg(data.delay) as delay`; may be repeated.",
        (),
    )
    where: str | None = setting("Only records of which this is true, such as `data.carrier = 'UA'`.", None)
    archive: Path | None = setting("Read this archive of the topic instead of the broker.", None, metavar="FOLDER")
    decode: str = setting("How values are decoded, into `data`: raw, json or avro.", "raw")
    schema: Path | None = setting("The schema of the values; JSON without one is inferred.", None, metavar="FILE")
    framing: str | None = setting(
        "How Avro is framed: plain, or confluent (a magic byte and a schema id before it).  "
        "[default: plain for a new folder]",
        None,
    )
    group: str | None = setting("The consumer group that shows the progress.  [default: barnabas-aggregate-<id>]", None)

    def __post_init__(self) -> None:
        super().__post_init__()
        window_spec(self)
        parse_duration_s("--lateness", self.lateness)

    @property
    def needs_broker(self) -> bool:
        """Whether a broker is read; an archive needs none."""
        return self.archive is None


@dataclass
class AggregateReport:
    """The result of a run, and the state of the aggregate."""

    aggregate: str
    version: int
    watermark: str | None
    """Windows that end at or before it are final."""
    windows: int
    """The number of result rows."""
    final: int
    rounds: int = 0
    records: int = 0
    malformed: int = 0
    left_out: int = 0
    timeless: int = 0
    late: int = 0
    """Late records of this run, once per final window; `late_ever` of all runs."""
    late_ever: int = 0
    lost: int = 0
    """Unread offsets that the broker had deleted."""
    seconds: float = 0.0


@dataclass(frozen=True)
class _State:
    """The content of aggregate.json."""

    id: str
    cluster: str
    topic: str
    topic_id: str
    computation: dict[str, Any]
    decoding: dict[str, str]
    version: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    latest_us: dict[str, int] = field(default_factory=dict)
    watermark_us: int | None = None
    windows: int = 0
    final: int = 0
    late: int = 0
    lost: int = 0


def aggregate(spark: SparkSession, settings: AggregateSettings, on_step: OnStep = lambda _: None) -> AggregateReport:
    """Updates the windows to the topic's current end; with `continuous`, until it is interrupted."""
    started = time.monotonic()
    spec = window_spec(settings)
    source = (
        TopicInput(settings, settings.topic)
        if settings.archive is None
        else ArchiveInput(settings.archive, settings.topic)
    )
    session = isolated_session(spark)
    with open_versions(settings.into, "aggregate") as versions:
        state = _state(session, settings, spec, versions, source)
        run = _Run(session, settings, spec, versions, source, state, on_step)
        report = run.run_until_stopped() if settings.continuous else run.catch_up()
    report.seconds = round(time.monotonic() - started, 1)
    return report


def window_spec(settings: AggregateSettings) -> WindowSpec:
    """Parses windows, groups and measures. Raises JobError."""
    length = parse_duration_s("--window", settings.window)
    slide = parse_duration_s("--slide", settings.slide) if settings.slide is not None else length
    if not 0 < slide <= length or length % slide:
        raise JobError("--window takes more than 0 seconds, and --slide a divisor of it.")
    by = tuple(parse_column("--by", text) for text in as_tuple(settings.by))
    measures = tuple(parse_measure(text) for text in as_tuple(settings.compute))
    check_distinct_names([*(column.name for column in by), *(measure.name for measure in measures)], OWN_COLUMNS)
    return WindowSpec(length * SECOND_US, slide * SECOND_US, by, measures, settings.time, settings.where)


@dataclass
class _Run:
    """One run."""

    spark: SparkSession
    settings: AggregateSettings
    spec: WindowSpec
    versions: Versions
    source: InputSource
    state: _State
    on_step: OnStep
    counts: Counter[str] = field(default_factory=Counter)

    def catch_up(self) -> AggregateReport:
        """Runs rounds up to the topic's current end."""
        ends = self.source.end_offsets()
        while self._round(ends):
            pass
        self._commit_progress()  # also after a crash of the run that read them
        return self._report()

    def run_until_stopped(self) -> AggregateReport:
        """Runs rounds until KeyboardInterrupt."""
        try:
            while True:
                if not self._round(self.source.end_offsets()):
                    time.sleep(self.settings.interval)
        except KeyboardInterrupt:
            return self._report()

    def _round(self, ends: dict[TopicPartition, int]) -> bool:
        """Runs one round. Returns False if there is nothing to read."""
        topic = self.source.topic
        topics, ids = dict.fromkeys(ends, topic), {topic.name: self.state.topic_id}
        positions = start_positions(
            self.settings, topics, self._next_offsets(), ids, self.source.beginning_offsets(), ends
        )
        spans = plan_round(positions, ends, self.settings.max_offsets_per_trigger)
        if not spans:
            return False
        lost = sum(positions[tp].lost for tp in spans)
        behind = {tp: end - spans[tp].end if tp in spans else 0 for tp, end in ends.items()}
        with skipping_deleted_records(self.settings, spans, self.source.beginning_offsets, self.versions.clean_up):
            self._run_round(spans, behind, lost)
        return True

    def _run_round(self, spans: dict[TopicPartition, Span], behind: dict[TopicPartition, int], lost: int) -> None:
        started = time.monotonic()
        staged = self.versions.stage()
        records = decode(self.source.read(self.spark, spans), Decoding(**self.state.decoding))
        sums = self._materialize(windows.sum_round(windows.classify(records, self.spec), self.spec), staged / "round")
        counts, latest_us = _tally(sums, self.spec, self.state.watermark_us)
        counts["lost"] = lost
        self._commit(staged, sums, self._next(spans, behind, counts, latest_us))
        self.counts += counts
        self._commit_progress()
        self._report_round(counts, sum(behind.values()), time.monotonic() - started)

    def _next(
        self,
        spans: dict[TopicPartition, Span],
        behind: dict[TopicPartition, int],
        counts: Counter[str],
        latest_us: dict[int, int],
    ) -> _State:
        """The state after the round, without the number of rows."""
        state = self.state
        latest = {int(number): us for number, us in state.latest_us.items()}
        for partition, us in latest_us.items():
            latest[partition] = max(us, latest.get(partition, us))
        backlogged = [tp.partition for tp, offsets in behind.items() if offsets]
        now_us = int(time.time() * SECOND_US)
        lateness_us = parse_duration_s("--lateness", self.settings.lateness) * SECOND_US
        return replace(
            state,
            version=state.version + 1,
            ends=state.ends | {str(tp.partition): span.end for tp, span in spans.items()},
            latest_us={str(number): us for number, us in sorted(latest.items())},
            watermark_us=watermark(state.watermark_us, latest, backlogged, lateness_us, now_us),
            late=state.late + counts["late"],
            lost=state.lost + counts["lost"],
        )

    def _commit(self, staged: Path, sums: DataFrame, after: _State) -> None:
        """Writes and commits the next version (rule 1)."""
        spec, before = self.spec, self.state
        previous = self.versions.path(before.version) if before.version else None
        writer = VersionWriter(staged, after.version, previous)
        parts = [windows.in_time(sums, spec, before.watermark_us)]
        if previous is not None:
            columns = sums.select(*windows.kept_columns(sums, spec)).schema
            parts.append(self.spark.read.schema(columns).parquet(str(open_sums(previous))))
        now = writer.sums(windows.merge_sums(parts, spec), windows.is_final_at(spec, after.watermark_us))
        writer.windows(windows.result_rows(now, spec, is_final=f.col("is_final")))
        writes_late = after.late > before.late or previous is None
        late_sums = windows.merge_sums([windows.late(sums, spec, before.watermark_us)], spec)
        arrival = {windows.ARRIVAL: f.lit(after.version)}
        writer.late(windows.result_rows(late_sums, spec, **arrival) if writes_late else None)
        shutil.rmtree(staged / "round")
        rows = writer.counts()
        after = replace(after, windows=rows[FINAL] + rows[OPEN], final=rows[FINAL])
        self.source.check_not_replaced()
        self.versions.commit(staged, after.version, asdict(after))
        self.state = after

    def _materialize(self, rows: DataFrame, path: Path) -> DataFrame:
        """Writes rows and reads them back: later steps see the same rows, also when Spark recomputes them."""
        rows.write.parquet(str(path))
        return self.spark.read.schema(rows.schema).parquet(str(path))

    def _commit_progress(self) -> None:
        """Commits the offsets for the consumer group, which makes the lag visible."""
        if self.state.version:
            self.source.publish_progress(
                self.settings.group or f"barnabas-aggregate-{self.state.id}", self._next_offsets()
            )

    def _next_offsets(self) -> dict[TopicPartition, int]:
        """The start offsets of the next round."""
        return {TopicPartition(self.state.topic, int(number)): end for number, end in self.state.ends.items()}

    def _report_round(self, counts: Counter[str], behind: int, seconds: float) -> None:
        self.counts["rounds"] += 1
        self.on_step(
            {
                "version": self.state.version,
                "records": counts["records"],
                "windows": self.state.windows,
                "final": self.state.final,
                "seconds": round(seconds, 3),
                "behind": behind,
                **{name: counts[name] for name in RARE_COUNTS if counts[name]},
            }
        )

    def _report(self) -> AggregateReport:
        state = self.state
        mark = None if state.watermark_us is None else time_text(state.watermark_us // SECOND_US)
        counts = {name: self.counts[name] for name in ("rounds", "records", *RARE_COUNTS)}
        folder = str(self.versions.folder)
        return AggregateReport(folder, state.version, mark, state.windows, state.final, late_ever=state.late, **counts)


def _tally(sums: DataFrame, spec: WindowSpec, watermark_us: int | None) -> tuple[Counter[str], dict[int, int]]:
    """The number of records by outcome, the number of late records, and the latest event time of each partition."""
    is_late = (f.col("outcome") == COUNTED) & windows.is_final_at(spec, watermark_us)
    counts: Counter[str] = Counter()
    latest: dict[int, int] = {}
    grouped = sums.groupBy("partition", "outcome", is_late.alias("is_late"))
    for row in collect_rows(grouped.agg(f.sum("records").alias("records"), f.max("latest_us").alias("latest_us"))):
        counts[row["outcome"]] += row["records"]
        if row["is_late"]:
            counts["late"] += row["records"]
        if row["latest_us"] is not None:
            latest[row["partition"]] = max(row["latest_us"], latest.get(row["partition"], row["latest_us"]))
    counts[COUNTED] //= spec.length // spec.slide  # a record belongs to that many windows
    counts["records"] = sum(counts[outcome] for outcome in (COUNTED, MALFORMED, LEFT_OUT, TIMELESS))
    return counts, latest


def _state(
    spark: SparkSession, settings: AggregateSettings, spec: WindowSpec, versions: Versions, source: InputSource
) -> _State:
    """The current state; it belongs to one topic of one cluster and one computation."""
    state = versions.state(_State, FORMER_NAMES)
    if state is None:
        decode_format, schema, framing = settings.decode, settings.schema, settings.framing
        decoding = choose_decoding(spark, decode_format, schema, framing, _sample(spark, settings, source))
        state = _State(
            secrets.token_hex(8),
            source.cluster,
            source.topic.name,
            source.topic.id,
            _computation(settings),
            asdict(decoding),
        )
    if (state.cluster, state.topic) != (source.cluster, source.topic.name):
        raise JobError(f"{versions.folder} is the aggregate of the topic {state.topic} of the cluster {state.cluster}.")
    for name, value in _computation(settings).items():
        if state.computation[name] != value:
            raise JobError(
                f"{versions.folder} was created with --{name} {_display(state.computation[name])}, not {_display(value)}: "
                "use another folder for another computation."
            )
    decoding = Decoding(**state.decoding)
    check_decoding(str(versions.folder), decoding, settings.decode, settings.schema, settings.framing)
    windows.check_expressions(decode(no_records(spark).select(*COLUMNS), decoding), spec)
    return state


def _computation(settings: AggregateSettings) -> dict[str, Any]:
    """The computation as given in the settings (rule 3)."""
    return {
        "window": settings.window,
        "slide": settings.slide,
        "time": settings.time,
        "by": list(as_tuple(settings.by)),
        "compute": list(as_tuple(settings.compute)),
        "where": settings.where,
        "decode": settings.decode,
    }


def _sample(spark: SparkSession, settings: AggregateSettings, source: InputSource) -> DataFrame:
    """The first records, for schema inference."""
    positions = {tp: StartPosition(start) for tp, start in source.beginning_offsets().items()}
    return source.read(spark, plan_round(positions, source.end_offsets(), settings.max_offsets_per_trigger))


def _display(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
