"""`barnabas doctor` on partitions in a commit log: what each kind of damage costs, and what a repair mends without a loss."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from broker.cli import main
from protocol.errors import KafkaError
from protocol.records import crc_is_valid, parse_header
from storage.commitlog.catalog import CATALOG, packed_states, read_catalog, slots_in, write_catalog
from storage.commitlog.log_file import QUEUE_SUFFIX
from storage.commitlog.queue_file import ENTRY, build_queue, parse_queue, queue_run, read_rows
from storage.directories.log_manager import LogManager
from storage.inspection.dry_run_disk import DryRunDisk
from storage.io.checkpoint_file import write_topic_id
from storage.io.disk import Disk
from storage.io.disk_lookup import read_waiting
from storage.log.log import Log
from tests.support.data_directory import SMALL_SEGMENTS, change_logs
from tests.support.logs import append
from tests.support.seeds import seed_of
from tests.unit.broker.tools.test_doctor import changed, does, found, rewrite_split_offset, run_doctor

pytestmark = pytest.mark.usefixtures("small_files")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, whole: Path, small_files: None) -> Path:
    """An undamaged directory with several files of a commit log."""
    path = shutil.copytree(whole, tmp_path_factory.mktemp("doctor") / "data")
    assert main(["convert", "--log-dir", str(path), "--to", "commitlog"]) == 0
    assert len(logs(path)) > 3
    return path


def logs(data: Path) -> list[Path]:
    return sorted((data / "commitlog").glob("*.clog"))


def with_split(data: Path) -> Path:
    """A sealed file with batches of `split-0`, whose values begin with their number."""
    return next(path for path in logs(data) if b"30: xxx" in path.read_bytes())


def break_a_batch(data: Path) -> None:
    path = with_split(data)
    changed(path, path.read_bytes().index(b"30: xxx") + 20)


def break_a_head(data: Path) -> None:
    """Of a frame with several batches: the batches are read through their entries, which are intact."""
    path = with_split(data)
    changed(path, path.read_bytes().rindex(b"\xc1\x0f\x04", 0, path.read_bytes().index(b"30: xxx")) + 8)


def cut_the_end(data: Path) -> None:
    """The bytes that are missing had batches of `split-0`."""
    path = with_split(data)
    os.truncate(path, path.read_bytes().rindex(b"\xc1\x0f\x04", 0, path.read_bytes().index(b"30: xxx")))


def break_the_last_header(data: Path) -> Path:
    """Of the last file with batches: other partitions have their batches in earlier ones."""
    path = next(path for path in reversed(logs(data)) if b": xxx" in path.read_bytes())
    changed(path, 10)
    return path


def break_a_header_without_queue(data: Path) -> None:
    break_the_last_header(data).with_suffix(QUEUE_SUFFIX).unlink()


def break_a_header_and_cut_the_rest(data: Path) -> None:
    path = with_split(data)
    changed(path, 10)
    os.truncate(path, 26)


def interrupt_a_creation(data: Path) -> None:
    os.truncate(logs(data)[-1], 0)


def break_a_queue(data: Path) -> None:
    changed(with_split(data).with_suffix(QUEUE_SUFFIX), 60)


def move_an_entry(data: Path) -> None:
    """A queue file that is valid and wrong."""
    path = with_split(data).with_suffix(QUEUE_SUFFIX)
    content = path.read_bytes()
    header, states = parse_queue(content, int(path.name[:20])) or pytest.fail("it is valid")
    file = Disk().open(str(path), write=False)
    rows = read_rows(file, header.slot_count, read_waiting)
    entries = [
        bytearray(queue_run(file, header.slot_count, row, read_waiting).get(0, row.entry_count))
        for row in rows
        if row.entry_count
    ]
    position, *rest = ENTRY.unpack_from(entries[0])
    ENTRY.pack_into(entries[0], 0, position + 1, *rest)
    path.write_bytes(
        build_queue(header.start, header.end, rows, list(map(bytes, entries)), states, removed=header.removed)
    )


def break_the_catalog(data: Path) -> None:
    changed(data / "commitlog" / CATALOG, 100)


def forge_the_catalog(data: Path) -> None:
    """A catalog that is valid and wrong."""
    catalog = read_catalog(Disk(), f"{data}/commitlog")
    slots = list(slots_in(catalog.states))
    slots[0].end_offset += 1
    write_catalog(Disk(), f"{data}/commitlog", catalog._replace(states=packed_states(slots)))


def lose_a_file(data: Path) -> None:
    with_split(data).unlink()
    with_split_queue = [path for path in (data / "commitlog").glob("*.queue") if not path.with_suffix(".clog").exists()]
    for path in with_split_queue:
        path.unlink()


class Damage(NamedTuple):
    """A kind of damage: its finding as a part of its text, and whether a repair mends it."""

    harm: Callable[[Path], object]
    severity: str
    finding: str
    is_mended: bool = False


DAMAGES = {
    "a broken batch": Damage(break_a_batch, "loss", "Offsets 30 to 30 cannot be read"),
    "a broken frame": Damage(break_a_head, "loss", "are no valid frame"),
    "a missing end": Damage(cut_the_end, "loss", "are no valid frame: split-0"),
    "a broken header": Damage(break_the_last_header, "harmless", "its batches are read by its queue file"),
    "an interrupted creation": Damage(interrupt_a_creation, "harmless", "its creation was interrupted"),
    "a broken header and no queue file": Damage(break_a_header_without_queue, "loss", "a start skips its"),
    "a broken header and a missing end": Damage(break_a_header_and_cut_the_rest, "loss", "skips its 26 bytes: split-0"),
    "a file that only its queue file shows": Damage(lambda data: with_split(data).unlink(), "loss", "It is missing"),
    "a file that only the catalog shows": Damage(lose_a_file, "loss", "the records of its partitions in it are lost"),
    "a lost file": Damage(lose_a_file, "loss", "It does not follow the file before"),
    "a broken queue file": Damage(break_a_queue, "harmless", "It is invalid: a start makes it again", is_mended=True),
    "a broken catalog": Damage(break_the_catalog, "harmless", "reads all queue files instead", is_mended=True),
    "a wrong catalog": Damage(forge_the_catalog, "harmless", "are not those of the queue files", is_mended=True),
    "a wrong queue file": Damage(move_an_entry, "harmless", "A repair makes it again", is_mended=True),
    "a start offset above the end": Damage(
        lambda data: rewrite_split_offset(data, "log-start-offset-checkpoint"), "loss", "the next start empties the log"
    ),
    "a high watermark above the end": Damage(
        lambda data: rewrite_split_offset(data, "replication-offset-checkpoint"), "harmless", "is above its end 60",
        is_mended=True,
    ),
    "another topic's id": Damage(
        lambda data: write_topic_id(Disk(), f"{data}/split-0/partition.metadata", bytes(range(16))),
        "loss", "are of no partition",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_and_repaired_if_nothing_is_lost_by_that(
    kind: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm, severity, text, is_mended = DAMAGES[kind]
    harm(data)
    before = {path: path.read_bytes() for path in logs(data)}
    status, rows = run_doctor(data, capsys)
    assert status == 1
    assert severity in [kind for kind, sentence in found(rows) if text in sentence], found(rows)
    assert {path: path.read_bytes() for path in logs(data)} == before
    status, rows = run_doctor(data, capsys, "--repair")
    assert {path: path.read_bytes() for path in logs(data) if path in before} == before, "batches stay"
    if is_mended:
        assert (status, found(rows, "remains")) == (0, [])
        assert run_doctor(data, capsys)[0] == 0


def test_an_undamaged_commit_log_is_healthy(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for stop in ("clean", "unclean"):
        if stop == "unclean":
            (data / ".kafka_cleanshutdown").unlink()
        status, rows = run_doctor(data, capsys)
        assert (status, found(rows)) == (0, [])
        assert not any("which does not exist" in row.get("text", "") for row in rows)


def test_other_partitions_are_not_affected(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    break_a_batch(data)
    _, rows = run_doctor(data, capsys)
    lost = [row["path"] for row in rows if row["type"] == "finding" and "cannot be read" in row["text"]]
    assert lost == [f"{data}/split-0"]
    assert "split-0" in next(row["text"] for row in rows if row.get("severity") == "loss" and "frame" in row["text"])


@pytest.mark.parametrize(("suffix", "severities"), [("stray", set()), ("delete", {"harmless"})])
def test_frames_of_a_stray_or_of_a_deleted_partition_are_no_loss(
    data: Path, capsys: pytest.CaptureFixture[str], suffix: str, severities: set[str]
) -> None:
    """A stray keeps its frames; a kill between the rename of a directory and the drop of its frames leaves them."""
    (data / "split-0").rename(data / f"split-0.{'0f' * 16}-{suffix}")
    status, rows = run_doctor(data, capsys)
    assert {severity for severity, _ in found(rows)} == severities
    assert status == len(severities)


def test_a_partition_that_the_metadata_lack_is_a_loss(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def create(manager: LogManager) -> None:
        config = replace(SMALL_SEGMENTS, barnabas_storage_engine="commitlog")
        append(manager.get_or_create("extra", 0, bytes([5] * 16), config), "a")

    change_logs(data, create)
    status, rows = run_doctor(data, capsys)
    assert status == 1
    assert found(rows) == [("loss", "The metadata contain no such partition: a start does not use it.")]
    assert does(rows, "repair") == ""


def intact(data: Path) -> dict[str, bytes]:
    """All bytes of each partition without a damaged batch."""
    manager = LogManager(DryRunDisk(), {str(data): bytes(16)}, SMALL_SEGMENTS, random_bytes=os.urandom)
    manager.load()
    found = {log.name: bytes_of(log) for log in manager.logs.values()}
    return {name: read for name, read in found.items() if read is not None}


def bytes_of(log: Log) -> bytes | None:
    view, at, found = log.open().engine.view(), log.log_start_offset, b""
    while at < view.end_offset:
        try:
            batch = view.read_batches(at, 0)
            header = parse_header(batch)
        except KafkaError:
            return None
        if len(batch) < header.size or not crc_is_valid(batch, 0, header):
            return None
        found += batch
        at = header.next_offset
    return found


def damage(path: Path, dice: Random) -> None:
    """Cut a file, or change one byte or several."""
    content = bytearray(path.read_bytes())
    at = dice.randrange(len(content))
    if dice.random() < 0.3:
        del content[at:]
    content[at : at + 1] = dice.randbytes(dice.choice((1, 1, 40)))
    path.write_bytes(content)


@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.long)])
def test_random_damage_is_never_an_error_and_its_losses_are_named(
    count: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of()
    dice = Random(seed)
    truth = intact(data)
    for number in range(count):
        copy = shutil.copytree(data, tmp_path / str(number))
        named = ""  # a repair makes queue files again, also that of a file that has lost its end
        path = dice.choice(sorted((copy / "commitlog").iterdir()))
        damage(path, dice)
        for options in ((), ("--repair",), ()):
            status, rows = run_doctor(copy, capsys, *options)
            assert rows[-1]["type"] == "verdict", f"SEED={seed}"
            named += " ".join(
                f"{row['path']} {row['text']}" for row in rows if row.get("severity") in {"loss", "refused"}
            )
            kept = intact(copy)
            lost = {name for name, content in truth.items() if kept.get(name) != content}
            assert all(name in named for name in lost), f"SEED={seed} {path} {options} {lost}"
            assert status == (1 if found(rows) else 0) or options, f"SEED={seed}"
        shutil.rmtree(copy)
