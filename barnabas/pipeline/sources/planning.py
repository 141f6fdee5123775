"""Plans a read: the offsets of each segment, one task per segment.

RULES    1. The driver decides everything that needs several segments: ends, timestamps, aborted transactions.
         2. With a broker, its log start and end offsets are used; everything else is read from the files.
         3. A start below the log start or an end above the log end is missing records. Without failOnDataLoss the available
            records are read. A start above the end is always refused.
         4. A timestamp means the first record that is at least as late, in offset order, including transaction markers, as in a
            broker. A start without such a record is refused unless the strategy is `latest`; an end is then the log end.
         5. The files are listed again after the broker was asked: a log that is being written may have grown beyond the files
            and frames of the first list, but it never ends before a high watermark that the broker has named.
         6. A file that the broker has deleted or replaced during the plan makes it begin again.
         7. A partition has no files before its first record. With a broker that has it, it is read as an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.sources.damage import BadOption, MissingRecords
from barnabas.pipeline.sources.decoding import Aborted, ReadRequest
from barnabas.pipeline.sources.partition_logs import AnyLog, Task, Transactions, find_logs, first_at, transactions_of
from barnabas.pipeline.sources.segment_options import EARLIEST, LATEST, SegmentOptions

if TYPE_CHECKING:
    from barnabas.pipeline.brokers import Brokers

_ATTEMPTS = 5
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
    for _ in range(_ATTEMPTS - 1):
        with suppress(FileNotFoundError):  # rule 6
            return _plan(options)
    try:
        return _plan(options)
    except FileNotFoundError as error:
        raise MissingRecords(f"{error.filename} is missing; the query may be repeated.") from error


def _plan(options: SegmentOptions) -> list[Task]:
    logs = _find_selected(options)
    if "bootstrap.servers" not in options.client_settings:
        _check_all_found(options, logs)
        return [task for log in logs for task in _tasks_of(log, options, None)]
    brokers = _brokers(options)
    _check_all_found(options, logs, _find_unused(brokers, options, logs))
    extents = _ask_brokers(brokers, logs)
    logs = [log for log in _find_selected(options) if log.tp in extents]
    return [task for log in logs for task in _tasks_of(log, options, extents[log.tp])]


def _find_selected(options: SegmentOptions) -> list[AnyLog]:
    return [log for log in find_logs(options.paths) if options.selects(log.tp)]


def _check_all_found(
    options: SegmentOptions, logs: list[AnyLog], unused: AbstractSet[TopicPartition] = frozenset()
) -> None:
    """Raises BadOption unless all selected partitions have logs, or never had records (`unused`)."""
    found = {log.tp for log in logs}
    where = ", ".join(options.paths)
    if options.pattern is not None and not found:
        raise BadOption(f"No topic in {where} matches {options.pattern!r}.")
    missing = sorted(set(options.topics) - {tp.topic for tp in found | unused})
    missing += map(str, sorted(options.assigned - found - unused))
    if missing:
        raise BadOption(f"{', '.join(missing)}: not in {where}.")
    for name, bound in (("starting", options.starting), ("ending", options.ending)):
        if bound.by_partition is not None and bound.by_partition.keys() - unused != found:
            raise BadOption(
                f"The {name} offsets name {_list(set(bound.by_partition))}, and what is read is {_list(found)}: name every "
                "partition; -2 is its earliest offset and -1 its latest."
            )


def _find_unused(brokers: Brokers, options: SegmentOptions, logs: list[AnyLog]) -> set[TopicPartition]:
    """The partitions of topics that the options name and that never had a record (rule 7)."""
    found = {log.tp for log in logs}
    bounds = (bound.by_partition or {} for bound in (options.starting, options.ending))
    topics = {tp.topic for named in (options.assigned, *bounds) for tp in named}.union(options.topics)
    existing = brokers.find_topics([topic for topic in topics if brokers.exists(topic)]).values()
    others = {tp for topic in existing for tp in topic.topic_partitions() if options.selects(tp)} - found
    return {tp for tp, end in brokers.high_watermarks(others).items() if not end}


def _list(partitions: set[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"


def _brokers(options: SegmentOptions) -> Brokers:
    from barnabas.pipeline.brokers import Brokers
    from barnabas.pipeline.settings import BrokerSettings

    security = tuple(
        f"{name}={value}" for name, value in options.client_settings.items() if name.startswith(_CLIENT_SETTINGS)
    )
    return Brokers(BrokerSettings(bootstrap=options.client_settings["bootstrap.servers"], kafka=security))


def _ask_brokers(brokers: Brokers, logs: list[AnyLog]) -> Mapping[TopicPartition, Extent]:
    """The extents of logs, from the broker (rule 2)."""
    partitions = [log.tp for log in logs]
    stable_ends, ends = brokers.end_offsets(partitions), brokers.high_watermarks(partitions)
    starts = brokers.beginning_offsets(partitions)
    return {tp: Extent(starts[tp], ends[tp], stable_ends[tp]) for tp in partitions}


def _tasks_of(log: AnyLog, options: SegmentOptions, broker_extent: Extent | None) -> list[Task]:
    """The tasks of a partition; without `broker_extent` its offsets are those of the files."""
    start = log.start_offset if broker_extent is None else max(broker_extent.start, log.bases[0])
    log = replace(log, start_offset=start)
    if broker_extent is not None:
        end = broker_extent.end
    elif options.ends_at_high_watermark and log.known_end is not None:
        end = log.known_end
    else:
        end = log.written_end()
    transactions = transactions_of(log, end) if options.is_committed else Transactions((), end)
    stable_end = transactions.last_stable_offset
    if broker_extent is not None and options.is_committed:
        stable_end = min(stable_end, broker_extent.stable_end)
    extent = Extent(start, end, stable_end)
    first, last = _start_offset(log, options, extent), _end_offset(log, options, extent)
    if first > last:
        raise BadOption(f"The starting offset {first} of {log.tp} is above its ending offset {last}.")
    request = ReadRequest(log.tp, max(first, start), min(last, stable_end), options.columns)
    tasks = log.tasks(
        request, end_is_from_broker=broker_extent is not None, fail_on_data_loss=options.fail_on_data_loss
    )
    return [(part, wanted._replace(aborted=_aborted_in(wanted, transactions))) for part, wanted in tasks]


def _aborted_in(request: ReadRequest, transactions: Transactions) -> tuple[Aborted, ...]:
    return tuple(
        transaction
        for transaction in transactions.aborted
        if transaction.first_offset < request.end_offset and transaction.last_offset >= request.start_offset
    )


def _start_offset(log: AnyLog, options: SegmentOptions, extent: Extent) -> int:
    wanted_offset = options.starting.of(log.tp)
    if options.starting.is_time:
        found = first_at(log, wanted_offset, extent.stable_end)
        if found is None and not options.start_is_latest_without_match:
            raise MissingRecords(
                f"{log.tp} has no record at or after {wanted_offset} ms; "
                "startingOffsetsByTimestampStrategy=latest reads nothing there."
            )
        return extent.stable_end if found is None else found
    return extent.start if wanted_offset == EARLIEST else _checked(log, options, wanted_offset, extent)


def _end_offset(log: AnyLog, options: SegmentOptions, extent: Extent) -> int:
    bound = options.ending
    wanted_offset = bound.of(log.tp)
    if bound.is_time:
        found = first_at(log, wanted_offset, extent.stable_end)
        return extent.stable_end if found is None else found
    return extent.stable_end if wanted_offset == LATEST else _checked(log, options, wanted_offset, extent)


def _checked(log: AnyLog, options: SegmentOptions, offset: int, extent: Extent) -> int:
    """An offset, unless it is outside the log (rule 3)."""
    if not extent.start <= offset <= extent.stable_end and options.fail_on_data_loss:
        raise MissingRecords(
            f"{log.tp} goes from offset {extent.start} to {extent.stable_end}, and offset {offset} is "
            "requested; failOnDataLoss=false reads the existing records."
        )
    return offset
