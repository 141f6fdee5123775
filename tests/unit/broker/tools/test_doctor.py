"""`barnabas doctor`: each kind of damage, what is said of it, and what a repair makes of it."""

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
from tests.support.data_directory import copied, make_data_directory

FIRST, SECOND = "00000000000000000000", "00000000000000000014"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which nothing is wrong."""
    path = tmp_path_factory.mktemp("doctor") / "data"
    make_data_directory(path)
    return path


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy, to be broken."""
    return copied(whole, tmp_path / "data")


def visit(data: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and what `--json` says."""
    status = main(["doctor", "--json", *options, str(data)])
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def found(said: list[dict[str, Any]], when: str = "found") -> list[tuple[str, str]]:
    """Severity and sentence of the findings that are no notes."""
    return [
        (row["severity"], row["text"])
        for row in said
        if row["type"] == "finding" and row["when"] == when and row["severity"] != "note"
    ]


def does(said: list[dict[str, Any]], of: str) -> str:
    """What a start, or a repair, does to the partitions."""
    return "; ".join(
        sentence
        for row in said
        if row["type"] == "consequence" and row["when"] == "found" and row["of"] == of
        for sentence in row["does"]
    )


def changed(path: Path, at: int, value: int | None = None) -> None:
    """One byte of a file, flipped or set."""
    content = bytearray(path.read_bytes())
    content[at] = content[at] ^ 1 if value is None else value
    path.write_bytes(content)


def break_a_batch(data: Path) -> None:
    """In the second segment of five."""
    changed(data / f"split-0/{SECOND}.log", 900)


def break_an_index(data: Path) -> None:
    """In its middle, where no start looks."""
    changed(data / f"split-0/{FIRST}.index", 11)


def lose_an_index(data: Path) -> None:
    """Deleted."""
    (data / f"split-0/{FIRST}.index").unlink()


def break_the_times(data: Path) -> None:
    """The first timestamp."""
    changed(data / f"split-0/{FIRST}.timeindex", 6)


def break_the_transactions(data: Path) -> None:
    """The producer's id."""
    changed(data / f"plain-0/{FIRST}.txnindex", 9)


def lose_a_segment(data: Path) -> None:
    """One in the middle."""
    (data / f"split-0/{SECOND}.log").unlink()


def half_a_write(data: Path) -> None:
    """The beginning of a batch behind the last one."""
    log = data / f"plain-1/{FIRST}.log"
    log.write_bytes(log.read_bytes() + log.read_bytes()[:50])


def break_the_snapshot(data: Path) -> None:
    """Of the producers at the end."""
    changed(data / "plain-0/00000000000000000024.snapshot", 20)


def wrong_epochs(data: Path) -> None:
    """An epoch that no batch has."""
    write_epochs(Disk(), f"{data}/split-0/leader-epoch-checkpoint", [(0, 0), (3, 30)])


def broken_epochs(data: Path) -> None:
    """Not a number."""
    (data / "split-0/leader-epoch-checkpoint").write_text("0\n1\n0 x\n")


def start_behind_the_end(data: Path) -> None:
    """The log is to begin where it does not reach."""
    starts = read_offsets(Disk(), f"{data}/log-start-offset-checkpoint")
    write_offsets(Disk(), f"{data}/log-start-offset-checkpoint", {**starts, ("split", 0): 100})


def durable_behind_the_end(data: Path) -> None:
    """The end is lost."""
    points = read_offsets(Disk(), f"{data}/recovery-point-offset-checkpoint")
    write_offsets(Disk(), f"{data}/recovery-point-offset-checkpoint", {**points, ("split", 0): 100})


def another_topic(data: Path) -> None:
    """The directory of a topic that was deleted."""
    write_topic_id(Disk(), f"{data}/split-0/partition.metadata", bytes(range(16)))


def broken_quorum_state(data: Path) -> None:
    """Half of it."""
    (data / "__cluster_metadata-0/quorum-state").write_text('{"leaderId":1,')


CASES: list[tuple[Callable[[Path], None], str, str, str, str]] = [
    (break_a_batch, "loss", "bytes do not match its CRC", "", "behind offset 16: 42 whole records are lost"),
    (break_an_index, "harmless", "names no batch", "", f"builds {FIRST}.index anew"),
    (lose_an_index, "harmless", "It is missing", f"builds {FIRST}.index anew", f"builds {FIRST}.index anew"),
    (break_the_times, "harmless", "names no batch", "", f"builds {FIRST}.timeindex anew"),
    (break_the_transactions, "harmless", "does not name the transaction", "", f"builds {FIRST}.txnindex anew"),
    (lose_a_segment, "loss", "Offsets 14 to 27 are missing", "deletes", "32 whole records are lost"),
    (half_a_write, "harmless", "a write that was cut short", "no whole record is lost", "no whole record is lost"),
    (break_the_snapshot, "harmless", "cannot be believed", "", ""),
    (wrong_epochs, "harmless", "says epoch 3 for offset 30", "", ""),
    (broken_epochs, "refused", "Cannot understand", "", "sets leader-epoch-checkpoint aside"),
    (start_behind_the_end, "loss", "a start empties it", "60 whole records are lost", "60 whole records are lost"),
    (durable_behind_the_end, "loss", "It ends at 60, but was durable up to 100", "", ""),
    (another_topic, "loss", "It belongs to topic id", "sets it aside as a stray", "sets it aside as a stray"),
    (broken_quorum_state, "refused", "is not whole", "", "sets quorum-state aside"),
]


@pytest.mark.parametrize(
    ("harm", "severity", "text", "start", "repair"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_damage_is_named_with_what_comes_of_it_and_can_be_repaired(
    harm: Callable[[Path], None],
    severity: str,
    text: str,
    start: str,
    repair: str,
    data: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One finding of that kind; what the next start does, what a repair does; after one nothing is found."""
    harm(data)
    status, said = visit(data, capsys)
    assert status == 1
    assert [kind for kind, sentence in found(said) if text in sentence] == [severity], found(said)
    assert start in does(said, "start"), does(said, "start")
    assert bool(start) == bool(does(said, "start"))
    assert repair in does(said, "repair"), does(said, "repair")
    status, said = visit(data, capsys, "--repair")
    assert (status, found(said, "remains")) == (0, [])
    assert said[-1]["isRepaired"]
    assert visit(data, capsys)[0] == 0


def test_epochs_come_back_from_the_batches(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file that nobody understood is kept beside the new one."""
    broken_epochs(data)
    visit(data, capsys, "--repair")
    assert read_epochs(Disk(), f"{data}/split-0/leader-epoch-checkpoint") == [(0, 0)]
    assert (data / "split-0/leader-epoch-checkpoint.corrupt").exists()


def test_a_leader_epoch_that_goes_back_is_a_note(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No CRC covers it, and nothing can be done about it."""
    log = data / f"split-0/{FIRST}.log"
    content = bytearray(log.read_bytes())
    second = parse_header(content, 0).size
    HEADER.pack_into(content, second, *parse_header(content, second)._replace(leader_epoch=-1))
    log.write_bytes(content)
    status, said = visit(data, capsys)
    assert (status, found(said)) == (0, [])
    assert "The batch at offset 1 says leader epoch -1" in next(row["text"] for row in said if row["type"] == "finding")


def test_after_an_unclean_stop_a_healthy_directory_is_healthy(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A note, and a repair does what the next start would have done."""
    (data / ".kafka_cleanshutdown").unlink()
    status, said = visit(data, capsys)
    assert (status, found(said)) == (0, [])
    assert visit(data, capsys, "--repair")[0] == 0
    assert (data / ".kafka_cleanshutdown").exists()


def test_directories_in_use_are_left_alone(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence; `--read-only` looks, and cannot repair."""
    (lock,) = lock_directories(Disk(), [str(data)])
    assert main(["doctor", str(data)]) == 2
    assert "--read-only" in capsys.readouterr().err
    assert main(["doctor", "--read-only", str(data)]) == 0
    assert main(["doctor", "--read-only", "--repair", str(data)]) == 2
    lock.release()


@pytest.mark.parametrize("name", ["nothing", "split-0", "__cluster_metadata-0"])
def test_what_is_no_log_directory_is_a_sentence(name: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2."""
    assert main(["doctor", str(data / name)]) == 2
    assert capsys.readouterr().err.startswith("barnabas: ")


def test_metadata_that_cannot_be_read_are_not_repaired(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without them nobody knows what belongs to the cluster: nothing is changed."""
    for log in (data / "__cluster_metadata-0").glob("*.log"):
        log.write_bytes(b"")
    (data / "bootstrap.checkpoint").unlink()
    before = (data / "split-0/partition.metadata").read_bytes()
    status, said = visit(data, capsys, "--repair")
    assert status == 1
    assert not said[-1]["isRepaired"]
    assert (data / "split-0/partition.metadata").read_bytes() == before


def test_nothing_is_made_in_directories_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even a lock file."""
    (tmp_path / "letters").write_text("Dear")
    assert main(["doctor", str(tmp_path)]) == 2
    assert "no meta.properties" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]


def test_a_file_that_cannot_be_read_is_a_sentence(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2: nobody knows what stands in it."""
    (data / "plain-0" / f"{99:020d}.log").mkdir()
    assert main(["doctor", str(data), str(data)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_others_are_heard_again_when_it_is_done(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a rehearsed recovery complains of is silenced, nothing else."""
    assert visit(data, capsys)[0] == 0
    assert logging.getLogger("barnabas.storage").isEnabledFor(logging.ERROR)
