"""Which records of a partition: by offset, by distance from its ends, or by time.

FORMAT   start, end, 17, +10 (10 after the start), -10 (10 before the end); FROM:TO, each optional, TO excluded;
         @MOMENT, @MOMENT:MOMENT; a moment is one of `times.py`, start or end; after a moment a duration such as 10m is
         relative to it
RULES    1. Without TO a range ends at the end of the partition when the verb starts, or never with --follow.
         2. A range outside of the partition is cut to it. A moment after the last record is the end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from barnabas.cli.times import parse_duration_ms, parse_moment_ms
from barnabas.client.cluster import EARLIEST, LATEST, NO_OFFSET, Cluster
from barnabas.client.errors import ArgumentError
from barnabas.client.topic_partition import TopicPartition


class Place(NamedTuple):
    """One end of a range."""

    kind: str
    """offset, start (plus), end (minus), moment."""
    number: int = 0


class OffsetRange(NamedTuple):
    """From a place to another; None as its end: the end of the partition."""

    first: Place = Place("start")
    last: Place | None = None


def parse_range(text: str, now_ms: int | None = None) -> OffsetRange:
    """Parses a range. Raises ArgumentError."""
    now = int(time.time() * 1000) if now_ms is None else now_ms
    parse = _moments if text.startswith("@") else _offsets
    try:
        found = parse(text, now)
    except (ValueError, OverflowError) as failure:
        raise ArgumentError(
            f"--offset {text} is not a range ({failure}); -o 5:10, -o -100, -o @-1h:end are."
        ) from failure
    if found is None:
        raise ArgumentError(f"--offset {text} is not a range; -o 5:10, -o -100, -o @-1h:end are.")
    return found


def _offsets(text: str, _now: int) -> OffsetRange | None:
    first, _, last = text.partition(":")
    begin = _place(first) if first else Place("start")
    end = _place(last) if last else None
    if begin is None or (last and end is None) or not text:
        return None
    return OffsetRange(begin, end)


def _place(text: str) -> Place | None:
    if text in {"start", "end"}:
        return Place(text)
    if not re.fullmatch(r"[+-]?\d+", text):
        return None
    kind = {"+": "start", "-": "end"}.get(text[0], "offset")
    return Place(kind, int(text))


def _moments(text: str, now: int) -> OffsetRange | None:
    """Times have colons too, so each colon may be the one between both."""
    text = text[1:]
    for at in [len(text), *(found.start() for found in re.finditer(":", text))]:
        first = _moment(text[:at], now)
        if first is None:
            continue
        if at == len(text):
            return OffsetRange(first)
        if at == len(text) - 1:
            return OffsetRange(first)
        rest = text[at + 1 :].removeprefix("@")
        last = _moment(rest, now)
        if last is None and first.kind == "moment" and (length_ms := parse_duration_ms(rest)) is not None:
            last = Place("moment", first.number + length_ms)
        if last is not None:
            return OffsetRange(first, last)
    return None


def _moment(text: str, now: int) -> Place | None:
    if text in {"start", "end"}:
        return Place(text)
    moment_ms = parse_moment_ms(text, now)
    return None if moment_ms is None else Place("moment", moment_ms)


# --- in a cluster -----------------------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """The log of a partition."""

    start: int
    end: int


def resolve(
    cluster: Cluster, partitions: list[TopicPartition], wanted: OffsetRange, *, committed: bool, follow: bool
) -> dict[TopicPartition, tuple[int, int | None]]:
    """The first offset of each partition and the one after the last. Raises ArgumentError."""
    starts = cluster.offsets(dict.fromkeys(partitions, EARLIEST), committed=committed)
    ends = cluster.offsets(dict.fromkeys(partitions, LATEST), committed=committed)
    bounds = {partition: Bounds(starts[partition], ends[partition]) for partition in partitions}
    firsts = _offsets_of(cluster, bounds, wanted.first, committed=committed)
    if wanted.last is None:
        return {partition: (firsts[partition], None if follow else ends[partition]) for partition in partitions}
    lasts = _offsets_of(cluster, bounds, wanted.last, committed=committed)
    return {partition: (firsts[partition], lasts[partition]) for partition in partitions}


def _offsets_of(
    cluster: Cluster, bounds: Mapping[TopicPartition, Bounds], place: Place, *, committed: bool
) -> dict[TopicPartition, int]:
    if place.kind == "moment":
        found = cluster.offsets(dict.fromkeys(bounds, place.number), committed=committed)
        return {
            partition: bounds[partition].end if found[partition] == NO_OFFSET else found[partition]
            for partition in bounds
        }
    cut: dict[str, Callable[[Bounds], int]] = {
        "offset": lambda _log: place.number,
        "start": lambda log: log.start + place.number,
        "end": lambda log: log.end + place.number,
    }
    return {partition: min(max(cut[place.kind](log), log.start), log.end) for partition, log in bounds.items()}
