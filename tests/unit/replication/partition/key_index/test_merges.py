"""Merges of key index files: of several partitions, and beside deletions (replication/partition/key_indexer.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.batch_builder import BatchBuilder
from storage.keyindex import index_jobs
from storage.keyindex.index_directory import FAN
from storage.keyindex.index_file import SUFFIX
from tests.support.key_index import KeyIndexRig
from tests.support.replica_harness import NOW_MS, ReplicaHarness

PARTITIONS = 3
MOST_JOBS = 300


class Topic:
    """A topic with some partitions and an index, whose merges need several jobs each."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(index_jobs, "_MERGE_STEPS", 1)
        self.harness = ReplicaHarness(path)
        self.harness.create(partitions=PARTITIONS, barnabas_index_keys="key")
        self.rig = KeyIndexRig(self.harness)

    def append(self) -> None:
        """A record in each partition."""
        for index in range(PARTITIONS):
            builder = BatchBuilder()
            builder.append(NOW_MS, b"a", b"v")
            self.harness.append(index=index, records=builder.build(), acks=1)

    def build(self) -> None:
        """Index everything; what is behind is merged."""
        for _ in range(3):
            self.rig.indexer.check()
            for _ in range(MOST_JOBS):
                if not self.rig.builder.run_job():
                    break
            else:
                raise AssertionError(f"more than {MOST_JOBS} jobs")

    def files(self) -> list[int]:
        """The number of index files of each partition."""
        paths = [self.harness.partition(index=index).log.files.index_path for index in range(PARTITIONS)]
        return [sum(name.endswith(SUFFIX) for name in os.listdir(path)) for path in paths]


def test_the_merges_of_several_partitions_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(tmp_path, monkeypatch)
    for _ in range(FAN):
        topic.append()
        topic.build()
    assert topic.files() == [1] * PARTITIONS
