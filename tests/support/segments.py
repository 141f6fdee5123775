"""Batches with offsets, and the steps of an append, for tests of segments and engines.

NOT HERE Client batches (`tests/support/batches.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from protocol.batch_builder import BatchBuilder
from protocol.file_region import Region, file_regions
from protocol.records import headers
from storage.config.log_config import LogConfig
from storage.engine import BatchInfo, Engine, Reservation, SyncWork
from storage.io.disk import Disk, File
from storage.io.disk_lookup import wait_for_disk
from storage.segments.indexes import SparseIndex
from storage.segments.segment_engine import SegmentEngine

NOW_MS = 1_700_000_000_000


def sync_files(work: SyncWork) -> None:
    """Sync the files of a flush one by one."""
    for file in work.files:
        file.sync()


def truncate_engine(engine: Engine, offset: int) -> None:
    """Truncate a log completely."""
    engine.truncate(offset)
    engine.end_truncation()


def reset_engine(engine: Engine, offset: int) -> None:
    """Empty a log completely."""
    engine.reset(offset)
    engine.end_truncation()


def batch(base_offset: int, count: int = 1, *, timestamp_ms: int = NOW_MS, size: int = 0, epoch: int = 0) -> bytes:
    """A batch of `count` records, `size` bytes long if given."""

    def build(last_value: bytes) -> bytes:
        builder = BatchBuilder(base_offset, leader_epoch=epoch)
        for number in range(count):
            value = b"%d" % (base_offset + number) if number < count - 1 else last_value
            builder.append(timestamp_ms, None, value)
        return bytes(builder.build())

    data = build(b"")
    for padding in range(size - len(data), -1, -1):
        data = build(bytes(padding))
        if len(data) == size:
            break
    assert size in {0, len(data)}, f"no batch of {count} records has {size} bytes"
    return data


def infos(data: bytes) -> tuple[BatchInfo, ...]:
    """The BatchInfo of each batch."""
    return tuple(
        BatchInfo(position, h.size, h.base_offset, h.last_offset, h.max_timestamp, h.leader_epoch)
        for position, h in headers(data)
    )


def append(engine: Engine, data: bytes, *, wall_ms: int = NOW_MS) -> Reservation:
    """Reserve, write, publish."""
    reservation = engine.reserve(len(data), infos(data), wall_ms)
    engine.write(reservation, data)
    engine.publish(reservation)
    return reservation


def write_out(index: SparseIndex) -> None:
    """Write the new entries of an index."""
    op = index.take_write()
    if op is not None:
        op()


def close_idle_files(engine: Engine) -> None:
    """Close all files that can be closed now (storage/io/file_handle_cache.py)."""
    assert isinstance(engine, SegmentEngine)
    for segment in list(engine._segments.items):
        engine.close_if_written(segment)


def opened(directory: Path | str, config: LogConfig | None = None, *, disk: Disk | None = None) -> SegmentEngine:
    """An engine on a directory that needs no recovery."""
    engine = SegmentEngine(disk or Disk(), str(directory), config or LogConfig())
    assert engine.open(None) is None
    return engine


def filled(
    directory: Path | str,
    batches: int,
    *,
    records: int = 1,
    size: int = 1000,
    config: LogConfig | None = None,
    disk: Disk | None = None,
) -> SegmentEngine:
    """An engine with `batches` batches of `records` records and `size` bytes, timestamps a millisecond apart."""
    engine = opened(directory, config, disk=disk)
    for number in range(batches):
        append(engine, batch(records * number, records, timestamp_ms=NOW_MS + number, size=size))
    return engine


def region_bytes(regions: Iterable[Region]) -> bytes:
    """The bytes of the regions."""
    data = b""
    for region in file_regions(regions):
        assert isinstance(region.file, File)
        data += region.file.pread(region.length, region.position)
    return data


def read(engine: SegmentEngine, offset: int, max_bytes: int = 1 << 30, max_offset: int | None = None) -> bytes:
    """The bytes that `locate` finds."""
    end_offset = engine.end_offset if max_offset is None else max_offset
    return region_bytes(wait_for_disk(engine.locate, offset, max_bytes, end_offset, min_one_batch=True).regions)


def bases(engine: Engine) -> list[int]:
    """The base offsets of all segments."""
    return [segment.base_offset for segment in engine.segments()]


def contents(directory: Path | str) -> dict[str, bytes]:
    """The contents of every file of a directory by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir()) if path.is_file()}
