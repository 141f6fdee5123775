"""The rules of `MetadataSnapshots` and `SnapshotFiles`, and startup from snapshots."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
from pathlib import Path

import pytest

from protocol.messages import stored_records
from protocol.messages.admin import CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from protocol.schema import Int32, Message
from replication.io_executor import InlineIoExecutor, IoExecutor
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import (
    RECORD_TYPES,
    CorruptMetadata,
    SnapshotName,
    UnreadableMetadata,
    read_snapshot,
    snapshot,
)
from replication.metadata_log.metadata_snapshots import MetadataSnapshots, SnapshotSettings
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.io.disk import Disk
from tests.support.controller_harness import WALL_MS, ControllerHarness
from tests.support.crashing_disk import CrashingDisk, PowerLoss
from tests.support.faulty_disk import FaultyDisk
from tests.support.loading import topic
from tests.support.replica_harness import QueuedIoExecutor

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
ZERO = "00000000000000000000-0000000000.checkpoint"
ALWAYS_DUE = SnapshotSettings(bytes_between=1)
_seeds = itertools.count()
"""Every start draws new ids."""


class Node:
    """A controller that takes snapshots when the test says so."""

    def __init__(
        self,
        path: Path,
        settings: SnapshotSettings = ALWAYS_DUE,
        *,
        disk: Disk | None = None,
        worker: IoExecutor | None = None,
    ) -> None:
        self.path = path
        self.harness = ControllerHarness(path, disk=disk, seed=next(_seeds)).start()
        self.snapshots = MetadataSnapshots(self.harness.disk, worker or InlineIoExecutor(), self.harness.log, settings)
        self.directory = path / METADATA_DIRECTORY

    @property
    def image(self) -> MetadataImage:
        return self.harness.image

    @property
    def topics(self) -> set[str]:
        return set(self.image.topics_by_name)

    def create(self, *names: str) -> None:
        self.harness.ask(CreateTopicsRequest(topics=[topic(name) for name in names]))

    def submit(self, name: str) -> None:
        """Create a topic, possibly without committing it."""
        request = CreateTopicsRequest(topics=[topic(name)])
        self.harness.controller.submit(request)

    def delete(self, name: str) -> None:
        self.harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=0))

    def take(self, wall_ms: int = WALL_MS) -> str:
        """Take a snapshot, whether one is due or not; returns its name."""
        name = SnapshotName(self.image.offset + 1, self.image.epoch)
        list(self.snapshots.take(self.image, wall_ms))
        return str(name)

    def with_limits(self, **limits: int) -> MetadataSnapshots:
        """The same snapshots under other limits."""
        settings = SnapshotSettings(**limits)
        return MetadataSnapshots(self.harness.disk, InlineIoExecutor(), self.harness.log, settings)

    def is_due(self, wall_ms: int = WALL_MS) -> bool:
        return self.snapshots.why_due(self.image, wall_ms) is not None

    def files(self, suffix: str = ".checkpoint") -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if name.endswith(suffix))

    def stop(self) -> None:
        self.harness.log.close()

    def restart(self, settings: SnapshotSettings = ALWAYS_DUE) -> Node:
        self.stop()
        return Node(self.path, settings)


class UnknownRecord(Message, api_key=99, versions=(0, 0), flexible=0):
    """A record of a later release."""

    number: Int32 = 1


def assert_equal_images(left: MetadataImage, right: MetadataImage, *, apart_from: str = "") -> None:
    for slot in set(MetadataImage.__slots__) - {apart_from}:
        assert getattr(left, slot) == getattr(right, slot), slot


def damage(path: Path) -> None:
    """Flip a bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# ---- taking ----------------------------------------------------------------------------------------------


def test_a_snapshot_and_the_log_after_it_give_the_published_image(tmp_path: Path, node: Node) -> None:
    """Without the snapshot, so does the whole log."""
    node.create("a", "b")
    node.delete("a")
    name = node.take()
    node.harness.ask(CreateTopicsRequest(topics=[topic("c", 3, configs=[("retention.ms", "5")])]))
    before = node.image
    node.stop()
    assert node.files() == [ZERO, name]
    opened = ControllerHarness(tmp_path).open()
    assert_equal_images(opened.image, before, apart_from="leader_id")  # which no record contains
    log = node.directory / f"{0:020d}.log"
    assert opened.log.bytes_since_snapshot < log.stat().st_size, "records before the snapshot's end are not read"
    for snapshot_file in node.directory.glob("*.checkpoint"):
        snapshot_file.unlink()
    assert_equal_images(ControllerHarness(tmp_path).open().image, before)


def test_a_snapshot_contains_the_last_timestamp_and_the_voters(node: Node) -> None:
    node.create("a")
    path = node.directory / node.take(WALL_MS + 5)
    found = read_snapshot(path.read_bytes(), str(path))
    assert found.last_contained_ms == WALL_MS
    assert [type(message) for message in found.control] == [
        stored_records.KRaftVersionRecord,
        stored_records.VotersRecord,
    ]
    assert found.data[0] == stored_records.FeatureLevelRecord(name="metadata.version", feature_level=30)


def test_a_snapshot_contains_only_committed_records(node: Node) -> None:
    node.create("a")
    node.harness.worker.is_held = True
    node.submit("uncommitted")
    path = node.directory / node.take()
    names = [r.name for r in read_snapshot(path.read_bytes(), "s").data if isinstance(r, stored_records.TopicRecord)]
    assert names == ["a"]


def test_a_large_snapshot_is_encoded_in_steps_from_one_image(tmp_path: Path, node: Node) -> None:
    for start in range(0, 2000, 500):
        node.create(*(f"t{i}" for i in range(start, start + 500)))
    image = node.image
    steps = node.snapshots.take(image, WALL_MS)
    assert sum(1 for _ in zip(range(5), steps, strict=False)) == 5
    node.create("later")
    rest = sum(1 for _ in steps)
    assert rest > 5
    node.stop()
    path = node.directory / str(SnapshotName(image.offset + 1, image.epoch))
    found = read_snapshot(path.read_bytes(), "s")
    assert sum(isinstance(record, stored_records.TopicRecord) for record in found.data) == 2000
    assert len(ControllerHarness(tmp_path).open().image.topics_by_name) == 2001


def test_a_snapshot_is_due_after_a_number_of_bytes_that_survives_a_restart(node: Node) -> None:
    node.create("a")
    node = node.restart(SnapshotSettings(bytes_between=node.harness.log.bytes_since_snapshot + 1))
    assert node.is_due()
    node.take()
    assert not node.is_due()
    node.create("b")
    assert not node.is_due()


def test_a_snapshot_is_due_after_an_interval_with_writes(tmp_path: Path) -> None:
    node = Node(tmp_path, SnapshotSettings())
    assert not node.is_due(WALL_MS + HOUR_MS - 1)
    assert node.is_due(WALL_MS + HOUR_MS)
    node.take(WALL_MS + HOUR_MS)
    assert not node.is_due(WALL_MS + 9 * HOUR_MS), "nothing was written since"
    node.create("a")
    assert not node.is_due(WALL_MS + HOUR_MS + 1)
    assert node.is_due(WALL_MS + 2 * HOUR_MS)
    assert node.restart(SnapshotSettings()).is_due(WALL_MS + 2 * HOUR_MS)
    assert not Node(tmp_path, SnapshotSettings(interval_ms=0)).is_due(WALL_MS + 9 * HOUR_MS)


def test_no_snapshot_is_due_while_one_is_being_written(tmp_path: Path) -> None:
    held = QueuedIoExecutor()
    node = Node(tmp_path, worker=held)
    node.take()
    node.create("a")
    assert not node.is_due()
    held.work.pop().finish()
    assert node.is_due()


def test_a_snapshot_that_is_received_again_is_listed_once(node: Node) -> None:
    """A node that was killed after the first time asks for it again."""
    name = SnapshotName(node.image.offset + 1, node.image.epoch)
    node.take()
    node.create("a")
    node.take()
    files = node.harness.log.snapshots
    before = list(files.files)
    files.add_received(name, WALL_MS)
    assert [file.name for file in files.files] == [file.name for file in before]
    node.with_limits(retention_bytes=0).retain(WALL_MS)
    assert [file.name for file in files.files] == [before[-1].name]


def test_a_snapshot_that_is_ready_after_a_newer_one_is_not_the_newest(node: Node) -> None:
    """A follower receives a snapshot of the leader while its own one is written."""
    newer = SnapshotName(1_000, 9)
    files = node.harness.log.snapshots
    steps = node.snapshots.take(node.image, WALL_MS)
    next(steps)
    files.write_chunks(
        newer, 0, [snapshot([], [], leader_epoch=9, timestamp_ms=0, last_contained_ms=0)], is_last=True
    )()
    files.add_received(newer, WALL_MS)
    list(steps)
    assert files.newest == newer
    assert files.files == sorted(files.files)


@pytest.mark.parametrize(("position", "length"), [(0, 10), (100, 10), (-1, 0), (10**9, 0)])
def test_a_chunk_outside_of_a_snapshot_is_empty(node: Node, position: int, length: int) -> None:
    """The leader answers POSITION_OUT_OF_RANGE."""
    name = SnapshotName(node.image.offset + 1, node.image.epoch)
    node.take()
    found = node.harness.log.snapshots.read_chunk(name, position, 10)
    assert found is not None
    assert len(found[0]) == length


def test_a_snapshot_that_was_not_received_completely_is_deleted(node: Node) -> None:
    """The leader deleted it meanwhile, and sends a newer one."""
    files = node.harness.log.snapshots
    for offset in (1_000, 2_000, 3_000):
        for position in (0, 4):
            files.receive_chunk(SnapshotName(offset, 9), position, b"part", is_last=False)()
    newest = SnapshotName(3_000, 9)
    assert node.files(".part") == [f"{newest}.part"]
    files.receive_chunk(newest, 8, b"last", is_last=True)()
    assert node.files(".part") == []
    assert Path(files.path(newest)).read_bytes() == b"partpartlast"


def test_a_failed_snapshot_leaves_no_file_and_is_retried_when_the_next_is_due(tmp_path: Path) -> None:
    disk = FaultyDisk()
    node = Node(tmp_path, SnapshotSettings(), disk=disk)
    for room in (0, 300):
        disk.space_left = room
        node.take(WALL_MS)
        disk.space_left = None
        assert node.files(".part") == []
        assert node.files() == [ZERO]
    disk.fail_syncs = errno.EIO
    node.take(WALL_MS)
    disk.fail_syncs = 0
    assert node.files() == [ZERO]
    node.create("a")
    assert not node.is_due(WALL_MS + HOUR_MS - 1)
    assert node.is_due(WALL_MS + HOUR_MS)
    assert node.take() in node.files()


class WatchedDisk(FaultyDisk):
    """Records renames and directory syncs among the file syncs."""

    def rename(self, source: str, target: str) -> None:
        self.syncs.append(f"{source} -> {target}")
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        self.syncs.append(path)
        super().sync_dir(path)


def test_a_snapshot_is_synced_then_renamed_then_its_directory_is_synced(tmp_path: Path) -> None:
    disk = WatchedDisk()
    node = Node(tmp_path, SnapshotSettings(), disk=disk)
    disk.syncs.clear()
    path = f"{node.directory}/{node.take()}"
    assert disk.syncs == [f"{path}.part", f"{path}.part -> {path}", str(node.directory)]


# ---- startup -------------------------------------------------------------------------------------------


def test_damage_before_the_snapshots_end_is_ignored(node: Node) -> None:
    node.create("a")
    node.take()
    node.create("b")
    damage(node.directory / f"{0:020d}.log")
    assert node.restart().topics == {"a", "b"}


@pytest.mark.parametrize("how", ["bit", "torn", "empty", "zeros", "longer"])
def test_a_damaged_snapshot_is_skipped_for_an_older_one_and_renamed(
    node: Node, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.create("a")
    older = node.take()
    node.create("b")
    newer = node.take()
    node.create("c")
    path = node.directory / newer
    whole = path.read_bytes()
    if how == "bit":
        damage(path)
    else:
        path.write_bytes({"torn": whole[:-7], "empty": b"", "zeros": bytes(len(whole)), "longer": whole + b"x"}[how])
    with caplog.at_level(logging.WARNING):
        again = node.restart()
    assert f"starting from {older}" in caplog.text
    assert again.topics == {"a", "b", "c"}
    assert again.files() == [ZERO, older]
    assert again.files(".corrupt") == [f"{newer}.corrupt"]
    third = again.take()
    assert again.files() == [ZERO, older, third]


def test_without_a_complete_snapshot_the_whole_log_is_replayed(node: Node) -> None:
    node.create("a")
    node.take()
    for name in node.files():
        damage(node.directory / name)
    again = node.restart()
    assert again.topics == {"a"}
    assert again.files() == []
    assert again.harness.log.voters.latest.node_ids == [1], "the log contains the voters too"


def test_a_damaged_only_snapshot_of_a_truncated_log_is_refused_without_a_change(tmp_path: Path) -> None:
    node = Node(tmp_path, SnapshotSettings(bytes_between=1, retention_bytes=0))
    node.create("a")
    name = node.take()
    node.create("b")
    node.stop()
    damage(node.directory / name)
    (node.directory / "00000000000000000099-0000000001.checkpoint.part").write_bytes(b"half")
    before = {path.name: path.read_bytes() for path in node.directory.iterdir()}
    with pytest.raises(CorruptMetadata, match=r"starts at \d+, and no snapshot reaches that offset: .*cannot be read"):
        ControllerHarness(tmp_path).open()
    assert {path.name: path.read_bytes() for path in node.directory.iterdir()} == before


def test_a_damaged_zero_checkpoint_of_an_empty_log_is_refused(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path)
    damage(tmp_path / METADATA_DIRECTORY / ZERO)
    with pytest.raises(CorruptMetadata, match="Restore the newest"):
        harness.open()


def test_a_complete_snapshot_with_an_unknown_record_is_not_skipped(tmp_path: Path, node: Node) -> None:
    node.create("a")
    node.take()
    path = node.directory / str(SnapshotName(node.image.offset + 1, 9))
    node.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECORD_TYPES, 99, UnknownRecord)
        records = [
            (stored_records.FeatureLevelRecord(name="metadata.version", feature_level=30), 0),
            (UnknownRecord(), 0),
        ]
        path.write_bytes(snapshot([], records, leader_epoch=9, timestamp_ms=WALL_MS, last_contained_ms=WALL_MS))
    with pytest.raises(UnreadableMetadata, match="type 99, which"):
        ControllerHarness(tmp_path).open()
    assert path.exists()


def test_unfinished_and_deleted_snapshots_are_removed_at_startup(node: Node) -> None:
    """Also those with the random part in Apache Kafka's names."""
    unfinished = [
        "00000000000000000011-0000000002.checkpoint.part",
        "00000000000000000011-0000000002-8123456789.checkpoint.part",
        "00000000000000000009-0000000001.checkpoint.deleted",
    ]
    for name in unfinished:
        (node.directory / name).write_bytes(b"half")
    again = node.restart()
    assert not set(unfinished) & set(os.listdir(again.directory))
    assert again.files() == [ZERO]


# ---- retention ---------------------------------------------------------------------------------------------


def test_the_oldest_snapshots_and_their_segments_are_deleted_above_the_size_limit(node: Node) -> None:
    taken = []
    for name in "abc":
        node.create(name)
        taken.append(node.take())
    assert len(node.files(".log")) == 4, "one per snapshot"
    limited = node.with_limits(retention_bytes=0)
    limited.retain(WALL_MS)
    assert node.files() == [taken[-1]]
    assert node.files(".log") == [f"{taken[-1][:20]}.log"]
    assert len(node.files(".log.deleted")) == 3
    limited.retain(WALL_MS + MINUTE_MS - 1)
    assert len(node.files(".log.deleted")) == 3
    limited.retain(WALL_MS + MINUTE_MS)
    assert node.files(".deleted") == []
    node.create("d")
    assert node.restart().topics == set("abcd")


def test_retention_runs_after_each_snapshot(tmp_path: Path) -> None:
    node = Node(tmp_path, SnapshotSettings(bytes_between=1, retention_bytes=0))
    node.create("a")
    taken = node.take()
    assert node.files() == [taken]


def test_segments_after_the_newest_snapshot_stay(tmp_path: Path) -> None:
    disk = FaultyDisk()
    node = Node(tmp_path, disk=disk)
    node.create("a")
    taken = node.take()
    node.create("b")
    disk.fail_syncs = errno.EIO
    node.take()
    disk.fail_syncs = 0
    node.create("c")
    assert len(node.files(".log")) == 3
    node.with_limits(retention_bytes=0).retain(WALL_MS)
    assert node.files() == [taken]
    assert len(node.files(".log")) == 2
    assert node.restart().topics == set("abc")


def test_the_size_limit_covers_snapshots_and_log_to_the_byte(node: Node) -> None:
    node.create("a")
    node.take()
    size = node.harness.log.size_bytes + sum((node.directory / name).stat().st_size for name in node.files())
    for limit, stay in ((size, 2), (-1, 2), (size - 1, 1)):
        node.with_limits(retention_bytes=limit, retention_ms=-1).retain(WALL_MS)
        assert len(node.files()) == stay, limit


def test_old_snapshots_are_deleted_except_the_newest(tmp_path: Path) -> None:
    node = Node(tmp_path)
    os.utime(node.directory / ZERO, (0, 0))
    node = node.restart(SnapshotSettings(retention_ms=10 * HOUR_MS, bytes_between=1))
    node.create("a")
    first = node.take(WALL_MS)
    node.create("b")
    second = node.take(WALL_MS + HOUR_MS)
    node.snapshots.retain(WALL_MS + 10 * HOUR_MS)
    assert node.files() == [first, second]
    node.snapshots.retain(WALL_MS + 10 * HOUR_MS + 1)
    assert node.files() == [second]
    node.snapshots.retain(WALL_MS + 1000 * HOUR_MS)
    assert node.files() == [second]


def test_a_snapshot_of_a_small_log_does_not_roll_its_segment(tmp_path: Path) -> None:
    node = Node(tmp_path, SnapshotSettings())
    for name in "abc":
        node.create(name)
        node.take()
    assert len(node.files(".log")) == 1


def test_a_snapshot_during_a_write_does_not_roll_the_segment(node: Node) -> None:
    node.create("a")
    node.harness.worker.holds_writes = True
    node.submit("b")
    node.take()
    assert len(node.files(".log")) == 1
    node.harness.worker.let_write()
    node.harness.worker.holds_writes = False
    node.take()
    assert len(node.files(".log")) == 2
    assert node.restart().topics == {"a", "b"}


# ---- crashes ---------------------------------------------------------------------------------------------


PARTS = 8


@pytest.mark.parametrize("part", [3, *(pytest.param(part, marks=pytest.mark.long) for part in (0, 1, 2, 4, 5, 6, 7))])
def test_a_crash_at_any_step_loses_no_acknowledged_change(tmp_path: Path, part: int) -> None:
    """Each part crashes before every eighth step."""
    settings = SnapshotSettings(bytes_between=1, retention_bytes=0)
    for last_step in range(part, 10_000, PARTS):
        path = tmp_path / str(last_step)
        path.mkdir()
        ControllerHarness(path)  # formatted before the crash
        answered: list[str] = []
        disk = CrashingDisk()
        disk.fuse = last_step
        try:
            for life in range(2):
                node = Node(path, settings, disk=disk)
                assert set(answered) <= node.topics
                for number in range(2):
                    name = f"life-{life}-{number}"
                    node.create(name)
                    answered.append(name)
                    node.take(WALL_MS + number * MINUTE_MS)
                    node.snapshots.retain(WALL_MS + number * MINUTE_MS)
        except PowerLoss:
            disk.crash(random.Random(last_step))
        again = Node(path)
        assert set(answered) <= again.topics, f"crash before step {last_step}"
        assert len(again.topics) <= len(answered) + 1
        again.create("after")
        again.stop()
        assert "after" in Node(path).topics, f"crash before step {last_step}"
        if disk.fuse is not None:
            return
    raise AssertionError("the history did not end")
