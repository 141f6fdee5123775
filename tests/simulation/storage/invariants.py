"""The invariants of a log, checked against the model (model.py).

RULES    1. A log that was never compacted contains exactly the written bytes from its start on.
         2. A compacted log contains only records that were written, the last committed record of every key, or if it is an
            expired tombstone perhaps no record of the key, and all records after the last compaction.
         3. Look-ups by offset and timestamp find the right batch; epochs are those of the batches.
         4. Producers, last stable offset and aborted transactions are those of the batches.
         5. The flushed offset does not exceed what is durable.
"""

from __future__ import annotations

from itertools import pairwise

from protocol.control_records import ControlType
from protocol.records import headers, records
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from tests.simulation.storage.model import Batch, Partition, Record
from tests.support.compaction import committed_records
from tests.support.logs import EVERYTHING, bytes_of
from tests.support.segments import region_bytes


def check_log(log: Log, partition: Partition) -> None:
    """Check all invariants, with everything replicated."""
    log.high_watermark = log.log_end_offset
    check_bounds(log, partition)
    if partition.has_gaps:
        _check_compacted(log, partition)
    else:
        _check_bytes(log, partition)
        _check_look_ups(log, partition)
        _check_times(log, partition)
    _check_epochs(log, partition)
    _check_producers(log, partition)
    _check_transactions(log, partition)


def check_bounds(log: Log, partition: Partition) -> None:
    """Check start, end and flushed offset."""
    assert log.log_end_offset == partition.end, f"the end is {log.log_end_offset}, not {partition.end}"
    assert log.log_start_offset == partition.start, f"the start is {log.log_start_offset}, not {partition.start}"
    if log.open().engine.size_bytes:
        assert log.recovery_point <= log.flushed_end_offset <= partition.flushed, (
            f"the flushed offset is {log.flushed_end_offset}, but only {partition.flushed} is durable"
        )


# ---- logs without gaps -----------------------------------------------------------------------------------------


def _check_bytes(log: Log, partition: Partition) -> None:
    expected = b"".join([batch.data for batch in partition.batches if batch.next_offset > partition.start])
    found = bytes_of(log)
    if found != expected:
        raise AssertionError(
            f"read {_summary(found)} instead of {[(b.base_offset, len(b.data)) for b in partition.batches]}"
        )


def _summary(data: bytes) -> list[tuple[int, int]]:
    return [(header.base_offset, header.size) for _, header in headers(data)]


def _check_look_ups(log: Log, partition: Partition) -> None:
    engine, end = log.open().engine, partition.end
    for batch in partition.batches:
        if batch.next_offset > partition.start:
            for offset in {max(batch.base_offset, partition.start), batch.next_offset - 1}:
                data = region_bytes(wait_for_disk(engine.locate, offset, 1, end, min_one_batch=True).regions)
                assert data == batch.data, f"offset {offset} leads to {_summary(data)}, not {batch.base_offset}"


def _check_times(log: Log, partition: Partition) -> None:
    left = [b for b in partition.batches if b.next_offset > partition.start]
    stamps = sorted({batch.timestamp_ms for batch in left})
    for target in [t + d for t in stamps[:: max(len(stamps) // 6, 1)] for d in (0, 1)]:
        first = next((batch for batch in left if batch.timestamp_ms >= target), None)
        found = wait_for_disk(log.open().reader.offset_for_timestamp, target)
        if first is None or first.ends is not None:
            expected = None if first is None else first.base_offset
        else:
            # Timestamps within a batch ascend here.
            expected = next(
                (r.offset for r in first.records if r.timestamp_ms >= target and r.offset >= partition.start), None
            )
            if expected is None:
                continue
        offset = found[1] if found else None
        assert offset == expected, f"time {target} leads to {offset}, not {expected}"
    if left and not partition.highest_start:
        latest = next(batch for batch in left if batch.timestamp_ms == stamps[-1])
        found = wait_for_disk(log.open().reader.offset_of_max_timestamp)
        assert found is not None
        assert (found[0], latest.base_offset <= found[1] < latest.next_offset) == (stamps[-1], True)


# ---- compacted logs --------------------------------------------------------------------------------------------


def _check_compacted(log: Log, partition: Partition) -> None:
    data = bytes_of(log)
    known: dict[int, Record] = {}
    markers = set()
    for batch in partition.batches:
        known.update((record.offset, record) for record in batch.records)
        if batch.ends is not None:
            markers.add(batch.base_offset)
    found: dict[int, Record] = {}
    found_headers = headers(data)
    for (_, one), (_, other) in pairwise(found_headers):
        assert one.next_offset <= other.base_offset, f"offset {other.base_offset} follows {one.last_offset}"
    for position, header in found_headers:
        if header.is_control:
            assert header.base_offset in markers, f"a marker at {header.base_offset} that was not written"
            continue
        for record in records(data, position, header, max_bytes=EVERYTHING):
            read = Record(record.offset, record.key, record.value, record.timestamp_ms)
            assert known.get(record.offset) == read, f"{read} was never written"
            found[record.offset] = read
    _check_uncompacted_records(partition, found)
    _check_last_values(log, partition)


def _check_uncompacted_records(partition: Partition, found: dict[int, Record]) -> None:
    cleaned_end = max(compaction.end_offset for compaction in partition.compactions)
    for batch in partition.batches:
        for record in batch.records:
            if record.offset >= max(cleaned_end, partition.start):
                assert record.offset in found, f"{record.offset} is gone, compacted was up to {cleaned_end}"


def _check_last_values(log: Log, partition: Partition) -> None:
    """A read_committed consumer reads the last record of every key last; of an expired tombstone, perhaps none of the key."""
    aborted = aborted_offsets(partition.batches)
    stable = log.open().reader.last_stable_offset
    last: dict[bytes | None, Record] = {}
    for batch in partition.batches:
        for record in batch.records:
            if record.offset < stable and record.offset not in aborted:
                last[record.key] = record
    found = {record.key: record.offset for record in committed_records(log)}
    for key, record in last.items():
        if record.offset >= partition.start:
            offset = found.get(key)
            assert offset == record.offset or (offset is None and _may_be_removed(record, partition)), (
                f"the last record of {key!r}, at {record.offset}, is gone: the last one is at {offset}"
            )


def _may_be_removed(record: Record, partition: Partition) -> bool:
    """Whether the record is an expired tombstone."""
    if record.value is not None:
        return False
    met = [compaction.wall_ms for compaction in partition.compactions if compaction.end_offset > record.offset]
    return bool(met) and max(met) >= min(met) + partition.config.delete_retention_ms


def aborted_offsets(batches: list[Batch]) -> set[int]:
    """The offsets of records in aborted transactions."""
    found: set[int] = set()
    current: dict[int, list[int]] = {}
    for batch in batches:
        if batch.producer is not None and batch.producer.transactional:
            mine = current.setdefault(batch.producer.producer_id, [])
            if batch.ends is None:
                mine += [record.offset for record in batch.records]
            else:
                found.update(mine if batch.ends == ControlType.ABORT else ())
                mine.clear()
    return found


# ---- derived state -------------------------------------------------------------------------------------------------


def _check_epochs(log: Log, partition: Partition) -> None:
    data = bytes_of(log) if partition.has_gaps else b""
    left = {header.base_offset for _, header in headers(data)}
    for batch in partition.batches:
        if partition.has_gaps and batch.base_offset not in left:
            continue
        if batch.base_offset >= partition.highest_start:  # batches that were deleted and came back have none
            epoch = log.open().epochs.epoch_at(batch.base_offset)
            assert epoch == batch.epoch, f"offset {batch.base_offset} is of epoch {batch.epoch}, not {epoch}"
    assert log.open().epochs.latest <= partition.epoch
    if not partition.has_gaps:
        _check_epoch_ends(log, [b for b in partition.batches if b.base_offset >= partition.highest_start])


def _check_epoch_ends(log: Log, batches: list[Batch]) -> None:
    for epoch in {batch.epoch for batch in batches}:
        end = next((batch.base_offset for batch in batches if batch.epoch > epoch), log.log_end_offset)
        found = log.open().end_offset_for_epoch(epoch)
        assert found == (epoch, end), f"epoch {epoch} ended at {end}, not {found}"


def _check_producers(log: Log, partition: Partition) -> None:
    producers = log.open().producers.producers
    assert producers.keys() <= partition.producer_ids(), "a producer without batches is known"
    for producer_id in partition.producer_ids():
        mine = [b for b in partition.batches_of_producer(producer_id) if b.next_offset <= partition.end]
        known = producers.get(producer_id)
        batches = known.batches if known is not None else ()
        if not mine:
            assert not batches, f"producer {producer_id} is known for what is not there"
            continue
        last = mine[-1]
        if batches:
            found = (batches[-1][1], batches[-1][2])
            allowed = mine if partition.has_gaps else mine[-1:]
            assert found in {(b.last_sequence, b.next_offset - 1) for b in allowed}, (
                f"producer {producer_id} ended with {last.last_sequence} at {last.next_offset - 1}, not {found}"
            )
        else:
            # Its last batch was lost, and compaction had removed the one before (docs/decisions/0021).
            cleaned_end = max(
                [compaction.end_offset for compaction in partition.compactions if partition.has_lost_records], default=0
            )
            assert last.base_offset < max(partition.producers_expired_before, partition.start, cleaned_end), (
                f"producer {producer_id} is forgotten, whose last batch lies at {last.base_offset}"
            )


def _check_transactions(log: Log, partition: Partition) -> None:
    horizon = max(partition.producers_expired_before, partition.start)
    stable = log.open().reader.last_stable_offset
    first_open_offsets = partition.open_transactions()
    sure = min([offset for offset in first_open_offsets.values() if offset >= horizon], default=partition.end)
    # A transaction that began before the remaining batches may be known completely, in part, or not.
    unsure = {max(offset, partition.start) for offset in first_open_offsets.values() if offset < horizon}
    unsure.update(partition.open_transactions(horizon).values())
    assert stable == sure or (stable < sure and stable in unsure), f"the last stable offset is {stable}, not {sure}"
    result_arrived = [found[:3] for found in wait_for_disk(log.open().engine.aborted, partition.start, partition.end)]
    known = partition.aborted()
    begun = {(producer, last): first for producer, first, last in known}
    for producer, first, last in result_arrived:
        begins = begun.get((producer, last), first + 1)
        is_rest = begins < first and (
            partition.has_gaps or begins < horizon
        )  # the rest of a compacted or deleted transaction
        assert begins == first or is_rest, f"{producer} has not aborted from {first} to {last}"
    if partition.has_gaps:
        committed = {record.offset for record in committed_records(log)}
        assert not committed & aborted_offsets(partition.batches), "aborted records are read with read_committed"
    else:
        expected = [found for found in known if found[1] >= horizon]
        assert set(expected) <= set(result_arrived), f"aborted are said to be {result_arrived} instead of {expected}"
        assert result_arrived == sorted(result_arrived, key=lambda found: found[2])
