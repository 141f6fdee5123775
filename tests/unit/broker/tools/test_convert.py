"""`barnabas convert`: what it refuses, shows and reports.

NOT HERE What a conversion keeps (tests/unit/storage/directories/test_conversion.py).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from broker.cli import main
from replication.metadata_log.node_identity import META_PROPERTIES
from storage.directories.log_directory import CLEAN_SHUTDOWN, lock_directories
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.io.checkpoint_file import PARTITION_METADATA, write_topic_id
from storage.io.disk import Disk
from tests.support.data_directory import make_directory_beside, with_metadata_apart
from tests.support.kafka import combined_node

MIB = 1 << 20
SOME = ["plain-0", "plain-1", "split-0"]


pytestmark = pytest.mark.usefixtures("small_files")


def convert(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """Exit status and output."""
    status = main(["convert", *options])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


def settings_file(tmp_path: Path, data: Path, settings: dict[str, object]) -> str:
    """The path of a settings file of the node."""
    file = tmp_path / "server.properties"
    node = combined_node("127.0.0.1:9092", "127.0.0.1:9093") | {"node.id": 1, "log.dirs": data}
    node |= {"controller.quorum.voters": "1@127.0.0.1:9093"}
    file.write_text("".join(f"{name}={value}\n" for name, value in {**node, **settings}.items()))
    return str(file)


def contents(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def tear_metadata_log(data: Path) -> None:
    """Append the first bytes of a batch."""
    with max((data / METADATA_DIRECTORY).glob("*.log")).open("ab") as file:
        file.write(bytes(7) + b"0")


def test_all_partitions_are_converted_but_the_compacted_ones(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, shown = convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    assert status == 0
    assert "moved to the commit log." in shown
    assert "__consumer_offsets is compacted: 2 partitions stay as they are." in shown
    assert not [file for name in SOME for file in (data / name).glob("*.log")]
    status, shown = convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    assert status == 0
    assert shown.startswith("Nothing to convert")
    status, shown = convert(capsys, "--log-dir", str(data), "--to", "segments")
    assert status == 0
    assert not (data / "commitlog").exists()
    assert all(list((data / name).glob("*.log")) for name in SOME)
    assert main(["doctor", str(data)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("engine", ["commitlog", "segments"])
def test_other_users_cannot_read_what_is_converted(data: Path, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    if engine == "segments":
        convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    before = os.umask(0o022)
    try:
        assert convert(capsys, "--log-dir", str(data), "--to", engine)[0] == 0
    finally:
        os.umask(before)
    paths = [path for path in data.rglob("*") if path.parent.name.startswith(("commitlog", "plain", "split"))]
    assert len(paths) > 10
    assert not [path for path in paths if path.stat().st_mode & 0o007]


def test_a_dry_run_changes_nothing(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(data)
    status, shown = convert(capsys, "--log-dir", str(data), "--to", "commitlog", "--dry-run", "--topic", "split")
    assert status == 0
    assert f"{data}: split-0 has " in shown
    assert "1 partition with " in shown
    assert contents(data) == {**before, ".lock": b""}


def test_one_topic_leaves_the_others_in_the_commit_log(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    status, shown = convert(capsys, "--log-dir", str(data), "--to", "segments", "--topic", "plain")
    assert status == 0
    assert shown.startswith("2 partitions with ")
    assert "are in the commit log: Apache Kafka cannot start here." in shown
    assert list((data / "plain-0").glob("*.log"))
    assert (data / "commitlog").is_dir()


def test_a_topic_that_does_not_exist_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--log-dir", str(data), "--to", "commitlog", "--topic", "plain", "--topic", "plian")
    assert convert(capsys, *options) == (2, "barnabas: There is no topic plian.\n")
    assert list((data / "plain-0").glob("*.log"))


def test_a_settings_file_names_the_directories(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = settings_file(tmp_path, data, {"log.cleanup.policy": "compact"})
    status, shown = convert(capsys, "--config", file, "--to", "commitlog")
    assert status == 0
    assert "split is compacted" in shown, "the broker's default counts"


@pytest.mark.parametrize(("free_bytes", "expected"), [(11 * MIB, 2), (13 * MIB, 0)])
def test_the_space_for_new_files_is_that_of_the_settings_file(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    free_bytes: int,
    expected: int,
) -> None:
    monkeypatch.setattr(Disk, "space", lambda *_: (1 << 40, free_bytes))
    file = settings_file(tmp_path, data, {"barnabas.commitlog.file.bytes": 4 * MIB})
    status, shown = convert(capsys, "--config", file, "--to", "commitlog", "--dry-run")
    assert status == expected, shown


def test_the_files_of_another_user_are_not_changed(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service of that user could not read what root has written."""
    owner = os.stat(data / META_PROPERTIES).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 12345)
    before = contents(data)
    for command in (["convert", "--to", "commitlog", "--log-dir"], ["doctor", "--repair"]):
        assert main([*command, str(data)]) == 2
        shown = capsys.readouterr().err
        assert f"runs as user {owner}, " in shown
        assert f"this command as user {owner + 12345}: " in shown
    assert contents(data) == before
    assert convert(capsys, "--log-dir", str(data), "--to", "commitlog", "--dry-run")[0] == 0


def test_a_running_broker_keeps_the_conversion_out(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lock,) = lock_directories(Disk(), [str(data)])
    try:
        status, shown = convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    finally:
        lock.release()
    assert status == 2
    assert shown.endswith("Stop the broker first.\n")


@pytest.mark.parametrize("engine", ["segments", "commitlog"])
def test_missing_space_is_reported_before_anything_is_changed(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    if engine == "segments":
        convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    before = contents(data)
    monkeypatch.setattr(Disk, "space", lambda *_: (1 << 40, 4096))
    status, shown = convert(capsys, "--log-dir", str(data), "--to", engine)
    assert status == 2
    assert f"{data} needs " in shown
    assert "more free space. Nothing was changed." in shown
    assert contents(data) == {**before, ".lock": b""}


def test_a_damaged_partition_stays_and_the_others_are_converted(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = data / f"split-0/{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[900] ^= 1
    log.write_bytes(content)
    status, shown = convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    assert status == 1
    assert "1 partition could not be converted" in shown
    assert "split-0 stays as it is: " in shown
    assert log.read_bytes() == content
    assert not list((data / "plain-0").glob("*.log"))


def test_a_torn_end_of_the_metadata_log_is_truncated_before_the_directory_is_marked_clean(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a clean shutdown it would be damage, with which no node starts."""
    (data / CLEAN_SHUTDOWN).unlink()
    tear_metadata_log(data)
    assert convert(capsys, "--log-dir", str(data), "--to", "commitlog")[0] == 0
    assert (data / CLEAN_SHUTDOWN).exists()
    assert main(["doctor", str(data)]) == 0, capsys.readouterr().out


def test_a_metadata_log_that_has_lost_records_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tear_metadata_log(data)
    before = contents(data)
    status, shown = convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    assert status == 2
    assert "after a clean shutdown" in shown
    assert contents(data) == {**before, ".lock": b""}


def test_a_settings_file_names_the_directory_of_the_metadata_log_too(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = with_metadata_apart(data)
    status, shown = convert(
        capsys, "--config", settings_file(tmp_path, data, {"metadata.log.dir": metadata}), "--to", "commitlog"
    )
    assert status == 0, shown
    assert "__consumer_offsets is compacted" in shown
    assert not (metadata / CLEAN_SHUTDOWN).exists(), "no start deletes it"


def test_a_log_of_a_deleted_topic_in_a_directory_that_was_missing_stays(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topic was created again meanwhile; its partition has the same name in another directory."""
    other = make_directory_beside(data, "another")
    (other / "plain-0").mkdir()
    write_topic_id(Disk(), str(other / "plain-0" / PARTITION_METADATA), b"of deleted topic")
    shutil.copy(data / "plain-0" / f"{0:020d}.log", other / "plain-0")
    status, shown = convert(capsys, "--log-dir", str(other), "--log-dir", str(data), "--to", "commitlog")
    assert status == 0
    assert shown.startswith("6 partitions with ")
    assert "plain is in two log directories" in shown
    assert not list((data / "plain-0").glob("*.log"))
    assert list((other / "plain-0").glob("*.log"))


def test_a_stray_keeps_the_commit_log_until_it_is_deleted(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    stray = (data / "plain-0").rename(data / f"plain-0.{'0f' * 16}-stray")
    status, shown = convert(capsys, "--log-dir", str(data), "--to", "segments")
    assert status == 0
    assert f"{stray} is not in use, and its records are in the commit log: Apache Kafka cannot start here" in shown
    assert (data / "commitlog").exists()
    shutil.rmtree(stray)
    assert "Apache Kafka" not in convert(capsys, "--log-dir", str(data), "--to", "segments")[1]
    assert not (data / "commitlog").exists()


def test_what_is_compacted_must_be_known(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(data / "__cluster_metadata-0")
    status, shown = convert(capsys, "--log-dir", str(data), "--to", "commitlog")
    assert status == 2
    assert "which topics are compacted is unknown" in shown


@pytest.mark.parametrize("options", [[], ["--log-dir", "x", "--config", "y"], ["--log-dir", "/nowhere"]])
def test_the_directories_are_named_in_one_way(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = convert(capsys, *options, "--to", "segments")
    assert status == 2
