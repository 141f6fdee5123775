"""Offline conversion of logs between the storage engines: nothing is lost, at a stop at any moment either."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from errno import ENOSPC
from itertools import count, takewhile
from pathlib import Path
from random import Random
from typing import Any

import pytest

from protocol.control_records import ControlType
from protocol.errors import KafkaError
from storage.config.log_config import LogConfig
from storage.directories.conversion import DROP_FILE_BYTES, Conversion
from storage.directories.log_manager import LogManager
from storage.io.checkpoint_file import write_topic_id
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.log_validator import AppendOrigin
from storage.log.producer_state import BatchMetadata
from tests.support.batches import with_fields
from tests.support.crashing_disk import CrashingDisk, PowerLoss
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import (
    BIG,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    ProducerInfo,
    append,
    append_as_follower,
    append_records,
    bytes_of,
    marker,
    produced,
)
from tests.unit.storage.directories.test_log_manager import started

ENGINES = ["segments", "commitlog"]
OTHER = dict(zip(ENGINES, reversed(ENGINES), strict=True))
FILE_BYTES = 1 << 14
BATCH_FIELDS = len(BatchMetadata._fields)


def config_of(engine: str, **settings: Any) -> LogConfig:
    return replace(SMALL, barnabas_storage_engine=engine, **settings)


def manager_of(*directories: Path, disk: Disk | None = None) -> LogManager:
    manager = started(*directories, disk=disk)
    manager.commit_logs.file_bytes = FILE_BYTES
    return manager


def fill(manager: LogManager, engine: str, *, more: bool = True) -> None:
    """Transactions of every end, producers, epochs, a truncation, a trim inside a segment; an empty log."""
    log = manager.get_or_create("t", 0, TOPIC_ID, config_of(engine))
    for sequence in range(4):
        append(log, f"{sequence}{BIG}", producer=ProducerInfo(7, 0, sequence), timestamp_ms=NOW_MS + sequence * 1000)
    for producer_id, kind in ((8, ControlType.ABORT), (9, ControlType.COMMIT), (10, None)):
        append(log, "in a transaction", epoch=2, producer=ProducerInfo(producer_id, 0, 0, transactional=True))
        if kind is not None:
            append_records(log, marker(kind, producer_id, 0), leader_epoch=2, origin=AppendOrigin.COORDINATOR)
    if more:
        for number in range(6):
            append(log, f"{number}{BIG}", f"{number}", epoch=5, timestamp_ms=NOW_MS + number * 7, step_ms=3)
        log.open().truncate(log.log_end_offset - 3)
        append(log, "after the truncation", epoch=6)
    log.high_watermark = log.log_end_offset - 1
    log.open().trim(3, NOW_MS)
    manager.get_or_create("empty", 0, bytes([1] * 16), config_of(engine)).open()


def state_of(log: Log) -> dict[str, Any]:
    """What users and brokers can know of a log."""
    opened, start, end = log.open(), log.log_start_offset, log.log_end_offset
    first = wait_for_disk(opened.engine.lookup, "aborted", lambda view: view.aborted(start, end))
    return {
        "bytes": bytes_of(log),
        "offsets": (start, log.high_watermark, opened.reader.last_stable_offset, end),
        "segments": [segment.base_offset for segment in opened.engine.segments()][1:],
        "epochs": opened.epochs.entries(),
        "producers": {row[0]: (row[1:5], row[-BATCH_FIELDS:]) for row in opened.producers.summary()},
        "aborted": [(found.producer_id, found.last_offset) for found in first],
        "times": [wait_for_disk(opened.reader.offset_for_timestamp, NOW_MS + ms) for ms in (0, 1, 999, 1500, 3000)],
        "greatest": wait_for_disk(opened.reader.offset_of_max_timestamp),
    }


def states(manager: LogManager) -> dict[str, dict[str, Any]]:
    return {log.name: state_of(log) for log in sorted(manager.logs.values(), key=lambda log: log.name)}


def convert(manager: LogManager, engine: str) -> list[str]:
    """Convert all logs and stop; returns the names of the converted ones."""
    conversion = Conversion(manager, engine, NOW_MS)
    conversion.discard_copies()
    due = [log for log in manager.logs.values() if conversion.is_due(log)]
    for log in due:
        assert conversion.why_not(log) is None
        list(conversion.copy(log))
    conversion.replace_copied()
    manager.shutdown()
    return [log.name for log in due]


def is_in(manager: LogManager, log: Log, engine: str) -> bool:
    return manager.engines.is_in_commit_log(log.path, log.files.topic_id) == (engine == "commitlog")


def folders(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir() if entry.is_dir()}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_conversion_there_and_back_keeps_everything(tmp_path: Path, engine: str) -> None:
    manager = manager_of(tmp_path)
    fill(manager, engine)
    before = states(manager)
    assert len(before["t-0"]["segments"]) > 1
    assert before["t-0"]["aborted"]
    manager.shutdown()
    for target in (OTHER[engine], engine, OTHER[engine]):
        assert sorted(convert(manager_of(tmp_path), target)) in (["empty-0", "t-0"], ["t-0"])
        again = manager_of(tmp_path)
        found = states(again)
        assert found == {name: before[name] for name in {"t-0", *found}}  # nothing is on disk of an empty commit log
        assert is_in(again, again.logs["t", 0], target)
        again.shutdown()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_conversion_keeps_a_log_start_offset_whose_batch_compaction_has_removed(tmp_path: Path, engine: str) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create("t", 0, TOPIC_ID, config_of(engine))
    append_as_follower(log, with_fields(produced(f"1{BIG}"), base_offset=20))
    append(log, f"2{BIG}")
    before = state_of(log)
    assert before["offsets"][0] == 0
    manager.shutdown()
    for target in (OTHER[engine], engine):
        convert(manager_of(tmp_path), target)
        again = manager_of(tmp_path)
        assert state_of(again.logs["t", 0]) == before
        again.shutdown()


def test_a_directory_with_segments_only_has_no_commit_log(tmp_path: Path) -> None:
    """Apache Kafka refuses a directory of this name."""
    manager = manager_of(tmp_path)
    fill(manager, "commitlog")
    manager.shutdown()
    convert(manager_of(tmp_path), "segments")
    assert folders(tmp_path) == {"t-0"}
    assert {path.suffix or path.name for path in (tmp_path / "t-0").iterdir()} == {
        *(".log", ".index", ".timeindex", ".txnindex", ".snapshot"),
        *("leader-epoch-checkpoint", ".metadata"),
    }


def test_a_second_conversion_has_nothing_to_do(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    fill(manager, "commitlog")
    manager.shutdown()
    convert(manager_of(tmp_path), "segments")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "t-0").iterdir()}
    assert convert(manager_of(tmp_path), "segments") == []
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "t-0").iterdir()} == files


def test_a_log_that_was_not_closed_is_recovered_first(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    fill(manager, "commitlog")
    before = bytes_of(manager.logs["t", 0])
    convert(manager_of(tmp_path), "segments")
    assert bytes_of(manager_of(tmp_path).logs["t", 0], 3)[-500:] == before[-500:]


def test_a_compacted_log_stays_in_segments(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create("t", 0, TOPIC_ID, config_of("segments", cleanup_policy=frozenset({"compact"})))
    conversion = Conversion(manager, "commitlog", NOW_MS)
    assert conversion.is_due(log)
    assert conversion.why_not(log) == "is compacted"


def test_some_converted_logs_leave_the_rest_as_they_are(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    fill(manager, "commitlog")
    append(manager.get_or_create("u", 0, bytes([2] * 16), config_of("commitlog")), "u")
    before = states(manager)
    manager.shutdown()
    manager = manager_of(tmp_path)
    conversion = Conversion(manager, "segments", NOW_MS)
    list(conversion.copy(manager.logs["t", 0]))
    conversion.replace_copied()
    manager.shutdown()
    again = manager_of(tmp_path)
    found = states(again)
    assert {name: found[name] for name in ("t-0", "u-0")} == {name: before[name] for name in ("t-0", "u-0")}
    assert is_in(again, again.logs["t", 0], "segments")
    assert is_in(again, again.logs["u", 0], "commitlog")
    assert DROP_FILE_BYTES > FILE_BYTES  # files of another size follow each other
    append(again.logs["u", 0], "more")
    assert again.logs["u", 0].log_end_offset == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_logs_that_are_replaced_together_have_one_checkpoint(tmp_path: Path, engine: str) -> None:
    """It contains all logs: one for each log would take hours in a large directory."""
    manager = manager_of(tmp_path)
    for partition in range(5):
        append(manager.get_or_create("t", partition, TOPIC_ID, config_of(engine)), "a")
    manager.shutdown()
    manager = manager_of(tmp_path)
    conversion = Conversion(manager, OTHER[engine], NOW_MS)
    for log in list(manager.logs.values()):
        list(conversion.copy(log))
    checkpoints = manager.directories[str(tmp_path)].checkpoints
    before = checkpoints.updates
    conversion.replace_copied()
    assert checkpoints.updates == before + 1
    manager.shutdown()
    again = manager_of(tmp_path)
    assert all(bytes_of(log) and is_in(again, log, OTHER[engine]) for log in again.logs.values())


def test_a_damaged_batch_leaves_the_log_as_it_is(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    fill(manager, "segments")
    manager.shutdown()
    file = min((tmp_path / "t-0").glob("*.log"))
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    manager = manager_of(tmp_path)
    conversion = Conversion(manager, "commitlog", NOW_MS)
    with pytest.raises(KafkaError):
        list(conversion.copy(manager.logs["t", 0]))
    assert file.read_bytes() == content
    assert folders(tmp_path) == {"commitlog", "t-0"} or folders(tmp_path) == {"commitlog", "t-0", "empty-0"}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_open_transaction_whose_records_are_deleted_is_kept_also_by_a_recovery(tmp_path: Path, engine: str) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create("t", 0, TOPIC_ID, config_of(engine))
    append(log, "in a transaction", producer=ProducerInfo(10, 0, 0, transactional=True))
    for _ in range(12):
        append(log, BIG)
    log.high_watermark = log.log_end_offset
    log.open().trim(8, NOW_MS)
    assert log.open().engine.start_offset > 0, "the segment with its records is deleted"
    assert log.open().reader.last_stable_offset == 8
    manager.shutdown()
    convert(manager_of(tmp_path), OTHER[engine])
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    again = manager_of(tmp_path).logs["t", 0]
    assert again.open().reader.last_stable_offset == 8


@pytest.mark.parametrize("engine", ENGINES)
def test_a_full_disk_leaves_the_log_as_it_is(tmp_path: Path, engine: str) -> None:
    manager = manager_of(tmp_path)
    fill(manager, engine)
    before = states(manager)
    manager.shutdown()
    disk = FaultyDisk()
    manager = manager_of(tmp_path, disk=disk)
    conversion = Conversion(manager, OTHER[engine], NOW_MS)
    manager.logs["t", 0].open()
    disk.space_left = 700
    with pytest.raises(StorageError) as caught:
        list(conversion.copy(manager.logs["t", 0]))
    assert caught.value.errno == ENOSPC
    again = manager_of(tmp_path)
    assert is_in(again, again.logs["t", 0], engine)
    assert states(again)["t-0"]["bytes"] == before["t-0"]["bytes"]
    convert(manager_of(tmp_path), OTHER[engine])
    assert states(manager_of(tmp_path))["t-0"] == before["t-0"]


def converted_states(manager: LogManager) -> dict[str, dict[str, Any]]:
    return {name: state for name, state in states(manager).items() if name != "empty-0"}


def stop_at(root: Path, whole: Path, engine: str, changes: int, before: dict[str, Any]) -> bool:
    """Stop a conversion at this change, at odd ones with a loss of power, and repeat it; returns whether it was finished."""
    data = shutil.copytree(whole, root / str(changes))
    disk = CrashingDisk()
    manager = manager_of(data, disk=disk)
    disk.fuse = changes
    has_finished = False
    with contextlib.suppress(PowerLoss):
        convert(manager, OTHER[engine])
        has_finished = True
    if changes % 2:
        disk.crash(Random(changes))
    again = manager_of(data)
    assert converted_states(again) == before, changes
    if changes % 4 < 2:
        again.shutdown()
    convert(manager_of(data), OTHER[engine])
    again = manager_of(data)
    assert converted_states(again) == before, changes
    assert all(is_in(again, again.logs[topic, 0], OTHER[engine]) for topic in "tu")
    in_other = {"t-0", "u-0"} if OTHER[engine] == "segments" else {"t-0", "u-0", "commitlog"}
    assert folders(data) - {"empty-0"} == in_other, changes
    shutil.rmtree(data)
    return has_finished


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("step", [27, pytest.param(1, marks=pytest.mark.long)])
def test_a_stop_at_any_change_loses_nothing_and_a_repetition_finishes(tmp_path: Path, engine: str, step: int) -> None:
    whole = tmp_path / "whole"
    manager = manager_of(whole)
    fill(manager, engine, more=False)
    other = manager.get_or_create("u", 0, bytes([2] * 16), config_of(engine))
    append(other, "u", "v")
    other.high_watermark = 2
    other.open().trim(1, NOW_MS)
    before = converted_states(manager)
    manager.shutdown()
    stops = (stop_at(tmp_path, whole, engine, changes, before) for changes in count(0, step))
    assert len(list(takewhile(lambda has_finished: not has_finished, stops))) * step > 40


def test_a_wrong_topic_id_in_a_directory_does_not_drop_its_frames(tmp_path: Path) -> None:
    """Two starts, with a stray in between; then the metadata file is corrected."""
    manager = manager_of(tmp_path)
    fill(manager, "segments")
    before = states(manager)["t-0"]
    manager.shutdown()
    convert(manager_of(tmp_path), "commitlog")
    write_topic_id(Disk(), f"{tmp_path}/t-0/partition.metadata", bytes([9] * 16))
    manager = manager_of(tmp_path)
    manager.rename_to_stray(manager.logs["t", 0])
    manager.shutdown()
    manager_of(tmp_path).shutdown()
    (stray,) = tmp_path.glob("*-stray")
    write_topic_id(Disk(), f"{stray}/partition.metadata", TOPIC_ID)
    stray.rename(tmp_path / "t-0")
    assert states(manager_of(tmp_path))["t-0"]["bytes"] == before["bytes"]
