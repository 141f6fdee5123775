"""Windows of event time over a topic, kept up to date as Parquet: counts, sums, minima, maxima and averages by group.

FORMAT   current/windows    a row for each window and group; `is_final` says whether it can change any more
         current/late       what came for windows that were final: rows of the same kind, and in which version they came
         _barnabas/aggregate.json   what is computed, which version counts, the offsets that it holds, the watermark
RULES    1. A round reads fixed offsets. The version that it writes counts by one rename, together with its offsets and the
            watermark (`store/versions.py`): a record is in the windows once, whoever is killed when.
         2. Whether a record is late is judged by the watermark as it was when its round began. A window that is final never
            changes; what is late is counted, told and kept beside.
         3. What is computed is settled with the first version; other windows, groups or measures want another folder. Only the
            allowed lateness may change.
NOT HERE The steps (`windows.py`, `measures.py`), when a window is final (`watermark.py`), the files (`aggregate_files.py`).
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from barnabas.pipeline.brokers import Place, Span
from barnabas.pipeline.datetimes import duration_s
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.aggregate import windows
from barnabas.pipeline.jobs.aggregate.aggregate_files import FINAL, OPEN, Draft, open_sums
from barnabas.pipeline.jobs.aggregate.input_source import OfArchive, OfTopic, Origin
from barnabas.pipeline.jobs.aggregate.measures import distinct, measure, named
from barnabas.pipeline.jobs.aggregate.watermark import watermark
from barnabas.pipeline.jobs.aggregate.windows import COUNTED, LEFT_OUT, MALFORMED, OWN_COLUMNS, TIMELESS, Shape
from barnabas.pipeline.jobs.data_files import own_session
from barnabas.pipeline.jobs.rounds import RoundSettings, Waiting, plan_round, where_to_start
from barnabas.pipeline.reporting.reporter import Tell
from barnabas.pipeline.settings import setting, texts
from barnabas.pipeline.spark.rows import collected
from barnabas.pipeline.spark.value_decoding import Decoding, decode, settle_decoding
from barnabas.pipeline.store.archive_reader import COLUMNS, no_records
from barnabas.pipeline.store.folder_lock import held, local_folder
from barnabas.pipeline.store.versions import OWN, Versions

SECOND_US = 1_000_000


@dataclass(frozen=True, kw_only=True)
class AggregateSettings(RoundSettings):
    """What `aggregate` is told."""

    topic: str = setting("The topic.", metavar="NAME")
    into: Path = setting("The folder of the result.", metavar="FOLDER")
    window: str = setting("How long a window is, such as `1 hour`.", metavar="DURATION")
    slide: str | None = setting(
        "How long after a window the next one begins.  [default: when it ends]", None, metavar="DURATION"
    )
    lateness: str = setting("By how much events may come out of order.", "10 minutes", metavar="DURATION")
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
    archive: Path | None = setting("Read this archive of the topic, and ask no broker.", None, metavar="FOLDER")
    decode: str = setting("How values are decoded, into `data`: raw, json or avro.", "raw")
    schema: Path | None = setting("The schema of the values; JSON without one is inferred.", None, metavar="FILE")
    framing: str = setting("How Avro is framed: plain, or confluent (a magic byte and a schema id before it).", "plain")
    continuous: bool = setting("Go on until stopped, instead of ending with what is there now.", False)
    interval: float = setting("With --continuous: seconds between two looks at the topic.", 10.0)
    group: str | None = setting("The consumer group that shows the progress.  [default: barnabas-aggregate-<id>]", None)

    def __post_init__(self) -> None:
        super().__post_init__()
        shape_of(self)
        duration_s("--lateness", self.lateness)

    @property
    def asks_broker(self) -> bool:
        """An archive is read without one."""
        return self.archive is None


@dataclass
class AggregateReport:
    """What a run did; and the result as it stands."""

    aggregate: str
    version: int
    watermark: str | None
    """Windows that ended by then are final."""
    windows: int
    """Rows of the result."""
    final: int
    rounds: int = 0
    records: int = 0
    malformed: int = 0
    left_out: int = 0
    timeless: int = 0
    late: int = 0
    """For as many final windows something came, in this run; `late_ever` in all runs."""
    late_ever: int = 0
    lost: int = 0
    """Offsets that the broker had forgotten before they were read."""
    seconds: float = 0.0


@dataclass(frozen=True)
class _State:
    """What aggregate.json says."""

    id: str
    cluster: str
    topic: str
    topic_id: str
    asked: dict[str, Any]
    decoding: dict[str, str]
    version: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    latest_us: dict[str, int] = field(default_factory=dict)
    watermark_us: int | None = None
    windows: int = 0
    final: int = 0
    late: int = 0
    lost: int = 0


def aggregate(spark: SparkSession, settings: AggregateSettings, tell: Tell = lambda _: None) -> AggregateReport:
    """Bring the windows up to what the topic holds now, or keep them so until stopped."""
    started = time.monotonic()
    shape = shape_of(settings)
    lateness_us = duration_s("--lateness", settings.lateness) * SECOND_US
    origin = (
        OfTopic(settings, settings.topic) if settings.archive is None else OfArchive(settings.archive, settings.topic)
    )
    folder = local_folder(settings.into)
    own = own_session(spark)
    with held(folder / OWN):
        versions = Versions(folder, "aggregate")
        state = _state(own, settings, shape, versions, origin)
        run = _Run(own, settings, shape, lateness_us, versions, origin, state, tell)
        try:
            report = run.follow() if settings.continuous else run.catch_up()
        except BaseException:
            versions.settle()  # a full disk gets its room back at once
            raise
    report.seconds = round(time.monotonic() - started, 1)
    return report


def shape_of(settings: AggregateSettings) -> Shape:
    """What is computed, or what is wrong with it."""
    length = duration_s("--window", settings.window)
    slide = duration_s("--slide", settings.slide) if settings.slide is not None else length
    if not 0 < slide <= length or length % slide:
        raise JobError("--window takes more than 0 seconds, and --slide a part of it that goes into it without rest.")
    by = tuple(named("--by", text) for text in texts(settings.by))
    measures = tuple(measure(text) for text in texts(settings.compute))
    distinct([*(one.name for one in by), *(one.name for one in measures)], OWN_COLUMNS)
    return Shape(length * SECOND_US, slide * SECOND_US, by, measures, settings.time, settings.where)


class _Run:
    """One run, round by round."""

    def __init__(
        self,
        spark: SparkSession,
        settings: AggregateSettings,
        shape: Shape,
        lateness_us: int,
        versions: Versions,
        origin: Origin,
        state: _State,
        tell: Tell,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._shape = shape
        self._lateness_us = lateness_us
        self._versions = versions
        self._origin = origin
        self._state = state
        self._tell = tell
        self._counts: Counter[str] = Counter()

    def catch_up(self) -> AggregateReport:
        """Rounds up to what the topic holds now."""
        self._versions.settle()
        ends = self._origin.ends()
        while self._round(ends):
            pass
        self._show()  # also when the run that read it was killed at once
        return self._report()

    def follow(self) -> AggregateReport:
        """Rounds until somebody interrupts."""
        self._versions.settle()
        try:
            while True:
                if not self._round(self._origin.ends()):
                    time.sleep(self._settings.interval)
        except KeyboardInterrupt:
            self._versions.settle()
            return self._report()

    def _round(self, ends: dict[Place, int]) -> bool:
        """One round; False when nothing is waiting."""
        topic = self._origin.topic
        waiting = where_to_start(
            dict.fromkeys(ends, topic),
            {Place(topic.name, int(number)): end for number, end in self._state.ends.items()},
            {topic.name: self._state.topic_id},
            self._origin.starts(),
            ends,
            fail_on_data_loss=self._settings.fail_on_data_loss,
        )
        spans = plan_round(waiting, ends, self._settings.max_offsets_per_trigger)
        if not spans:
            return False
        started = time.monotonic()
        staged = self._versions.stage()
        records = decode(self._origin.read(self._spark, spans), Decoding(**self._state.decoding))
        sums = self._kept(windows.summed(windows.judged(records, self._shape), self._shape), staged / "round")
        counts, latest_us = _tally(sums, self._shape, self._state.watermark_us)
        counts["lost"] = sum(waiting[place].lost for place in spans)
        behind = {place: end - spans[place].end if place in spans else 0 for place, end in ends.items()}
        self._commit(staged, sums, self._next(spans, behind, counts, latest_us))
        self._counts += counts
        self._show()
        self._account(counts, sum(behind.values()), time.monotonic() - started)
        return True

    def _next(
        self, spans: dict[Place, Span], behind: dict[Place, int], counts: Counter[str], latest_us: dict[int, int]
    ) -> _State:
        """The state after the round; how many rows there are then is not known yet."""
        state = self._state
        latest = {int(number): us for number, us in state.latest_us.items()}
        for partition, us in latest_us.items():
            latest[partition] = max(us, latest.get(partition, us))
        waiting = [place.partition for place, offsets in behind.items() if offsets]
        now_us = int(time.time() * SECOND_US)
        return replace(
            state,
            version=state.version + 1,
            ends=state.ends | {str(place.partition): span.end for place, span in spans.items()},
            latest_us={str(number): us for number, us in sorted(latest.items())},
            watermark_us=watermark(state.watermark_us, latest, waiting, self._lateness_us, now_us),
            late=state.late + counts["late"],
            lost=state.lost + counts["lost"],
        )

    def _commit(self, staged: Path, sums: DataFrame, after: _State) -> None:
        """Write the next version, and have it count (rule 1)."""
        shape, before = self._shape, self._state
        held_before = self._versions.path(before.version) if before.version else None
        draft = Draft(staged, after.version, held_before)
        parts = [windows.in_time(sums, shape, before.watermark_us)]
        if held_before is not None:
            columns = sums.select(*windows.sum_columns(sums, shape)).schema
            parts.append(self._spark.read.schema(columns).parquet(str(open_sums(held_before))))
        now = draft.sums(windows.joined(parts, shape), windows.is_over(shape, after.watermark_us))
        draft.windows(windows.shown(now, shape, is_final=f.col("is_final")))
        has_late = after.late > before.late or held_before is None
        came = windows.joined([windows.late(sums, shape, before.watermark_us)], shape)
        draft.late(windows.shown(came, shape, came_in=f.lit(after.version)) if has_late else None)
        shutil.rmtree(staged / "round")
        rows = draft.counts()
        after = replace(after, windows=rows[FINAL] + rows[OPEN], final=rows[FINAL])
        self._versions.commit(staged, after.version, asdict(after))
        self._state = after

    def _kept(self, rows: DataFrame, path: Path) -> DataFrame:
        """Rows written down: what is done with them from here on reads the same, whatever is done again."""
        rows.write.parquet(str(path))
        return self._spark.read.schema(rows.schema).parquet(str(path))

    def _show(self) -> None:
        """Let any tool see the lag."""
        if self._state.version:
            held = {Place(self._state.topic, int(number)): end for number, end in self._state.ends.items()}
            self._origin.show(self._settings.group or f"barnabas-aggregate-{self._state.id}", held)

    def _account(self, counts: Counter[str], behind: int, seconds: float) -> None:
        self._counts["rounds"] += 1
        uncommon = {
            name.replace(" ", "_"): counts[name]
            for name in (MALFORMED, LEFT_OUT, TIMELESS, "late", "lost")
            if counts[name]
        }
        self._tell(
            {
                "version": self._state.version,
                "records": counts["records"],
                "windows": self._state.windows,
                "final": self._state.final,
                "seconds": round(seconds, 3),
                "behind": behind,
                **uncommon,
            }
        )

    def _report(self) -> AggregateReport:
        state, counts = self._state, self._counts
        return AggregateReport(
            aggregate=str(self._versions.folder),
            version=state.version,
            watermark=_words(state.watermark_us),
            windows=state.windows,
            final=state.final,
            rounds=counts["rounds"],
            records=counts["records"],
            malformed=counts[MALFORMED],
            left_out=counts[LEFT_OUT],
            timeless=counts[TIMELESS],
            late=counts["late"],
            late_ever=state.late,
            lost=counts["lost"],
        )


def _tally(sums: DataFrame, shape: Shape, watermark_us: int | None) -> tuple[Counter[str], dict[int, int]]:
    """How many records had which fate, how many were late, and the latest event time of each partition."""
    is_late = (f.col("fate") == COUNTED) & windows.is_over(shape, watermark_us)
    counts: Counter[str] = Counter()
    latest: dict[int, int] = {}
    grouped = sums.groupBy("partition", "fate", is_late.alias("is_late"))
    for row in collected(grouped.agg(f.sum("records").alias("records"), f.max("latest_us").alias("latest_us"))):
        counts[row["fate"]] += row["records"]
        if row["is_late"]:
            counts["late"] += row["records"]
        if row["latest_us"] is not None:
            latest[row["partition"]] = max(row["latest_us"], latest.get(row["partition"], row["latest_us"]))
    counts[COUNTED] //= shape.length // shape.slide  # a record is in as many windows
    counts["records"] = sum(counts[fate] for fate in (COUNTED, MALFORMED, LEFT_OUT, TIMELESS))
    return counts, latest


def _state(
    spark: SparkSession, settings: AggregateSettings, shape: Shape, versions: Versions, origin: Origin
) -> _State:
    """What the result is now; it is of one topic of one cluster, and of one thing, for ever."""
    said = versions.state()
    if said is None:
        wish, schema, framing = settings.decode, settings.schema, settings.framing
        decoding = settle_decoding(spark, wish, schema, framing, _first(spark, settings, origin))
        state = _State(
            secrets.token_hex(8), origin.cluster, origin.topic.name, origin.topic.id, _asked(settings), asdict(decoding)
        )
    else:
        try:
            state = _State(**said)
        except TypeError as failure:
            raise JobError(f"{versions.state_file} is damaged: {failure}.") from failure
    if (state.cluster, state.topic) != (origin.cluster, origin.topic.name):
        raise JobError(f"{versions.folder} is of the topic {state.topic} of the cluster {state.cluster}.")
    for name, value in _asked(settings).items():
        if state.asked[name] != value:
            raise JobError(
                f"{versions.folder} was begun with --{name} {_said(state.asked[name])}, and not {_said(value)}: "
                "another computation wants another folder."
            )
    windows.understand(decode(no_records(spark).select(*COLUMNS), Decoding(**state.decoding)), shape)
    return state


def _asked(settings: AggregateSettings) -> dict[str, Any]:
    """What is computed, as it was said (rule 3)."""
    return {
        "window": settings.window,
        "slide": settings.slide,
        "time": settings.time,
        "by": list(texts(settings.by)),
        "compute": list(texts(settings.compute)),
        "where": settings.where,
        "decode": settings.decode,
    }


def _first(spark: SparkSession, settings: AggregateSettings, origin: Origin) -> DataFrame:
    """The first records that there are, for a schema to be inferred from."""
    waiting = {place: Waiting(start) for place, start in origin.starts().items()}
    return origin.read(spark, plan_round(waiting, origin.ends(), settings.max_offsets_per_trigger))


def _said(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _words(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / SECOND_US, UTC).isoformat(timespec="seconds")
