"""`barnabas doctor`: the finding, the next start and the repair of each kind of damage."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.cli import main
from protocol.records import HEADER, parse_header
from storage.directories.log_directory import CLEAN_SHUTDOWN, lock_directories
from storage.io.checkpoint_file import read_epochs, read_offsets, write_epochs, write_offsets, write_topic_id
from storage.io.disk import Disk, StorageError
from storage.log.log import Log
from storage.log.open_log import OpenLog
from tests.support.data_directory import with_metadata_apart

FIRST, SECOND = "00000000000000000000", "00000000000000000014"


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


def changed(path: Path, at: int) -> None:
    """Flips a bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def rewrite_split_offset(data: Path, checkpoint: str) -> None:
    """Sets the offset of `split-0` in a checkpoint above the log end offset."""
    offsets = read_offsets(Disk(), f"{data}/{checkpoint}")
    write_offsets(Disk(), f"{data}/{checkpoint}", {**offsets, ("split", 0): 100})


def append_half_a_batch(data: Path) -> None:
    log = data / f"plain-1/{FIRST}.log"
    log.write_bytes(log.read_bytes() + log.read_bytes()[:50])


def break_epochs(data: Path) -> None:
    (data / "split-0/leader-epoch-checkpoint").write_text("0\n1\n0 x\n")


class Damage(NamedTuple):
    """A kind of damage: its finding, and the effects of a start and of a repair, as parts of their texts."""

    harm: Callable[[Path], object]
    severity: str
    finding: str
    start: str = ""
    repair: str = ""


DAMAGES = {
    "a broken batch": Damage(
        lambda data: changed(data / f"split-0/{SECOND}.log", 900),
        "loss", "bytes do not match its CRC", "", "after offset 16: 42 whole records are lost",
    ),
    "an index broken in its middle, where no start looks": Damage(
        lambda data: changed(data / f"split-0/{FIRST}.index", 11),
        "harmless", "names no batch", "", f"rebuilds {FIRST}.index",
    ),
    "a missing index": Damage(
        lambda data: (data / f"split-0/{FIRST}.index").unlink(),
        "harmless", "It is missing", f"rebuilds {FIRST}.index", f"rebuilds {FIRST}.index",
    ),
    "a broken time index": Damage(
        lambda data: changed(data / f"split-0/{FIRST}.timeindex", 6),
        "harmless", "names no batch", "", f"rebuilds {FIRST}.timeindex",
    ),
    "a broken transaction index": Damage(
        lambda data: changed(data / f"plain-0/{FIRST}.txnindex", 9),
        "harmless", "does not name the transaction", "", f"rebuilds {FIRST}.txnindex",
    ),
    "a missing segment": Damage(
        lambda data: (data / f"split-0/{SECOND}.log").unlink(),
        "loss", "Offsets 14 to 27 are missing", "deletes", "32 whole records are lost",
    ),
    "half a batch at the end": Damage(
        append_half_a_batch,
        "harmless", "a write that was cut short", "no whole record is lost", "no whole record is lost",
    ),
    "a broken producer snapshot": Damage(
        lambda data: changed(data / "plain-0/00000000000000000024.snapshot", 20), "harmless", "is corrupt"
    ),
    "an epoch above the log end offset": Damage(
        lambda data: write_epochs(Disk(), f"{data}/split-0/leader-epoch-checkpoint", [(0, 0), (3, 30)]),
        "harmless", "says epoch 3 for offset 30",
    ),
    "broken epochs": Damage(
        break_epochs, "harmless", "Cannot parse", "", "renames leader-epoch-checkpoint to .corrupt"
    ),
    "a broken checkpoint of the recovery points": Damage(
        lambda data: (data / "recovery-point-offset-checkpoint").write_text("x"),
        "harmless", "Cannot parse", "", "renames recovery-point-offset-checkpoint to .corrupt",
    ),
    "a broken topic id": Damage(
        lambda data: (data / "split-0/partition.metadata").write_text("version: 1\ntopic_id: " + 22 * "x"),
        "harmless", "Cannot parse", "", "renames partition.metadata to .corrupt",
    ),
    "a log start offset above the log end offset": Damage(
        lambda data: rewrite_split_offset(data, "log-start-offset-checkpoint"),
        "loss", "the next start empties the log", "60 whole records are lost", "60 whole records are lost",
    ),
    "a recovery point above the log end offset": Damage(
        lambda data: rewrite_split_offset(data, "recovery-point-offset-checkpoint"),
        "loss", "It ends at 60, but was durable up to 100",
    ),
    "another topic's id": Damage(
        lambda data: write_topic_id(Disk(), f"{data}/split-0/partition.metadata", bytes(range(16))),
        "loss", "It belongs to topic id", "renames it to a stray", "renames it to a stray",
    ),
    "a broken quorum state": Damage(
        lambda data: (data / "__cluster_metadata-0/quorum-state").write_text('{"leaderId":1,'),
        "refused", "is incomplete", "", "renames quorum-state to .corrupt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_predicted_and_repaired(kind: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harm, severity, text, start, repair = DAMAGES[kind]
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
    break_epochs(data)
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


def test_a_directory_of_the_metadata_log_alone_gets_no_marker_by_a_repair(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No start would delete it, and with it a torn end after a later kill would be damage."""
    metadata = with_metadata_apart(data)
    (data / CLEAN_SHUTDOWN).unlink()
    append_half_a_batch(data)
    assert main(["doctor", "--repair", str(data), str(metadata)]) == 0, capsys.readouterr().out
    assert (data / CLEAN_SHUTDOWN).exists()
    assert not (metadata / CLEAN_SHUTDOWN).exists()
    capsys.readouterr()
    assert main(["doctor", str(data), str(metadata)]) == 0
    assert "not shut down cleanly" not in capsys.readouterr().out


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


def test_the_partitions_of_a_directory_that_goes_offline_are_opened_no_more(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails while a repair is tried, or a running broker deletes files; the next partition was a KeyError."""
    for name in ("plain-1", "split-0"):
        changed(data / f"{name}/{FIRST}.log", 100)
    opened: list[str] = []
    open_log = Log.open

    def open_failing(log: Log) -> OpenLog:
        if log.topic not in ("plain", "split"):
            return open_log(log)
        opened.append(log.name)
        raise StorageError("open", log.path, OSError(5, "Input/output error"))

    monkeypatch.setattr(Log, "open", open_failing)
    status, rows = run_doctor(data, capsys)
    assert status == 1
    text = f"Its log directory goes offline: Cannot open {data}/{opened[0]}: Input/output error."
    assert [finding for finding in found(rows) if finding[0] == "refused"] == [("refused", text)]
    assert len(opened) == 2, "once for the next start, once for a repair"


def test_logging_is_enabled_again_after_the_doctor(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(data, capsys)[0] == 0
    assert logging.getLogger("barnabas.storage").isEnabledFor(logging.ERROR)
