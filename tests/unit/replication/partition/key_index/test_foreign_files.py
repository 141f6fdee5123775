"""Key index files of another partition, or with another name: they must not make an answer wrong (storage/keyindex)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from protocol.batch_builder import BatchBuilder
from tests.support.key_index import KeyIndexRig
from tests.support.replica_harness import NOW_MS, ReplicaHarness


class TwoPartitions:
    """A topic with an index, whose partitions have different keys at the same offsets."""

    def __init__(self, path: Path) -> None:
        self.harness = ReplicaHarness(path)
        self.harness.create(partitions=2, barnabas_index_keys="key")
        for index in range(2):
            for offset in range(3):
                builder = BatchBuilder()
                builder.append(NOW_MS, b"%d-%d" % (index, offset), b"value")
                self.harness.append(records=builder.build(), acks=1, index=index)
        self.rig = KeyIndexRig(self.harness)
        self.rig.build()
        assert self.is_found()

    def path(self, index: int) -> str:
        folder = self.harness.partition(index=index).log.files.index_path
        (name,) = (name for name in os.listdir(folder) if name.endswith(".keyindex"))
        return f"{folder}/{name}"

    def is_found(self) -> bool:
        """Whether an answer says that it is complete, and is."""
        answer = self.rig.search(b"1-1", index=1)
        assert answer.to_offset < 2 or [record.offset for record in answer.records] == [1]
        return answer.to_offset == answer.end_offset == 3


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_index_file_of_another_partition_is_built_again(tmp_path: Path, *, is_restarted: bool) -> None:
    topic = TwoPartitions(tmp_path)
    shutil.copy(topic.path(0), topic.path(1))
    if is_restarted:
        topic.rig.restart()
    topic.is_found()
    topic.rig.build()
    assert topic.is_found()


def test_a_file_with_the_name_of_a_larger_one_is_deleted(tmp_path: Path) -> None:
    topic = TwoPartitions(tmp_path)
    path = topic.path(1)
    shutil.copy(path, path.replace("3.keyindex", "9.keyindex"))
    topic.rig.search(b"1-1", index=1)
    topic.rig.build()
    assert topic.is_found()
