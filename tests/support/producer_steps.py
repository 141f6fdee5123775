"""Batches of idempotent producers, one after the other, and how Apache Kafka 4.3.1 answers them.

tests/unit/storage/log/test_producer_state.py checks `ProducerState` against them;
tests/conformance/test_producer_state.py checks Apache Kafka, and compares the snapshots.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import ErrorCode

LAST = 2**31 - 1
GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD = ErrorCode.INVALID_PRODUCER_EPOCH


class Step(NamedTuple):
    """One batch."""

    producer_id: int
    epoch: int
    sequence: int
    count: int = 3  # type: ignore[assignment]  # tuple.count is not missed
    code: ErrorCode = ErrorCode.NONE
    repeats: int | None = None  # the offset of the original batch
    why: str = ""


STEPS = [
    Step(5000, 0, 0),
    Step(5000, 0, 0, repeats=0, why="a duplicate gets the old offset"),
    Step(5000, 0, 7, code=GAP, why="3 is next"),
    Step(5000, 0, 3),
    Step(5000, 0, 6),
    Step(5000, 0, 9),
    Step(5000, 0, 12),
    Step(5000, 0, 3, repeats=3),
    Step(5000, 0, 15),
    Step(5000, 0, 3, repeats=3, why="the fifth last is remembered"),
    Step(5000, 0, 0, code=GAP, why="the sixth last is not"),
    Step(5000, 0, 15, 2, code=GAP, why="a duplicate has the whole range"),
    Step(5000, 0, 16, 2, code=GAP),
    Step(5000, 2, 5, code=GAP, why="a new epoch starts at 0"),
    Step(5000, 2, 0),
    Step(5000, 1, 18, code=OLD),
    Step(5000, 0, 15, code=OLD, why="duplicates of an older epoch are forgotten"),
    Step(5000, 2, 0, repeats=18),
    Step(5000, 3, 0),
    Step(5001, 0, 77, why="an unknown producer may start at any sequence"),
    Step(5001, 0, 81, code=GAP),
    Step(5001, 0, 80),
    Step(5002, 0, LAST - 1, why="sequences 2**31-2, 2**31-1, 0"),
    Step(5002, 0, 1, why="wrapped inside a batch"),
    Step(5002, 0, LAST - 1, repeats=30),
    Step(5003, 0, LAST - 2),
    Step(5003, 0, 0, why="wrapped between two batches"),
    Step(5003, 0, LAST, code=GAP),
    Step(5004, -1, 0, why="no epoch"),
    Step(5004, -1, 9, why="without epoch sequences are not checked"),
    Step(5005, -3, 0, code=OLD, why="below no epoch"),
    Step(5006, 7, 4, 1, why="an unknown producer with a later epoch"),
    Step(5006, 8, 1, 1, code=GAP),
    Step(5006, 8, 0, 1),
]
