"""Transcripts of a quorum: elections, replication, snapshots, voter changes (`transcript.py` describes the files)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.replication.raft.transcript import check

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transcript_holds(path: Path) -> None:
    check(path)
