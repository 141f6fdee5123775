"""Formatting log directories, whose identity is then read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from protocol.messages import stored_records
from protocol.primitives import uuid_text
from protocol.records import HEADER, headers
from replication.metadata.metadata_records import read_snapshot
from replication.metadata_log.formatting import FormatOptions, bootstrap_checkpoint, format_directories, zero_checkpoint
from replication.metadata_log.node_identity import (
    NodeIdentity,
    UnusableDirectory,
    read_node_identity,
)
from replication.raft.voters import ListenerAddress
from storage.io.disk import Disk
from tests.unit.replication.kafka_bytes import BOOTSTRAP_CHECKPOINT, ZERO_CHECKPOINT

WALL_MS = 1_795_252_933_743
CONTROLLER = ListenerAddress("CONTROLLER", "127.0.0.1", 27101)


def format_dirs(
    *paths: Path, cluster_id: str | None = None, metadata_directory: str | None = None, seed: int = 1
) -> NodeIdentity:
    disk = Disk()
    directories = [str(path) for path in paths]
    return format_directories(
        disk,
        directories,
        1,
        FormatOptions(cluster_id, is_standalone=True),
        identity=read_node_identity(disk, directories, node_id=1, metadata_directory=metadata_directory),
        metadata_directory=metadata_directory,
        controller=CONTROLLER,
        random_bytes=random.Random(seed).randbytes,
        wall_ms=WALL_MS,
    )


def without_times(data: bytes) -> list[tuple[object, ...]]:
    """The batches of a snapshot without timestamps and CRC."""
    found: list[tuple[object, ...]] = []
    for position, header in headers(data):
        body = data[position + HEADER.size : position + header.size]
        found.append((*header._replace(crc=0, base_timestamp=0, max_timestamp=0), body))
    return found


def test_checkpoints_equal_those_of_apache_kafka() -> None:
    assert without_times(bootstrap_checkpoint(WALL_MS)) == without_times(BOOTSTRAP_CHECKPOINT)
    _, control, _ = read_snapshot(ZERO_CHECKPOINT, "z")
    voters = control[1]
    assert isinstance(voters, stored_records.VotersRecord)
    # The one time inside a record: when the header says the log ended.
    theirs = ZERO_CHECKPOINT.replace(bytes.fromhex("000001a1fd69d4d3"), (WALL_MS).to_bytes(8, "big"))
    assert without_times(zero_checkpoint(voters, WALL_MS)) == without_times(theirs)


def test_an_empty_directory_is_formatted_and_read_back(tmp_path: Path) -> None:
    made = format_dirs(tmp_path / "a", cluster_id="AAAAAAAAAAAAAAAAAAAAAQ")
    directory_id = made.directory_ids[str(tmp_path / "a")]
    assert (tmp_path / "a/meta.properties").read_text() == (
        "#\n#Sat Nov 21 09:22:13 UTC 2026\nnode.id=1\n"
        f"directory.id={uuid_text(directory_id)}\nversion=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAQ\n"
    )
    assert read_node_identity(Disk(), [str(tmp_path / "a")], node_id=1) == made
    _, control, _ = read_snapshot(
        (tmp_path / "a/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint").read_bytes(), "z"
    )
    voters = control[1]
    assert isinstance(voters, stored_records.VotersRecord)
    assert [(v.voter_id, v.voter_directory_id) for v in voters.voters] == [(1, directory_id)]


def test_only_the_first_directory_gets_the_zero_checkpoint(tmp_path: Path) -> None:
    made = format_dirs(tmp_path / "a", tmp_path / "b")
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == [
        "a/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint",
        "a/bootstrap.checkpoint",
        "a/meta.properties",
        "b/bootstrap.checkpoint",
        "b/meta.properties",
    ]
    assert len(set(made.directory_ids.values())) == 2


def test_an_interrupted_formatting_is_repeated(tmp_path: Path) -> None:
    whole = format_dirs(tmp_path / "a")
    (tmp_path / "a/meta.properties").unlink()
    (tmp_path / "a/meta.properties.tmp").write_text("node.i")
    (tmp_path / "a/.lock").touch()
    assert read_node_identity(Disk(), [str(tmp_path / "a")], node_id=1) is None
    again = format_dirs(tmp_path / "a", seed=2)
    assert again.cluster_id != whole.cluster_id


def test_an_added_directory_gets_the_cluster_id(tmp_path: Path) -> None:
    first = format_dirs(tmp_path / "a")
    before = (tmp_path / "a/meta.properties").stat().st_mtime_ns
    both = format_dirs(tmp_path / "a", tmp_path / "b", seed=2)
    assert both.cluster_id == first.cluster_id
    assert both.directory_ids[str(tmp_path / "a")] == first.directory_ids[str(tmp_path / "a")]
    assert (tmp_path / "a/meta.properties").stat().st_mtime_ns == before


def test_a_new_first_directory_is_refused(tmp_path: Path) -> None:
    """A second, empty metadata log would lose every topic."""
    format_dirs(tmp_path / "a")
    with pytest.raises(UnusableDirectory, match=r"name .*/a first in log\.dirs"):
        format_dirs(tmp_path / "b", tmp_path / "a")
    assert not (tmp_path / "b").exists()


def test_another_order_of_the_directories_is_refused(tmp_path: Path) -> None:
    """Both are formatted, and the one that is first now has no metadata log."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    made = format_dirs(tmp_path / "a", tmp_path / "b")
    for directories, metadata in (([b, a], None), ([a, b], b)):
        with pytest.raises(
            UnusableDirectory, match=r"The metadata log is in .*/a, and .* it is in .*/b: name .*/a first"
        ):
            read_node_identity(Disk(), directories, node_id=1, metadata_directory=metadata)
    assert read_node_identity(Disk(), [b, a], node_id=1, metadata_directory=a) == made._replace(
        directory_ids=dict(reversed(made.directory_ids.items()))
    )


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    format_dirs(tmp_path / "a")
    format_dirs(tmp_path / "b", seed=2)
    with pytest.raises(UnusableDirectory, match="different clusters"):
        read_node_identity(Disk(), [str(tmp_path / "a"), str(tmp_path / "b")], node_id=1)


def test_two_directories_with_one_id_are_refused(tmp_path: Path) -> None:
    format_dirs(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/meta.properties").write_bytes((tmp_path / "a/meta.properties").read_bytes())
    with pytest.raises(UnusableDirectory, match="a copy of the other"):
        read_node_identity(Disk(), [str(tmp_path / "a"), str(tmp_path / "b")], node_id=1)


def test_a_metadata_log_without_meta_properties_is_refused(tmp_path: Path) -> None:
    format_dirs(tmp_path)
    (tmp_path / "meta.properties").unlink()
    (tmp_path / "__cluster_metadata-0/00000000000000000000.log").touch()
    with pytest.raises(UnusableDirectory, match=r"__cluster_metadata-0/00000000000000000000.log but no meta"):
        read_node_identity(Disk(), [str(tmp_path)], node_id=1)


def test_metadata_log_dir_is_formatted_and_is_no_log_directory(tmp_path: Path) -> None:
    a, m = str(tmp_path / "a"), str(tmp_path / "m")
    for seed in (1, 2):
        made = format_dirs(tmp_path / "a", metadata_directory=m, seed=seed)
        assert (list(made.directory_ids), made.metadata_directory) == ([a], m)
    assert read_node_identity(Disk(), [a], node_id=1, metadata_directory=m) == made
    assert not (tmp_path / "a/__cluster_metadata-0").exists()
    assert (tmp_path / "m/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint").exists()
    with pytest.raises(UnusableDirectory, match="name the old one first, or as"):
        format_dirs(tmp_path / "a", metadata_directory=str(tmp_path / "new"), seed=3)


def test_a_directory_without_an_id_gets_one(tmp_path: Path) -> None:
    """Kafka before 3.7 wrote none."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    made = format_dirs(tmp_path / "a", tmp_path / "b")
    first, second = made.directory_ids.values()
    assert first != second
    assert read_node_identity(Disk(), [str(tmp_path / "a"), str(tmp_path / "b")], node_id=1) == made
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["meta.properties"]
