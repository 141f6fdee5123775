"""The options of `format("barnabas.segments")`, named as in Spark's Kafka source.

    path, or load(path, ...)        log directories of a broker, or directories of single partitions
    subscribe | subscribePattern | assign                 topic,topic | a regular expression, searched in the topic's
                                    name | {"topic": [0, 1]}
    startingOffsets                 earliest (default) or {"topic": {"0": 17, "1": -2}}; -2 is the earliest
    startingTimestamp, startingOffsetsByTimestamp         milliseconds, for all or {"topic": {"0": 1700000000000}}
    startingOffsetsByTimestampStrategy                    error (default) or latest: if no record is as late
    endingOffsets, endingTimestamp, endingOffsetsByTimestamp                                likewise; latest (default) or -1
    includeHeaders                  true: adds the column headers
    columns                         key,offset,...: only these
    kafka.isolation.level           read_committed (default) or read_uncommitted
    failOnDataLoss                  true (default): missing records fail the query
    kafka.bootstrap.servers         a broker for the logs' start and end offsets; without it, checkpoints are used
    until                           committed (default): the high watermark; written: the last complete batch

RULES    1. Duplicate, invalid and unknown options are refused in a sentence.
         2. Offsets by partition must name every partition, as for the Kafka source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from barnabas.client.errors import BAD_EXPRESSION
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.sources.damage import BadOption
from barnabas.pipeline.sources.decoding import COLUMN_TYPES, COLUMNS

EARLIEST, LATEST = -2, -1
INTERNAL = {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
"""Internal topics, which a pattern never matches."""

_KNOWN = {
    name.lower(): name
    for name in (
        *("path", "paths", "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp"),
        *("startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp"),
        *("endingOffsetsByTimestamp", "includeHeaders", "columns", "failOnDataLoss", "until"),
    )
}


class Bound(NamedTuple):
    """A start or an end: one value for all partitions, or one for each."""

    for_all: int | None
    by_partition: Mapping[TopicPartition, int] | None
    is_time: bool

    def of(self, tp: TopicPartition) -> int:
        """Returns the value for a partition."""
        if self.for_all is not None:
            return self.for_all
        assert self.by_partition is not None
        return self.by_partition[tp]


class SegmentOptions(NamedTuple):
    """The parsed options."""

    paths: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str | None
    assigned: frozenset[TopicPartition]
    starting: Bound
    ending: Bound
    start_is_latest_without_match: bool
    """The option `startingOffsetsByTimestampStrategy` is `latest`."""
    columns: tuple[str, ...]
    is_committed: bool
    """The isolation level is read_committed."""
    fail_on_data_loss: bool
    client_settings: Mapping[str, str]
    ends_at_high_watermark: bool
    """The option `until` is `committed`."""

    def selects(self, tp: TopicPartition) -> bool:
        """Whether a partition is selected."""
        if self.assigned:
            return tp in self.assigned
        if self.pattern is not None:
            return tp.topic not in INTERNAL and bool(re.search(self.pattern, tp.topic))
        return tp.topic in self.topics


def parse_options(given: Mapping[str, str]) -> SegmentOptions:
    """Parses the options; Spark may change the case of names. Raises BadOption."""
    values = {name.lower(): value for name, value in given.items()}
    client = {name[len("kafka.") :]: value for name, value in values.items() if name.startswith("kafka.")}
    for name in given:
        if name.lower() not in _KNOWN and not name.lower().startswith("kafka."):
            raise BadOption(f"There is no option {name}; there are {', '.join(sorted(_KNOWN.values()))}.")
    isolation = client.pop("isolation.level", "read_committed")
    if isolation not in {"read_committed", "read_uncommitted"}:
        raise BadOption(f"kafka.isolation.level is read_committed or read_uncommitted, not {isolation!r}.")
    chosen = [name for name in ("subscribe", "subscribepattern", "assign") if values.get(name)]
    if len(chosen) != 1:
        raise BadOption("Give exactly one of the options subscribe, subscribePattern and assign: the topics to read.")
    return SegmentOptions(
        _paths(values),
        tuple(name.strip() for name in values.get("subscribe", "").split(",") if name.strip()),
        _pattern(values.get("subscribepattern")),
        _assigned(values.get("assign")),
        _bound(values, "starting", EARLIEST),
        _bound(values, "ending", LATEST),
        _word(values, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error") == "latest",
        _columns(values),
        isolation == "read_committed",
        _flag(values, "failOnDataLoss", default=True),
        client,
        _word(values, "until", ("committed", "written"), "committed") == "committed",
    )


def _paths(values: Mapping[str, str]) -> tuple[str, ...]:
    paths = [path.strip() for path in values.get("path", "").split(",") if path.strip()]
    if "paths" in values:
        paths += _json(values, "paths", list)
    if not paths:
        raise BadOption("Give the option path, or load(PATH): the log directories to read.")
    return tuple(str(path).removeprefix("file://") for path in paths)


def _pattern(text: str | None) -> str | None:
    try:
        return text and re.compile(text).pattern
    except BAD_EXPRESSION as error:
        raise BadOption(f"subscribePattern {text!r} is not a regular expression: {error}.") from error


def _assigned(text: str | None) -> frozenset[TopicPartition]:
    if not text:
        return frozenset()
    table = _json({"assign": text}, "assign", dict)
    try:
        return frozenset(
            TopicPartition(topic, int(partition)) for topic, numbers in table.items() for partition in numbers
        )
    except (TypeError, ValueError) as error:
        raise BadOption('assign is JSON like {"topic": [0, 1]}.') from error


def _bound(values: Mapping[str, str], which: str, default: int) -> Bound:
    names = [f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"]
    given = [name for name in names if name.lower() in values]
    if not given:
        return Bound(default, None, is_time=False)
    if len(given) > 1:
        raise BadOption(f"{' and '.join(given)} exclude each other.")
    name, text = given[0], values[given[0].lower()]
    if name == names[0]:
        try:
            return Bound(int(text), None, is_time=True)
        except ValueError as error:
            raise BadOption(f"{name} is a number of milliseconds, not {text!r}.") from error
    is_time = name == names[1]
    if not is_time and text.lower() in {"earliest", "latest"}:
        if text.lower() == "earliest" and which == "ending":
            raise BadOption("endingOffsets cannot be earliest.")
        if text.lower() == "latest" and which == "starting":
            raise BadOption("startingOffsets cannot be latest: a batch would have nothing to read.")
        return Bound(default, None, is_time=False)
    table = _json(values, name, dict)
    try:
        offsets = {
            TopicPartition(topic, int(number)): int(value)
            for topic, row in table.items()
            for number, value in row.items()
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise BadOption(f'{name} is JSON like {{"topic": {{"0": 17}}}}.') from error
    if not is_time:
        _refuse_negative(offsets, which)
    return Bound(None, offsets, is_time)


def _refuse_negative(offsets: Mapping[TopicPartition, int], which: str) -> None:
    """Raises BadOption for negative offsets that a batch query cannot use."""
    for tp, offset in offsets.items():
        if offset < 0 and offset != (EARLIEST if which == "starting" else LATEST):
            meaning = {EARLIEST: "the earliest offset", LATEST: "the latest offset"}.get(offset, "no offset")
            raise BadOption(f"{which}Offsets of {tp} is {offset}, {meaning}: that cannot be in a batch.")


def _columns(values: Mapping[str, str]) -> tuple[str, ...]:
    columns = tuple(name.strip() for name in values.get("columns", "").split(",") if name.strip()) or COLUMNS
    for name in columns:
        if name not in COLUMN_TYPES:
            raise BadOption(f"There is no column {name}; there are {', '.join(COLUMN_TYPES)}.")
    if _flag(values, "includeHeaders", default=False) and "headers" not in columns:
        return (*columns, "headers")
    return columns


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _word(values, name, ("true", "false"), str(default)) == "true"


def _word(values: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    text = values.get(name.lower(), default)
    if text.lower() not in choices:
        raise BadOption(f"{name} is {' or '.join(choices)}, not {text!r}.")
    return text.lower()


def _json(values: Mapping[str, str], name: str, kind: type) -> Any:
    try:
        value = json.loads(values[name.lower()])
    except ValueError as error:
        raise BadOption(f"{name} is not JSON: {values[name.lower()]!r}.") from error
    if not isinstance(value, kind):
        raise BadOption(f"{name} is a JSON {'object' if kind is dict else 'list'}, not {values[name.lower()]!r}.")
    return value
