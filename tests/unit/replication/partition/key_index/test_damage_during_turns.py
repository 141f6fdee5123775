"""Damage that a search finds while the indexer works on the same partition (replication/partition/key_indexer.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.batch_builder import BatchBuilder
from replication.partition import key_indexer
from tests.support.key_index import KeyIndexRig
from tests.support.replica_harness import NOW_MS, ReplicaHarness


@pytest.mark.parametrize("damaged", [0, 1])
def test_an_index_is_complete_again_after_a_search_has_found_damage_during_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    monkeypatch.setattr(key_indexer, "PIECE_BYTES", 1)
    harness = ReplicaHarness(tmp_path)
    harness.create(barnabas_index_keys="key")
    rig = KeyIndexRig(harness)

    def append() -> None:
        builder = BatchBuilder()
        builder.append(NOW_MS, b"a", b"value")
        harness.append(records=builder.build(), acks=1)

    for _ in range(2):
        append()
        rig.build()
    files = sorted(Path(harness.partition().log.files.index_path).glob("*.keyindex"))
    files[damaged].write_bytes(b"damaged")
    append()
    append()
    rig.indexer.check()
    assert rig.builder.submitted[-1] == "AddBatches"
    assert rig.search(b"a").to_offset == damaged
    rig.build()
    answer = rig.search(b"a")
    assert (answer.to_offset, [record.offset for record in answer.records]) == (4, [3, 2, 1, 0])
