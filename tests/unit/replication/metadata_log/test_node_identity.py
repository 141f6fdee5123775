"""Reading the identity of log directories that this broker did not format."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.primitives import uuid_from_text
from replication.metadata_log.node_identity import (
    MetaProperties,
    UnusableDirectory,
    read_meta_properties,
    read_node_identity,
)
from storage.io.disk import Disk


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("version=1\nnode.id=1\n", "is incomplete: it lacks cluster.id"),
        ("", "is incomplete: it lacks version, cluster.id, node.id"),
        ("version=0\nbroker.id=1\n", "ZooKeeper"),
        ("version=2\ncluster.id=c\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZQ\n", "version 2"),
        ("version=1\ncluster.id=c\nnode.id=x\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZQ\n", "node.id or directory.id"),
        ("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=AAAA\n", "node.id or directory.id"),
        ("version=1\ncluster.id=c\nnode.id=7\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZQ\n", "belongs to node 7"),
    ],
)
def test_an_unusable_meta_properties_is_refused_without_a_change(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "meta.properties").write_text(content)
    with pytest.raises(UnusableDirectory, match=message):
        read_node_identity(Disk(), [str(tmp_path)], node_id=1)
    assert [path.name for path in tmp_path.iterdir()] == ["meta.properties"]


@pytest.mark.parametrize("name", ["t-0", "notes.txt", "recovery-point-offset-checkpoint"])
def test_a_directory_with_data_but_without_meta_properties_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UnusableDirectory, match=f"holds {name} but no meta.properties"):
        read_node_identity(Disk(), [str(tmp_path)], node_id=1)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(UnusableDirectory, match="is a file, not a directory"):
        read_node_identity(Disk(), [str(tmp_path / "a")], node_id=1)


def test_comments_and_escapes_of_java_properties_are_read(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(
        "#\n#Sat Nov 21 09:22:13 UTC 2026\nnode.id=1\ndirectory.id=ncNHL0kMRKuhxs6LVjsQww\n"
        "version=1\ncluster.id=a\\:b\n"
    )
    assert read_meta_properties(Disk(), str(tmp_path)) == MetaProperties(
        "a:b", 1, uuid_from_text("ncNHL0kMRKuhxs6LVjsQww")
    )
