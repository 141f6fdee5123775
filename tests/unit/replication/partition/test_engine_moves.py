"""Replicas that move between storage engines: within their log directory after a change of the setting, or to another one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import replication.partition.log_dir_moves
import storage.directories.commit_logs
from protocol.errors import ErrorCode
from protocol.messages.stored_records import ConfigRecord
from protocol.records import headers
from replication.metadata.image import ResourceType
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.config.log_config import STORAGE_ENGINE, LogConfig
from storage.directories.future_logs import take_interrupted_moves
from storage.directories.log_manager import LogManager
from storage.io.disk import Disk
from storage.log.log import Log
from storage.segments.segment_engine import SegmentEngine
from tests.support.batches import with_fields
from tests.support.crashing_disk import CrashingDisk, PowerLoss
from tests.support.logs import SMALL_FILE_BYTES, append_as_follower, bytes_of, truncated
from tests.support.replica_harness import NOW_MS, Answer, batch, produced
from tests.unit.replication.partition.test_log_dir_moves import (
    MAX_STEPS,
    MoveHarness,
    delete,
    directories_of_t,
    stepped_harness,
)

E = ErrorCode
ENGINES = {"segments": SegmentEngine, "commitlog": CommitLogEngine}
PAIRS = [("segments", "commitlog"), ("commitlog", "segments")]
CHANGES_OF_A_MOVE = 60


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are allocated ahead: each test would take half a GiB."""
    monkeypatch.setattr(storage.directories.commit_logs, "FILE_BYTES", 1 << 16)


def set_engine(harness: MoveHarness, engine: str | None) -> None:
    harness.apply(ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name=STORAGE_ENGINE, value=engine))


def engine_of(log: Log) -> str:
    return next(name for name, kind in ENGINES.items() if isinstance(log.open().engine, kind))


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_changed_setting_moves_a_written_log_to_the_other_engine(tmp_path: Path, before: str, after: str) -> None:
    """Appends between any two steps keep their order."""
    harness = stepped_harness(tmp_path, 1, internal_segment_bytes=1000, barnabas_storage_engine=before)
    assert engine_of(harness.log) == before
    set_engine(harness, after)
    answers: list[Answer] = []
    while harness.moves.active:
        harness.executor.step()
        answers.append(harness.produce(acks=1))
        assert len(answers) < MAX_STEPS, "the move ends"
    harness.executor.run_all()
    assert engine_of(harness.log) == after
    assert [produced(answer).base_offset for answer in answers] == list(range(1, len(answers) + 1))
    assert harness.log.log_end_offset == len(answers) + 1
    harness.run_deletions()
    harness.run_deletions(100_000)
    assert directories_of_t(harness.log.directory) == ["t-0"]
    log = harness.log_manager.commit_logs.by_directory[harness.log.directory]
    assert bool(log.slot_ids()) == (after == "commitlog")


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_changed_setting_applies_to_a_log_that_was_never_used(tmp_path: Path, before: str, after: str) -> None:
    harness = MoveHarness(tmp_path)
    harness.create(barnabas_storage_engine=before)
    assert not harness.log.is_open
    set_engine(harness, after)
    harness.load(batches=3)
    assert engine_of(harness.log) == after
    assert harness.base_offsets(3) == [0, 1, 2]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_changed_setting_moves_a_log_that_a_kill_has_left_without_checkpoints(
    tmp_path: Path, before: str, after: str
) -> None:
    killed = MoveHarness(tmp_path)
    killed.create(barnabas_storage_engine=before)
    killed.load(batches=3)
    harness = MoveHarness(tmp_path)
    harness.create(barnabas_storage_engine=before)
    assert not harness.log.is_open
    set_engine(harness, after)
    assert engine_of(harness.log) == after
    assert harness.base_offsets(3) == [0, 1, 2]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_epochs_and_producers_without_records_are_kept(tmp_path: Path, before: str, after: str) -> None:
    harness = MoveHarness(tmp_path)
    harness.create(epoch=3, internal_segment_bytes=300, barnabas_storage_engine=before)
    made = {"producer_id": 7, "producer_epoch": 0}
    produced(harness.produce(records=batch(2, base_sequence=0, **made)))
    harness.load(batches=6)
    harness.change(leader=1, isr=[1])  # which begins epoch 4
    harness.log.open().trim(4, NOW_MS)
    set_engine(harness, after)
    log = harness.log.open()
    assert engine_of(harness.log) == after
    assert log.epochs.entries() == [(3, 4), (4, 8)]
    assert harness.log.log_start_offset == 4
    answer = produced(harness.produce(records=batch(2, base_sequence=5, **made)))
    assert answer.error_code == E.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_move_keeps_a_log_start_offset_whose_batch_compaction_has_removed(
    tmp_path: Path, before: str, after: str
) -> None:
    """A higher one would put the committed offsets of consumers out of range."""
    harness = MoveHarness(tmp_path)
    harness.create(barnabas_storage_engine=before)
    append_as_follower(harness.log, with_fields(batch(2), base_offset=20))
    for engine in (after, before):
        set_engine(harness, engine)
        assert engine_of(harness.log) == engine
        assert (harness.log.log_start_offset, harness.log.log_end_offset) == (0, 22)
        assert [header.base_offset for _, header in headers(bytes_of(harness.log))] == [20]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_the_way_back_is_a_move_too(tmp_path: Path, before: str, after: str) -> None:
    harness = MoveHarness(tmp_path)
    harness.create(barnabas_storage_engine=before)
    harness.load(batches=3)
    for engine in (after, before, after, before):
        set_engine(harness, engine)
        assert engine_of(harness.log) == engine
        assert harness.base_offsets(3) == [0, 1, 2]


def test_a_commit_log_topic_moves_to_segments_when_it_is_compacted_and_back(tmp_path: Path) -> None:
    harness = MoveHarness(tmp_path)
    harness.create(barnabas_storage_engine="commitlog")
    set_engine(harness, "commitlog")
    harness.load(batches=3)
    for policy, engine in (("compact", "segments"), (None, "commitlog")):
        record = ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name="cleanup.policy", value=policy)
        harness.apply(record)
        assert engine_of(harness.log) == engine
        assert harness.base_offsets(3) == [0, 1, 2]


@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.BROKER])
def test_a_compacted_log_leaves_the_commit_log_also_after_a_start_without_a_setting_of_the_engine(
    tmp_path: Path, kind: int
) -> None:
    """It is never compacted there. The node was stopped during the move, or when the policy was changed."""
    settings = {f"barnabas.log.{STORAGE_ENGINE[9:]}": "commitlog"}
    first = MoveHarness(tmp_path, settings=settings)
    first.create()
    first.load(batches=3)
    first.log_manager.shutdown()
    harness = MoveHarness(tmp_path, settings=settings)
    name, resource = ("cleanup.policy", "t") if kind == ResourceType.TOPIC else ("log.cleanup.policy", "")
    harness.apply(ConfigRecord(resource_type=kind, resource_name=resource, name=name, value="compact"))
    harness.create()
    assert engine_of(harness.log) == "commitlog"
    harness.moves.resume()
    assert engine_of(harness.log) == "segments"
    assert harness.base_offsets(3) == [0, 1, 2]


def test_a_broker_default_that_compacts_a_topic_moves_its_logs_to_segments(tmp_path: Path) -> None:
    harness = MoveHarness(tmp_path, settings={f"barnabas.log.{STORAGE_ENGINE[9:]}": "commitlog"})
    harness.create()
    harness.load(batches=3)
    policy = ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name="", name="log.cleanup.policy", value="compact"
    )
    harness.apply(policy)
    assert engine_of(harness.log) == "segments"
    assert harness.base_offsets(3) == [0, 1, 2]


def test_a_setting_that_changes_back_during_the_move_wins(tmp_path: Path) -> None:
    harness = stepped_harness(tmp_path, 1)
    set_engine(harness, "commitlog")
    harness.executor.run_steps(3)
    set_engine(harness, "segments")
    harness.executor.run_all()
    assert engine_of(harness.log) == "segments"
    assert harness.log.log_end_offset == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("moved", ENGINES)
def test_a_copy_in_another_directory_has_the_engine_of_the_settings(tmp_path: Path, engine: str, moved: str) -> None:
    harness = stepped_harness(tmp_path, 2, barnabas_storage_engine=engine)
    target = harness.start_move(steps=2)
    set_engine(harness, moved)
    harness.executor.run_all()
    assert harness.log.directory == target
    assert engine_of(harness.log) == moved
    assert harness.log.log_end_offset == 1


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_cancelled_move_does_not_cancel_a_changed_setting(tmp_path: Path, before: str, after: str) -> None:
    harness = stepped_harness(tmp_path, 2, barnabas_storage_engine=before)
    here = harness.log.directory
    harness.start_move(steps=2)
    set_engine(harness, after)
    harness.moves.alter("t", 0, here)
    harness.executor.run_all()
    assert (harness.log.directory, engine_of(harness.log)) == (here, after)
    assert harness.log.log_end_offset == 1


def test_a_changed_default_moves_no_log(tmp_path: Path) -> None:
    harness = stepped_harness(tmp_path, 1)
    harness.apply(
        ConfigRecord(
            resource_type=ResourceType.BROKER,
            resource_name="",
            name=f"barnabas.log.{STORAGE_ENGINE[9:]}",
            value="commitlog",
        )
    )
    assert not harness.moves.active
    harness.executor.run_all()
    assert engine_of(harness.log) == "segments"
    harness.apply(ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name="retention.ms", value="-1"))
    harness.executor.run_all()
    assert engine_of(harness.log) == "segments"


@pytest.mark.parametrize("default", ["segments", "commitlog"])
def test_a_setting_moves_a_log_also_if_it_names_the_default(tmp_path: Path, default: str) -> None:
    """The node was started with another default, so the log is in the other engine."""
    other = next(name for name in ENGINES if name != default)
    first = MoveHarness(tmp_path, settings={f"barnabas.log.{STORAGE_ENGINE[9:]}": other})
    first.create()
    first.load(batches=3)
    first.log_manager.shutdown()
    harness = MoveHarness(tmp_path, settings={f"barnabas.log.{STORAGE_ENGINE[9:]}": default})
    harness.create()
    assert engine_of(harness.log) == other
    set_engine(harness, default)
    assert engine_of(harness.log) == default
    assert harness.base_offsets(3) == [0, 1, 2]


def test_a_truncation_during_a_move_starts_the_copy_again(tmp_path: Path) -> None:
    """The copy has records that the log lost; others took their place."""
    harness = stepped_harness(tmp_path, 1)
    for _ in range(3):
        harness.produce(acks=1)
    harness.executor.run_all()
    set_engine(harness, "commitlog")
    (move,) = harness.moves.active.values()
    while move.copy is None or move.copy.log_end_offset < 4:
        harness.executor.step()
    truncated(harness.log_manager, harness.log, 1)
    for _ in range(3):
        harness.produce(acks=1, records=batch(size=77))
    harness.executor.run_all()
    assert engine_of(harness.log) == "commitlog"
    assert harness.log.log_end_offset == 4
    data = harness.log.open().engine.view().read_batches(1, 1 << 20)
    assert [header.size for _, header in headers(data)] == [len(batch(size=77))] * 3


@pytest.mark.parametrize("is_requested", [False, True])
def test_a_move_that_starts_again_while_the_setting_changed_starts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_requested: bool
) -> None:
    """The changed setting waits, since as many moves are active as may be; the end of this one makes room."""
    monkeypatch.setattr(replication.partition.log_dir_moves, "MAX_ENGINE_MOVES", 1)
    harness = stepped_harness(tmp_path, 3)
    others = [path for path in harness.log_manager.directories if path != harness.log.directory]
    assert harness.moves.alter("t", 0, others[0]) == E.NONE
    harness.step_until_copied()
    set_engine(harness, "commitlog")
    if is_requested:
        assert harness.moves.alter("t", 0, others[1]) == E.NONE
    else:
        truncated(harness.log_manager, harness.log, 0)
    harness.executor.run_all()
    assert not harness.moves.active
    assert (harness.log.directory, engine_of(harness.log)) == (others[is_requested], "commitlog")
    assert not harness.log_manager.future_logs


@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("directories", [1, 2])
@pytest.mark.parametrize("changes", range(0, CHANGES_OF_A_MOVE + 1, 1))
def test_a_crash_during_a_move_leaves_one_complete_log(
    tmp_path: Path, before: str, after: str, directories: int, changes: int
) -> None:
    disk = CrashingDisk()
    harness = MoveHarness(tmp_path, disk=disk, directories=directories)
    harness.create(barnabas_storage_engine=before)
    harness.load(batches=3)
    harness.log.open().flush.flush_all()
    paths = list(harness.log_manager.directories)
    disk.fuse = changes
    with contextlib.suppress(PowerLoss):
        set_engine(harness, after)
        if directories > 1:
            harness.start_move()
    again = LogManager(Disk(), dict.fromkeys(paths, bytes(16)), LogConfig(), random_bytes=bytes)
    again.commit_logs.file_bytes = SMALL_FILE_BYTES
    again.load()
    assert list(again.logs) == [("t", 0)]
    log = again.logs["t", 0]
    if log.files.topic_id is None:
        topic_id = harness.partition().topic_id
        assert topic_id is not None
        log.files.assign_topic_id(topic_id)
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    engine = engine_of(log)
    take_interrupted_moves(again)
    delete(again, NOW_MS)
    names = [name for directory in paths for name in directories_of_t(directory)]
    assert names == (["t-0"] if log.files.has_directory else [])
    slots = [log.slot_ids() for log in again.commit_logs.by_directory.values()]
    assert sum(map(len, slots)) == (engine == "commitlog")
    log.close()
