"""From options to parts: which offsets of which segments are read, each segment by one task.

RULES    1. Everything that needs more than one segment is decided here, on the driver: ends, moments, aborted transactions.
         2. With a broker to ask, a log begins and ends where the broker says; its files are trusted for the rest.
         3. A start before the log's is missing records; an end behind the log's, too. Without failOnDataLoss what is there
            is read. A start behind the end is refused either way.
         4. A moment means the first record that is as late, in the order of offsets; markers of transactions count, as for a
            broker that is asked. As a start it must be there, unless the strategy is `latest`; as an end, where no record is
            as late the log's end stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from barnabas.pipeline.sources.damage import BadOption, MissingRecords
from barnabas.pipeline.sources.decoding import Wanted
from barnabas.pipeline.sources.partition_logs import PartitionLog, Transactions, find_logs, first_at, transactions_of
from barnabas.pipeline.sources.segment_options import EARLIEST, LATEST, Bound, SegmentOptions
from barnabas.pipeline.sources.segment_reading import Part

Place = tuple[str, int]
_CLIENT_SETTINGS = ("security.", "sasl.", "ssl.")


class Extent(NamedTuple):
    """How far a log goes for a reader."""

    start: int
    end: int
    """The high watermark, or what stands for it."""
    stable_end: int
    """What a reader of committed records may see."""


def plan(options: SegmentOptions) -> list[tuple[Part, Wanted]]:
    """The parts, in the order of topics, partitions and offsets."""
    logs = [log for log in find_logs(options.paths) if options.wants(log.topic, log.partition)]
    _see_that_all_are_there(options, {(log.topic, log.partition) for log in logs})
    asked = _ask(options, logs) if "bootstrap.servers" in options.client else {}
    return [part for log in logs for part in _parts(log, options, asked.get((log.topic, log.partition)))]


def _see_that_all_are_there(options: SegmentOptions, found: set[Place]) -> None:
    where = ", ".join(options.paths)
    if options.pattern is not None and not found:
        raise BadOption(f"No topic in {where} matches {options.pattern!r}.")
    missing = sorted(set(options.topics) - {topic for topic, _ in found})
    missing += [f"{topic}-{partition}" for topic, partition in sorted(set(options.assigned) - found)]
    if missing:
        raise BadOption(f"{', '.join(missing)}: not in {where}.")
    for name, bound in (("starting", options.starting), ("ending", options.ending)):
        if bound.by_place is not None and bound.by_place.keys() != found:
            raise BadOption(
                f"The {name} offsets name {_list(set(bound.by_place))}, and what is read is {_list(found)}: name every "
                "partition; -2 is its earliest offset and -1 its latest."
            )


def _list(places: set[Place]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(places)) or "none"


def _ask(options: SegmentOptions, logs: list[PartitionLog]) -> Mapping[Place, Extent]:
    """Rule 2."""
    from barnabas.pipeline.brokers import Brokers
    from barnabas.pipeline.brokers import Place as Partition
    from barnabas.pipeline.settings import BrokerSettings

    secrets = tuple(f"{name}={value}" for name, value in options.client.items() if name.startswith(_CLIENT_SETTINGS))
    brokers = Brokers(BrokerSettings(bootstrap=options.client["bootstrap.servers"], kafka=secrets))
    places = [Partition(log.topic, log.partition) for log in logs]
    stable_ends, ends, starts = brokers.ends(places), brokers.high_watermarks(places), brokers.starts(places)
    return {(place.topic, place.partition): Extent(starts[place], ends[place], stable_ends[place]) for place in places}


def _parts(log: PartitionLog, options: SegmentOptions, asked: Extent | None) -> list[tuple[Part, Wanted]]:
    start = log.start_offset if asked is None else max(asked.start, log.bases[0])
    log = log._replace(start_offset=start)
    end = _end_of(log, options) if asked is None else asked.end
    transactions = transactions_of(log, end) if options.is_committed else Transactions((), end)
    stable_end = min(transactions.last_stable_offset, asked.stable_end) if asked and options.is_committed else None
    extent = Extent(start, end, transactions.last_stable_offset if stable_end is None else stable_end)
    first, last = _first(log, options, extent), _last(log, options, extent)
    if first > last:
        raise BadOption(f"{log.topic}-{log.partition} would be read from {first} on, and ends before {last}.")
    first, last = max(first, extent.start), min(last, extent.stable_end)
    found = []
    for number in range(log.segment_of(first), len(log.bases)):
        base = log.bases[number]
        is_newest = number == len(log.bases) - 1
        begin, until = max(first, base), last if is_newest else min(last, log.bases[number + 1])
        if begin >= until:
            continue
        part = Part(
            log.directory,
            base,
            begin,
            until,
            is_newest,
            log.recovery_point,
            asked is not None,
            options.fail_on_data_loss,
        )
        aborted = tuple(one for one in transactions.aborted if one.first_offset < until and one.last_offset >= begin)
        found.append((part, Wanted(log.topic, log.partition, begin, until, options.columns, aborted)))
    return found


def _end_of(log: PartitionLog, options: SegmentOptions) -> int:
    if not options.is_bounded or log.known_end is None:
        return log.written_end()
    return log.known_end


def _first(log: PartitionLog, options: SegmentOptions, extent: Extent) -> int:
    place = log.topic, log.partition
    said = options.starting.of(place)
    if options.starting.is_time:
        found = first_at(log, said, extent.stable_end)
        if found is None and not options.is_latest_when_later:
            raise MissingRecords(
                f"{log.topic}-{log.partition} has no record at or after {said} ms; "
                "startingOffsetsByTimestampStrategy=latest reads nothing there."
            )
        return extent.stable_end if found is None else found
    return extent.start if said == EARLIEST else _checked(log, options, said, extent)


def _last(log: PartitionLog, options: SegmentOptions, extent: Extent) -> int:
    bound: Bound = options.ending
    said = bound.of((log.topic, log.partition))
    if bound.is_time:
        found = first_at(log, said, extent.stable_end)
        return extent.stable_end if found is None else found
    return extent.stable_end if said == LATEST else _checked(log, options, said, extent)


def _checked(log: PartitionLog, options: SegmentOptions, offset: int, extent: Extent) -> int:
    """Rule 3."""
    if not extent.start <= offset <= extent.stable_end and options.fail_on_data_loss:
        raise MissingRecords(
            f"{log.topic}-{log.partition} goes from offset {extent.start} to {extent.stable_end}, and offset {offset} is "
            "asked for; failOnDataLoss=false reads what is there."
        )
    return offset
