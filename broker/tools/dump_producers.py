"""Rows of a producer snapshot: a file, or a frame of a commit log."""

from __future__ import annotations

from collections.abc import Iterator

from broker.tools.dump_batches import Row, problem
from protocol.primitives import Buffer
from storage.log.producer_state import CorruptSnapshot, ProducerState


def producer_rows(data: Buffer, name: str) -> Iterator[Row]:
    """The row of each producer; `name`: of the snapshot in an error message."""
    state = ProducerState(name)
    try:
        state.restore(data, wall_ms=0)
    except CorruptSnapshot as error:
        yield problem(f"{name} is corrupt: {error}.")
        return
    for producer_id, producer in state.producers.items():
        row = {
            "type": "producer",
            "producerId": producer_id,
            "producerEpoch": producer.epoch,
            "coordinatorEpoch": producer.coordinator_epoch,
            "currentTxnFirstOffset": producer.txn_first_offset if producer.txn_first_offset >= 0 else None,
            "lastTimestamp": producer.last_timestamp,
        }
        for first, last, offset, delta, timestamp in producer.batches[-1:]:
            row |= {
                "firstSequence": first,
                "lastSequence": last,
                "lastOffset": offset,
                "offsetDelta": delta,
                "timestamp": timestamp,
            }
        yield row
