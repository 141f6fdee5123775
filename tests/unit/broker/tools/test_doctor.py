"""`barnabas doctor`: the finding, the next start and the repair of each kind of damage."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.cli import main
from protocol.records import HEADER, parse_header
from storage.directories.directory_locks import lock_directories
from storage.io.checkpoint_file import read_epochs, read_offsets, write_epochs, write_offsets, write_topic_id
from storage.io.disk import Disk
from tests.support.data_directory import copy_directory, make_data_directory

FIRST, SECOND = "00000000000000000000", "00000000000000000014"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undamaged directory."""
    path = tmp_path_factory.mktemp("doctor") / "data"
    make_data_directory(path)
    return path


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return copy_directory(whole, tmp_path / "data")


def run_doctor(data: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and JSON objects."""
    status = main(["doctor", "--json", *options, str(data)])
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def found(rows: list[dict[str, Any]], when: str = "found") -> list[tuple[str, str]]:
    """Severity and text of the findings above notes."""
    return [
        (row["severity"], row["text"])
        for row in rows
        if row["type"] == "finding" and row["when"] == when and row["severity"] != "note"
    ]


def does(rows: list[dict[str, Any]], of: str) -> str:
    """The effects of a start or a repair on the partitions."""
    return "; ".join(
        sentence
        for row in rows
        if row["type"] == "consequence" and row["when"] == "found" and row["of"] == of
        for sentence in row["does"]
    )


def changed(path: Path, at: int, value: int | None = None) -> None:
    """The byte of a file, flipped or set."""
    content = bytearray(path.read_bytes())
    content[at] = content[at] ^ 1 if value is None else value
    path.write_bytes(content)


def break_a_batch(data: Path) -> None:
    changed(data / f"split-0/{SECOND}.log", 900)


def break_an_index(data: Path) -> None:
    """In its middle, where no start looks."""
    changed(data / f"split-0/{FIRST}.index", 11)


def lose_an_index(data: Path) -> None:
    (data / f"split-0/{FIRST}.index").unlink()


def break_the_times(data: Path) -> None:
    changed(data / f"split-0/{FIRST}.timeindex", 6)


def break_the_transactions(data: Path) -> None:
    changed(data / f"plain-0/{FIRST}.txnindex", 9)


def lose_a_segment(data: Path) -> None:
    (data / f"split-0/{SECOND}.log").unlink()


def half_a_write(data: Path) -> None:
    log = data / f"plain-1/{FIRST}.log"
    log.write_bytes(log.read_bytes() + log.read_bytes()[:50])


def break_the_snapshot(data: Path) -> None:
    changed(data / "plain-0/00000000000000000024.snapshot", 20)


def wrong_epochs(data: Path) -> None:
    write_epochs(Disk(), f"{data}/split-0/leader-epoch-checkpoint", [(0, 0), (3, 30)])


def broken_epochs(data: Path) -> None:
    (data / "split-0/leader-epoch-checkpoint").write_text("0\n1\n0 x\n")


def start_behind_the_end(data: Path) -> None:
    """A log start offset above the log end offset."""
    starts = read_offsets(Disk(), f"{data}/log-start-offset-checkpoint")
    write_offsets(Disk(), f"{data}/log-start-offset-checkpoint", {**starts, ("split", 0): 100})


def durable_behind_the_end(data: Path) -> None:
    points = read_offsets(Disk(), f"{data}/recovery-point-offset-checkpoint")
    write_offsets(Disk(), f"{data}/recovery-point-offset-checkpoint", {**points, ("split", 0): 100})


def another_topic(data: Path) -> None:
    write_topic_id(Disk(), f"{data}/split-0/partition.metadata", bytes(range(16)))


def broken_quorum_state(data: Path) -> None:
    (data / "__cluster_metadata-0/quorum-state").write_text('{"leaderId":1,')


CASES: list[tuple[Callable[[Path], None], str, str, str, str]] = [
    (break_a_batch, "loss", "bytes do not match its CRC", "", "after offset 16: 42 whole records are lost"),
    (break_an_index, "harmless", "names no batch", "", f"rebuilds {FIRST}.index"),
    (lose_an_index, "harmless", "It is missing", f"rebuilds {FIRST}.index", f"rebuilds {FIRST}.index"),
    (break_the_times, "harmless", "names no batch", "", f"rebuilds {FIRST}.timeindex"),
    (break_the_transactions, "harmless", "does not name the transaction", "", f"rebuilds {FIRST}.txnindex"),
    (lose_a_segment, "loss", "Offsets 14 to 27 are missing", "deletes", "32 whole records are lost"),
    (half_a_write, "harmless", "a write that was cut short", "no whole record is lost", "no whole record is lost"),
    (break_the_snapshot, "harmless", "is corrupt", "", ""),
    (wrong_epochs, "harmless", "says epoch 3 for offset 30", "", ""),
    (broken_epochs, "refused", "Cannot parse", "", "renames leader-epoch-checkpoint to .corrupt"),
    (
        start_behind_the_end,
        "loss",
        "the next start empties the log",
        "60 whole records are lost",
        "60 whole records are lost",
    ),
    (durable_behind_the_end, "loss", "It ends at 60, but was durable up to 100", "", ""),
    (another_topic, "loss", "It belongs to topic id", "renames it to a stray", "renames it to a stray"),
    (broken_quorum_state, "refused", "is incomplete", "", "renames quorum-state to .corrupt"),
]


@pytest.mark.parametrize(
    ("harm", "severity", "text", "start", "repair"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_damage_is_found_predicted_and_repaired(
    harm: Callable[[Path], None],
    severity: str,
    text: str,
    start: str,
    repair: str,
    data: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    harm(data)
    status, rows = run_doctor(data, capsys)
    assert status == 1
    assert [kind for kind, sentence in found(rows) if text in sentence] == [severity], found(rows)
    assert start in does(rows, "start"), does(rows, "start")
    assert bool(start) == bool(does(rows, "start"))
    assert repair in does(rows, "repair"), does(rows, "repair")
    status, rows = run_doctor(data, capsys, "--repair")
    assert (status, found(rows, "remains")) == (0, [])
    assert rows[-1]["isRepaired"]
    assert run_doctor(data, capsys)[0] == 0


def test_a_corrupt_epoch_checkpoint_is_kept_and_rebuilt_from_the_batches(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_epochs(data)
    run_doctor(data, capsys, "--repair")
    assert read_epochs(Disk(), f"{data}/split-0/leader-epoch-checkpoint") == [(0, 0)]
    assert (data / "split-0/leader-epoch-checkpoint.corrupt").exists()


def test_a_decreasing_leader_epoch_is_a_note(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = data / f"split-0/{FIRST}.log"
    content = bytearray(log.read_bytes())
    second = parse_header(content, 0).size
    HEADER.pack_into(content, second, *parse_header(content, second)._replace(leader_epoch=-1))
    log.write_bytes(content)
    status, rows = run_doctor(data, capsys)
    assert (status, found(rows)) == (0, [])
    assert "The batch at offset 1 says leader epoch -1" in next(row["text"] for row in rows if row["type"] == "finding")


def test_an_undamaged_directory_is_healthy_after_an_unclean_shutdown(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    status, rows = run_doctor(data, capsys)
    assert (status, found(rows)) == (0, [])
    assert run_doctor(data, capsys, "--repair")[0] == 0
    assert (data / ".kafka_cleanshutdown").exists()


def test_locked_directories_are_checked_only_with_read_only(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lock,) = lock_directories(Disk(), [str(data)])
    assert main(["doctor", str(data)]) == 2
    assert "--read-only" in capsys.readouterr().err
    assert main(["doctor", "--read-only", str(data)]) == 0
    assert main(["doctor", "--read-only", "--repair", str(data)]) == 2
    lock.release()


@pytest.mark.parametrize("name", ["nothing", "split-0", "__cluster_metadata-0"])
def test_another_directory_is_a_sentence(name: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(data / name)]) == 2
    assert capsys.readouterr().err.startswith("barnabas: ")


def test_nothing_is_repaired_without_readable_metadata(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for log in (data / "__cluster_metadata-0").glob("*.log"):
        log.write_bytes(b"")
    (data / "bootstrap.checkpoint").unlink()
    before = (data / "split-0/partition.metadata").read_bytes()
    status, rows = run_doctor(data, capsys, "--repair")
    assert status == 1
    assert not rows[-1]["isRepaired"]
    assert (data / "split-0/partition.metadata").read_bytes() == before


def test_no_file_is_created_in_other_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letters").write_text("Dear")
    assert main(["doctor", str(tmp_path)]) == 2
    assert "no meta.properties" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]


def test_an_unreadable_file_is_a_sentence(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "plain-0" / f"{99:020d}.log").mkdir()
    assert main(["doctor", str(data), str(data)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_logging_is_enabled_again_after_the_doctor(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(data, capsys)[0] == 0
    assert logging.getLogger("barnabas.storage").isEnabledFor(logging.ERROR)
