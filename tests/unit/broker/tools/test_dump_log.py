"""`barnabas dump-log`: files that Kafka's tool does not know, JSON, damage, terminals."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from broker.cli import main
from broker.tools.decoding import DECODINGS
from broker.tools.dump_batches import Options
from broker.tools.dump_log import as_text
from broker.tools.dump_rows import rows
from protocol.batch_builder import BatchBuilder
from protocol.primitives import uuid_text
from protocol.records import parse_header
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.frames import FrameKind
from storage.commitlog.slots import SlotId
from storage.config.log_config import LogConfig
from storage.engine import AbortedTransaction
from storage.io.checkpoint_file import write_epochs, write_offsets, write_topic_id
from storage.io.disk import Disk
from storage.log.producer_state import ProducerState
from tests.support.batches import broken_bodies, with_body
from tests.support.logs import NOW_MS, ProducerInfo, append, log_at, produced
from tests.support.segments import batch, reset_engine, truncate_engine
from tests.unit.storage.commitlog.test_cleaning import clean
from tests.unit.storage.commitlog.test_commit_log import Process, append_to, sync

LOG = "00000000000000000000.log"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A closed partition directory."""
    log = log_at(tmp_path)
    append(log, "one", "two", producer=ProducerInfo(5, 0, 0))
    append(log, b"\xff\x00", producer=ProducerInfo(5, 0, 2))
    log.close()
    return tmp_path / "t-0"


def dumped(capsys: pytest.CaptureFixture[str], *args: object) -> list[dict[str, Any]]:
    """The JSON objects."""
    main(["dump-log", "--json", *map(str, args)])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def small_files(tmp_path: Path, written: Path) -> list[Path]:
    """Checkpoints, meta.properties and quorum-state."""
    offsets, properties, quorum_state = (
        tmp_path / name for name in ("recovery-point-offset-checkpoint", "meta.properties", "quorum-state")
    )
    epochs, topic_id = written / "leader-epoch-checkpoint", written / "partition.metadata"
    write_offsets(Disk(), str(offsets), {("t", 0): 3})
    write_epochs(Disk(), str(epochs), [(0, 0), (4, 2)])
    write_topic_id(Disk(), str(topic_id), bytes(range(16)))
    properties.write_text("#\n#date\nversion=1\nnode.id=1\ncluster.id=a\\=b\n")
    quorum_state.write_text('{"leaderId":1,"leaderEpoch":2}')
    return [offsets, epochs, topic_id, properties, quorum_state]


def test_json_is_one_object_per_line(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = dumped(capsys, "--print-data-log", written / LOG)
    assert [row["type"] for row in found] == ["log", "batch", "record", "record", "batch", "record"]
    assert {row["file"] for row in found} == {str(written / LOG)}
    assert [row["payload"] for row in found if row["type"] == "record"] == ["one", "two", {"base64": "/wA="}]
    assert found[1]["deleteHorizonMs"] is None
    assert found[1]["isvalid"] is True


def test_small_files_are_shown(small_files: list[Path], written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = dumped(capsys, *small_files, written / "00000000000000000003.snapshot")
    shown = [{name: value for name, value in row.items() if name != "file"} for row in found]
    assert shown[:-1] == [
        {"type": "checkpoint", "topic": "t", "partition": 0, "offset": 3},
        {"type": "leaderEpoch", "epoch": 0, "startOffset": 0},
        {"type": "leaderEpoch", "epoch": 4, "startOffset": 2},
        {"type": "partitionMetadata", "topicId": "AAECAwQFBgcICQoLDA0ODw"},
        {"type": "property", "name": "version", "value": "1"},
        {"type": "property", "name": "node.id", "value": "1"},
        {"type": "property", "name": "cluster.id", "value": "a=b"},
        {"type": "json", "content": {"leaderId": 1, "leaderEpoch": 2}},
    ]
    assert shown[-1]["producerId"] == 5
    assert shown[-1]["lastSequence"] == 2


def test_every_row_has_a_line(small_files: list[Path], written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {*written.iterdir(), *small_files}
    assert main(["dump-log", "--deep-iteration", *map(str, sorted(names))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "topic: t partition: 0 offset: 3" in lines
    assert '{"leaderId":1,"leaderEpoch":2}' in lines
    assert "node.id: 1" in lines


@pytest.mark.parametrize("name", ["00000000000000000000.log", "leader-epoch-checkpoint", "x.log", "readme.txt"])
def test_an_unreadable_file_is_a_sentence_and_the_others_are_shown(
    name: str, tmp_path: Path, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump-log", str(tmp_path / name), str(written / LOG)]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("barnabas: ")
    assert shown.err.count("\n") == 1
    assert str(tmp_path / name) in shown.err
    assert "baseOffset: 2" in shown.out


@pytest.mark.parametrize("content", [b"", b"\xff\xfe = \0", b"{}"], ids=["empty", "rubbish", "another kind"])
@pytest.mark.parametrize("name", ["meta.properties", "quorum-state", "00000000000000000007-0000000001.checkpoint"])
def test_an_incomplete_small_file_is_a_problem(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    is_json = (name, content) == ("quorum-state", b"{}")
    assert main(["dump-log", str(tmp_path / name)]) == (0 if is_json else 1)
    shown = capsys.readouterr().err
    assert shown.startswith(f"barnabas: {tmp_path / name}") != is_json


def test_a_metadata_snapshot_without_footer_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, footer = (BatchBuilder(control=True) for _ in range(2))
    data = BatchBuilder()
    for builder in (header, data, footer):
        builder.append(0, b"\0\0\0\0", b"")
    batches = [bytes(builder.build()) for builder in (header, data, footer)]
    path = tmp_path / "00000000000000000007-0000000001.checkpoint"
    for count in (3, 2, 1):
        path.write_bytes(b"".join(batches[:count]))
        assert main(["dump-log", str(path)]) == (0 if count == 3 else 1), count
        assert ("its header or footer is missing" in capsys.readouterr().err) is (count < 3)


def test_a_missing_file_is_not_called_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "readme.txt"
    assert main(["dump-log", str(path)]) == 1
    assert f"{path} does not exist." in capsys.readouterr().err
    assert main(["dump-log", str(tmp_path)]) == 1
    assert f"{tmp_path} is a directory: name the files in it." in capsys.readouterr().err
    path.touch()
    assert main(["dump-log", str(path)]) == 1
    assert f"{path} is not a known file of a log directory: " in capsys.readouterr().err


def test_no_file_argument_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump-log"]) == 2
    assert "Name a file" in capsys.readouterr().err


def test_a_partition_without_a_number_is_one_error_for_all_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump-log", "--partition", "orders", "a.clog", "b.clog"]) == 2
    assert capsys.readouterr().err.count("--partition orders: give it as TOPIC-N, such as orders-0.") == 1


def test_an_incomplete_last_batch_is_no_problem(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (written / LOG).read_bytes()
    for cut in (1, 40, 70):
        (written / LOG).write_bytes(content + content[:cut])
        assert main(["dump-log", str(written / LOG)]) == 0
        assert f"Found {cut} invalid bytes at the end of {LOG}" in capsys.readouterr().out


def test_an_impossible_batch_length_is_a_problem(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray((written / LOG).read_bytes())
    second = 12 + int.from_bytes(content[8:12], "big")
    content[second + 8] = 0x80
    (written / LOG).write_bytes(content)
    assert main(["dump-log", str(written / LOG)]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("baseOffset") == 1
    assert f"from position {second} on" in shown.err


def test_batches_larger_than_a_read_are_shown(tmp_path: Path) -> None:
    path = tmp_path / LOG
    path.write_bytes(batch(0, 2) + batch(2, 1, size=3_000_000) + batch(3, 3))
    found = list(rows(Disk(), str(path), Options()))
    assert [(row["baseOffset"], row["isvalid"]) for row in found[1:]] == [(0, True), (2, True), (3, True)]


def test_unreadable_records_do_not_end_the_dump(tmp_path: Path) -> None:
    path = tmp_path / LOG
    broken = with_body(broken_bodies()["garbage"], 2, NOW_MS)
    path.write_bytes(bytes(broken) + batch(2))
    kinds = [row["type"] for row in rows(Disk(), str(path), Options(is_deep=True))]
    assert kinds == ["log", "batch", "problem", "batch", "record"]


def test_unknown_metadata_records_are_sentences(tmp_path: Path) -> None:
    builder = BatchBuilder()
    builder.append(NOW_MS, None, b"\x01\x63\x00")
    (tmp_path / LOG).write_bytes(builder.build())
    options = Options(is_deep=True, with_data=True, decoding=DECODINGS["cluster-metadata"])
    record = list(rows(Disk(), str(tmp_path / LOG), options))[-1]
    assert record["payload"].startswith("Error at 0, skipping. ")


def test_records_of_both_group_protocols_are_decoded(whole: Path) -> None:
    options = Options(is_deep=True, with_data=True, decoding=DECODINGS["offsets"])
    logs = whole.glob(f"__consumer_offsets-*/{LOG}")
    records = [row for path in logs for row in rows(Disk(), str(path), options) if row["type"] == "record"]
    assert {record["key"]["type"] for record in records} == {"1", "2", "3", "5", "6", "7", "8", "16"}
    assert {record["key"]["data"].get("groupId") or record["key"]["data"]["group"] for record in records} == {
        "readers", "new readers"
    }  # fmt: skip


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_control_characters_are_escaped_on_a_terminal_only() -> None:
    row = {"type": "property", "name": "x", "value": "\x1b[2J"}
    for out, expected in ((Terminal(), "x: \\x1b[2J\n"), (io.StringIO(), "x: \x1b[2J\n")):
        as_text(out, io.StringIO(), skip_record_metadata=False)("f", row)
        assert out.getvalue() == expected


# ---- commit logs -----------------------------------------------------------------------------------------


@pytest.fixture
def commit_log(tmp_path: Path) -> Path:
    """The folder of a commit log with two sealed files and partitions 0 and 1."""
    process = Process(tmp_path)
    for _ in range(8):
        append_to(process[0])
        append_to(process[1], count=2)
    process[1].truncate(6)
    process[1].end_truncation()
    append_to(process[1])
    process.log.close()
    return tmp_path / "commitlog"


def kinds(rows: list[dict[str, Any]]) -> list[str]:
    return [row["kind"] for row in rows if row["type"] == "frame"]


def test_frames_of_a_commit_log_are_shown_with_their_batches(
    commit_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(commit_log.glob("*.clog"))
    found = dumped(capsys, "--print-data-log", *files)
    assert kinds(found)[:3] == ["BIND", "BATCHES", "BIND"]
    assert {"FOLLOWS", "CUT"} <= set(kinds(found))
    records = [row for row in found if row["type"] == "record"]
    assert len(records) == 8 + 16 + 1
    first = next(row for row in found if row["type"] == "batch")
    assert files[0].read_bytes()[first["position"] :].startswith(b"\0" * 8)
    assert not [row for row in found if row["type"] == "problem"]


@pytest.mark.parametrize("name", ["t-1", f"{uuid_text(b't' * 16)}-1"])
def test_a_dump_of_a_commit_log_can_show_one_partition(
    name: str, tmp_path: Path, commit_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t-1").mkdir()
    write_topic_id(Disk(), str(tmp_path / "t-1" / "partition.metadata"), b"t" * 16)
    found = dumped(capsys, "--partition", name, *sorted(commit_log.glob("*.clog")), *sorted(commit_log.glob("*.queue")))
    frames = [row for row in found if row["type"] == "frame"]
    assert {row["partition"] for row in frames} == {1}
    assert sum(row.get("batches", 0) for row in frames) == 9
    entries = [row for row in found if row["type"] == "queueEntry"]
    assert [row["lastOffset"] for row in entries][-1] == 6
    assert main(["dump-log", "--partition", "u-1", *map(str, commit_log.glob("*.clog"))]) == 1


def test_entries_that_contradict_a_commit_log_are_problems(
    commit_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = min(commit_log.glob("*.queue"))
    log = queue.with_suffix(".clog")
    assert not dumped(capsys, "--verify-index-only", queue)[1:]
    position = next(row["position"] for row in dumped(capsys, log) if row["type"] == "batch")
    with log.open("r+b") as file:
        file.seek(position + 7)
        file.write(b"\x09")
    found = dumped(capsys, "--verify-index-only", queue)
    assert "its entry says" in found[-1]["text"]
    assert "no valid frame from position" in next(
        row["text"] for row in dumped(capsys, log) if row["type"] == "problem"
    )
    queue.write_bytes(queue.read_bytes()[:-1])
    assert "is invalid" in dumped(capsys, queue)[0]["text"]


def test_the_torn_end_of_a_commit_log_is_a_tail(commit_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = max(commit_log.glob("*.queue")).with_suffix(".clog")
    last.write_bytes(last.read_bytes()[:-10])
    found = dumped(capsys, last)
    assert found[-1]["type"] == "tail"
    assert not [row for row in found if row["type"] == "problem"]


def test_every_kind_of_frame_is_shown_with_its_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = Process(tmp_path)
    engine = CommitLogEngine(process.log, SlotId(b"t" * 16, 0), "orders", LogConfig(segment_bytes=500))
    engine.open(None)
    other = process[1]
    append_to(engine, count=3)
    sync(engine)
    producers = ProducerState("")
    producers.update(parse_header(produced("x", producer=ProducerInfo(7, 0, 5))), None)
    engine.store_snapshot(3, producers.snapshot())
    engine.add_aborted(AbortedTransaction(7, 0, 2, 3))
    for _ in range(25):
        append_to(engine)
        append_to(other)
    engine.roll(0)
    truncate_engine(engine, 20)
    engine.trim(9)
    reset_engine(other, 40)
    process.log.drop(other._slot)
    found = dumped(capsys, *sorted((tmp_path / "commitlog").glob("*.clog")))
    assert set(kinds(found)) >= {kind.name for kind in FrameKind} - {"STATE", "RUN"}
    assert [row for row in found if row["type"] == "problem"] == []
    by_kind = {row["kind"]: row for row in found if row["type"] == "frame"}
    fields = {
        "BIND": {"incarnation", "startOffset"},
        "CUT": {"endOffset", "segmentBaseOffset", "segmentSize"},
        "SNAPSHOT": {"offset"},
        "ABORTED": {"producerId", "firstOffset", "lastOffset", "lastStableOffset"},
        **{kind: {"offset"} for kind in ("RESET", "START", "ROLL")},
        "DURABLE": {"durableEnd"},
        "FOLLOWS": {"previousStart", "previousEnd"},
    }
    assert {kind: names - by_kind[kind].keys() for kind, names in fields.items()} == {kind: set() for kind in fields}
    assert "orders" in {row.get("topic") for row in found}
    producer = next(row for row in found if row["type"] == "producer")
    assert (producer["producerId"], producer["lastSequence"]) == (7, 5)
    named = dumped(capsys, "--partition", "orders-0", *sorted((tmp_path / "commitlog").glob("*.clog")))
    assert {row["partition"] for row in named if row["type"] == "frame"} == {0}
    process.log.close()
    clean(process)
    runs = dumped(capsys, *sorted((tmp_path / "commitlog").glob("*-*.clog")))
    assert {"RUN", "STATE"} <= set(kinds(runs))


def test_an_interrupted_tool_does_not_end_as_one_that_found_damage(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C: exit status 1 of the tools means that a file is damaged, or could not be converted."""
    monkeypatch.setattr("broker.tools.commands.dump_files", Mock(side_effect=KeyboardInterrupt))
    assert main(["dump-log", str(written / LOG)]) == 130
