"""Checkpoint files and partition metadata (storage/io/checkpoint_file.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.primitives import uuid_from_text
from storage.io.checkpoint_file import (
    CorruptCheckpoint,
    read_offsets,
    read_topic_id,
    write_offsets,
    write_topic_id,
)
from storage.io.disk import Disk, StorageError


def test_offset_checkpoints_have_kafkas_format(tmp_path: Path) -> None:
    """Byte for byte as Kafka 4.3.1 wrote it."""
    path = f"{tmp_path}/recovery-point-offset-checkpoint"
    offsets = {("hello", 0): 10, ("hello", 1): 0}
    write_offsets(Disk(), path, offsets)
    assert Path(path).read_bytes() == b"0\n2\nhello 0 10\nhello 1 0\n"
    assert read_offsets(Disk(), path) == offsets


def test_a_checkpoint_may_have_no_entries(tmp_path: Path) -> None:
    path = f"{tmp_path}/log-start-offset-checkpoint"
    write_offsets(Disk(), path, {})
    assert Path(path).read_bytes() == b"0\n0\n"
    assert read_offsets(Disk(), path) == {}
    Path(path).write_bytes(b"")
    assert read_offsets(Disk(), path) == {}
    assert read_offsets(Disk(), f"{tmp_path}/none") == {}


def test_partition_metadata_has_kafkas_format(tmp_path: Path) -> None:
    path = f"{tmp_path}/partition.metadata"
    topic_id = uuid_from_text("uLkEB2t9R42XWGd6Vkop6A")
    write_topic_id(Disk(), path, topic_id)
    assert Path(path).read_bytes() == b"version: 0\ntopic_id: uLkEB2t9R42XWGd6Vkop6A"
    assert read_topic_id(Disk(), path) == topic_id
    assert read_topic_id(Disk(), f"{tmp_path}/none") is None
    for length in (0, 10, 42):
        Path(path).write_bytes(b"version: 0\ntopic_id: uLkEB2t9R42XWGd6Vkop6A"[:length])
        assert read_topic_id(Disk(), path) is None, "what a loss of power leaves of a new file"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"1\n0\n", "its version is '1', not 0"),
        (b"0\n", "'' in line 2 is not a number"),
        (b"0\nmany\n", "'many' in line 2 is not a number"),
        (b"0\n2\nt 0 5\n", "it declares 2 entries and contains 1"),
        (b"0\n1\nt 0 5\nt 1 5\n", "it declares 1 entries and contains 2"),
        (b"0\n1\nt 0\n", "line 3 has 2 fields, not 3"),
        (b"0\n1\nt x 5\n", "'x' in line 3 is not a number"),
        (b"\xff\xfe", "it is not UTF-8 text"),
    ],
)
def test_a_corrupt_checkpoint_raises_its_reason(tmp_path: Path, text: bytes, why: str) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    path.write_bytes(text)
    with pytest.raises(CorruptCheckpoint) as caught:
        read_offsets(Disk(), str(path))
    assert str(caught.value) == f"Cannot parse the checkpoint {path}: {why}."
    assert isinstance(caught.value, StorageError)


@pytest.mark.parametrize(
    "text",
    [
        b"version: 1\ntopic_id: uLkEB2t9R42XWGd6Vkop6A",
        b"version: 0\ntopic_id: no id, no id, no id, no id",
        b"version: 0\ntopic_id: uLkEB2t9R42XWGd6Vkop6H",  # a loss of power replaced the last byte
    ],
)
def test_an_invalid_topic_id_is_rejected(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "partition.metadata"
    path.write_bytes(text)
    with pytest.raises(CorruptCheckpoint):
        read_topic_id(Disk(), str(path))
