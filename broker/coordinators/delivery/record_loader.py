"""Reads the records of a schedule partition that are due next, beside the delivery of others.

RULES    1. A pass reads the batches of some offsets in the order of the log, each once, however the records are due. The
            encoded records wait in memory until they are delivered.
         2. Above MAX_BYTES all are dropped, and the next pass is for fewer; one record is always read.
         3. A pass that fails is repeated when its records are needed.
NOT HERE Which offsets (`deliverer.py`), reading the log (`stable_records.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.coordinators.delivery.routine import Routine, Steps
from broker.coordinators.delivery.stable_records import Chunk
from protocol.errors import ErrorCode, KafkaError
from replication.completion import Completion

MAX_RECORDS: Final = 50_000
MAX_BYTES: Final = 32 * 1024 * 1024
_STEPS_PER_SLICE: Final = 1_000
"""About a millisecond."""
_STEPS_PER_SKIP: Final = 200
"""Of a batch, or of some records that are skipped."""


class RecordLoader:
    """The encoded records that are delivered next, and the pass that reads them."""

    def __init__(self, read: Callable[[int], Steps[Chunk]], pause: Callable[[], Completion[None]]) -> None:
        """`read`: the chunk from an offset on; `pause`: completes in the next iteration of the event loop."""
        self._read = read
        self._pause = pause
        self._pass: Completion[None] | None = None
        self._routine: Routine | None = None
        self._bytes = 0
        self.records: dict[int, bytes | None] = {}
        """The encoded records by offset; None for one that was deleted."""
        self.limit = MAX_RECORDS
        """The number of offsets that the next pass should read."""

    @property
    def is_reading(self) -> bool:
        """Whether a pass has begun and not ended."""
        return self._pass is not None

    def load(self, offsets: Iterable[int]) -> Completion[None]:
        """Reads the records at these offsets, or continues the pass before; completes when a pass has ended."""
        if self._pass is None:
            done = self._pass = Completion[None]()
            self._routine = Routine(self._run(offsets))
            self._routine.start()
            return done
        return self._pass

    def take(self, offset: int) -> bytes | None:
        """Removes a record that was read."""
        record = self.records.pop(offset)
        self._bytes -= len(record or b"")
        return record

    def put_back(self, records: Mapping[int, bytes | None]) -> None:
        """Adds records that were taken again."""
        self.records.update(records)
        self._bytes += sum(len(record or b"") for record in records.values())

    def stop(self) -> None:
        """Ends a pass."""
        if self._routine is not None:
            self._routine.stop()

    def _run(self, offsets: Iterable[int]) -> Steps[None]:
        error = None
        try:
            unknown = set(offsets).difference(self.records)
            yield self._pause()
            yield from self._read_all(sorted(unknown))
        except KafkaError as caught:
            error = caught
        done, self._pass = self._pass, None
        assert done is not None, "it is running"
        if error is None:
            done.complete(None)
        else:
            done.fail(error)

    def _read_all(self, offsets: list[int]) -> Steps[None]:
        wanted, missing, at, steps = set(offsets), set(offsets), 0, 0
        while at < len(offsets):
            chunk = yield from self._read(offsets[at])
            for position, header in chunk.batches:
                at = bisect_left(offsets, header.base_offset, at)
                if at < len(offsets) and offsets[at] < header.next_offset:
                    for found in chunk.encoded_records(position, header, wanted):
                        if found is None:
                            steps += _STEPS_PER_SKIP
                        else:
                            steps += 1
                            offset, record = found
                            self.records[offset] = record
                            self._bytes += len(record)
                            missing.discard(offset)
                        if steps >= _STEPS_PER_SLICE:
                            steps = 0
                            yield self._pause()
                    if self._bytes > MAX_BYTES and len(offsets) > 1:
                        self.limit = max(1, min(len(offsets), len(self.records)) // 2)
                        self.records, self._bytes = {}, 0
                        return
            if chunk.next_offset == chunk.offset:
                at = bisect_left(offsets, chunk.offset, at)
                if at < len(offsets):
                    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"record {offsets[at]} is not stable")
            at = bisect_left(offsets, chunk.next_offset, at)
        self.records.update(dict.fromkeys(missing))  # others may have been taken already
        if self._bytes * 2 < MAX_BYTES:
            self.limit = min(MAX_RECORDS, self.limit * 2)
