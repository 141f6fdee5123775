"""Plans a read: the offsets of each segment, one task per segment.

RULES    1. The driver decides everything that needs several segments: ends, timestamps, aborted transactions.
         2. With a broker, its log start and end offsets are used; everything else is read from the files.
         3. A start below the log start or an end above the log end is missing records. Without failOnDataLoss the available
            records are read. A start above the end is always refused.
         4. A timestamp means the first record that is at least as late, in offset order, including transaction markers, as in a
            broker. A start without such a record is refused unless the strategy is `latest`; an end is then the log end.
         5. The files are listed again after the broker was asked: a log that is being written may have grown beyond the files
            and frames of the first list, but it never ends before a high watermark that the broker has named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from barnabas.pipeline.sources.damage import BadOption, MissingRecords
from barnabas.pipeline.sources.decoding import Aborted, ReadRequest
from barnabas.pipeline.sources.partition_logs import AnyLog, Task, Transactions, find_logs, first_at, transactions_of
from barnabas.pipeline.sources.segment_options import EARLIEST, LATEST, Bound, SegmentOptions

PartitionKey = tuple[str, int]
_CLIENT_SETTINGS = ("security.", "sasl.", "ssl.")


class Extent(NamedTuple):
    """The offsets of a log that a reader may see."""

    start: int
    end: int
    """The high watermark, or its substitute."""
    stable_end: int
    """The end for committed readers."""


def plan(options: SegmentOptions) -> list[Task]:
    """Returns the segments to read, ordered by topic, partition and offset. Raises BadOption or MissingRecords."""
    logs = _find_selected(options)
    if "bootstrap.servers" not in options.client:
        return [part for log in logs for part in _parts(log, options, None)]
    extents = _ask_brokers(options, logs)
    logs = [log for log in _find_selected(options) if (log.topic, log.partition) in extents]
    return [part for log in logs for part in _parts(log, options, extents[log.topic, log.partition])]


def _find_selected(options: SegmentOptions) -> list[AnyLog]:
    logs = [log for log in find_logs(options.paths) if options.selects(log.topic, log.partition)]
    _check_all_found(options, {(log.topic, log.partition) for log in logs})
    return logs


def _check_all_found(options: SegmentOptions, found: set[PartitionKey]) -> None:
    where = ", ".join(options.paths)
    if options.pattern is not None and not found:
        raise BadOption(f"No topic in {where} matches {options.pattern!r}.")
    missing = sorted(set(options.topics) - {topic for topic, _ in found})
    missing += [f"{topic}-{partition}" for topic, partition in sorted(set(options.assigned) - found)]
    if missing:
        raise BadOption(f"{', '.join(missing)}: not in {where}.")
    for name, bound in (("starting", options.starting), ("ending", options.ending)):
        if bound.by_partition is not None and bound.by_partition.keys() != found:
            raise BadOption(
                f"The {name} offsets name {_list(set(bound.by_partition))}, and what is read is {_list(found)}: name every "
                "partition; -2 is its earliest offset and -1 its latest."
            )


def _list(positions: set[PartitionKey]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(positions)) or "none"


def _ask_brokers(options: SegmentOptions, logs: list[AnyLog]) -> Mapping[PartitionKey, Extent]:
    """The extents of logs, from the broker (rule 2)."""
    from barnabas.client.topic_partition import TopicPartition as BrokerPartition
    from barnabas.pipeline.brokers import Brokers
    from barnabas.pipeline.settings import BrokerSettings

    secrets = tuple(f"{name}={value}" for name, value in options.client.items() if name.startswith(_CLIENT_SETTINGS))
    brokers = Brokers(BrokerSettings(bootstrap=options.client["bootstrap.servers"], kafka=secrets))
    positions = [BrokerPartition(log.topic, log.partition) for log in logs]
    stable_ends, ends, starts = (
        brokers.end_offsets(positions),
        brokers.high_watermarks(positions),
        brokers.beginning_offsets(positions),
    )
    return {(tp.topic, tp.partition): Extent(starts[tp], ends[tp], stable_ends[tp]) for tp in positions}


def _parts(log: AnyLog, options: SegmentOptions, broker_extent: Extent | None) -> list[Task]:
    start = log.start_offset if broker_extent is None else max(broker_extent.start, log.bases[0])
    log = replace(log, start_offset=start)
    if broker_extent is not None:
        end = broker_extent.end
    elif options.is_bounded and log.known_end is not None:
        end = log.known_end
    else:
        end = log.written_end()
    transactions = transactions_of(log, end) if options.is_committed else Transactions((), end)
    stable_end = (
        min(transactions.last_stable_offset, broker_extent.stable_end)
        if broker_extent and options.is_committed
        else None
    )
    extent = Extent(start, end, transactions.last_stable_offset if stable_end is None else stable_end)
    first, last = _first(log, options, extent), _last(log, options, extent)
    if first > last:
        raise BadOption(f"{log.topic}-{log.partition} would be read from {first} on, and ends before {last}.")
    first, last = max(first, extent.start), min(last, extent.stable_end)
    request = ReadRequest(log.topic, log.partition, first, last, options.columns)
    found = log.tasks(request, end_is_certain=broker_extent is not None, fail_on_data_loss=options.fail_on_data_loss)
    return [(task, wanted._replace(aborted=_aborted_in(wanted, transactions))) for task, wanted in found]


def _aborted_in(request: ReadRequest, transactions: Transactions) -> tuple[Aborted, ...]:
    return tuple(
        transaction
        for transaction in transactions.aborted
        if transaction.first_offset < request.end_offset and transaction.last_offset >= request.start_offset
    )


def _first(log: AnyLog, options: SegmentOptions, extent: Extent) -> int:
    tp = log.topic, log.partition
    wanted_offset = options.starting.of(tp)
    if options.starting.is_time:
        found = first_at(log, wanted_offset, extent.stable_end)
        if found is None and not options.is_latest_when_later:
            raise MissingRecords(
                f"{log.topic}-{log.partition} has no record at or after {wanted_offset} ms; "
                "startingOffsetsByTimestampStrategy=latest reads nothing there."
            )
        return extent.stable_end if found is None else found
    return extent.start if wanted_offset == EARLIEST else _checked(log, options, wanted_offset, extent)


def _last(log: AnyLog, options: SegmentOptions, extent: Extent) -> int:
    bound: Bound = options.ending
    wanted_offset = bound.of((log.topic, log.partition))
    if bound.is_time:
        found = first_at(log, wanted_offset, extent.stable_end)
        return extent.stable_end if found is None else found
    return extent.stable_end if wanted_offset == LATEST else _checked(log, options, wanted_offset, extent)


def _checked(log: AnyLog, options: SegmentOptions, offset: int, extent: Extent) -> int:
    """An offset, unless it is outside the log (rule 3)."""
    if not extent.start <= offset <= extent.stable_end and options.fail_on_data_loss:
        raise MissingRecords(
            f"{log.topic}-{log.partition} goes from offset {extent.start} to {extent.stable_end}, and offset {offset} is "
            "requested; failOnDataLoss=false reads the existing records."
        )
    return offset
