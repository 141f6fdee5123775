"""The three steps of an append to one log: prepare, write, then commit or abort (design D12a).

RULES    1. `prepare` checks and assigns offsets, `write` may run in another thread and touches bytes only, `commit`
            lets the records be read. Several appends may be under way; commits come in the order of the prepares, and
            an abort also ends all that was prepared later.
         2. `prepare` writes base offset and leader epoch, perhaps timestamps, into the caller's bytes: they are a
            `bytearray` or a writable memoryview (over the request's frame), left alone until the commit.
         3. A repeated batch of an idempotent producer is not written: it is told where it lies already.
         4. A leader epoch is known from the first batch that carries it; an append prepared in an earlier epoch does
            not bring that one back.
         5. The producers' snapshot for a new segment is made when its place is reserved and written when it is
            committed, so it never knows of what was aborted.
NOT HERE What a batch must be (log_validator.py), sequences (producer_state.py), bytes on disk (engine.py).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.records import CONTROL_BIT, LOG_OVERHEAD, BatchHeader, patch
from storage.config.log_config import LogConfig
from storage.engine import BatchInfo, Buffer, Engine, Reservation
from storage.log.leader_epoch_cache import LeaderEpochs
from storage.log.log_validator import BatchRules, Origin, validate
from storage.log.producer_snapshots import Snapshots
from storage.log.producer_state import Duplicate, EndTxn, ProducerState, end_txn_of
from storage.log.recovery import OpenParts, aborted_by

NO_TIMESTAMP: Final = -1

_new_tuple = tuple.__new__

Placed = tuple[int, BatchHeader]
"""A batch's position in the buffer and its header."""


class AppendInfo(NamedTuple):
    """Where records lie after an append."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 where the records keep their own times."""
    log_start_offset: int
    duplicate: bool
    """Whether they lay there before."""
    leader_epoch: int


class PreparedAppend:
    """Records that have their place, until they are committed or aborted."""

    __slots__ = (
        "duplicate", "headers", "is_aborted", "leader_epoch", "log_append_time_ms", "markers", "records",
        "reservation", "size", "snapshot",
    )  # fmt: skip

    def __init__(self, records: Buffer, leader_epoch: int, log_append_time_ms: int) -> None:
        self.records = records
        self.size = len(records)
        self.leader_epoch = leader_epoch
        self.log_append_time_ms = log_append_time_ms
        self.is_aborted = False
        self.duplicate: AppendInfo | None = None
        """The answer already: there is nothing to write (rule 3)."""
        # What the log remembers for the further steps.
        self.reservation: Reservation | None = None
        self.headers: list[BatchHeader] = []  # of producers' batches, with their offsets
        self.markers: list[EndTxn | None] = []  # what each of these ends, if it does
        self.snapshot: bytes | None = None  # of the producers before it, when it begins a segment

    @property
    def end_offset(self) -> int:
        """The offset behind its last record, where it is to be written."""
        assert self.reservation is not None
        return self.reservation.batches[-1].last_offset + 1


class Appends:
    """What is being appended to one open log."""

    __slots__ = (
        "_engine", "_epochs", "_name", "_producers", "_rules", "_segment_bytes", "_snapshots", "_under_way",
        "has_rolled", "next_offset",
    )  # fmt: skip

    def __init__(self, name: str, parts: OpenParts, config: LogConfig) -> None:
        self._name = name
        self._engine: Engine = parts.engine
        self._epochs: LeaderEpochs = parts.epochs
        self._producers: ProducerState = parts.producers
        self._snapshots: Snapshots = parts.snapshots
        self._under_way: deque[PreparedAppend] = deque()
        self.next_offset = parts.engine.end_offset
        """The offset that the next prepared record gets."""
        self.has_rolled = False
        """Whether a segment was begun since somebody said no: the one before wants to be flushed."""
        self.obey(config)

    @property
    def are_under_way(self) -> bool:
        """Whether anything is prepared and neither committed nor aborted."""
        return bool(self._under_way)

    def obey(self, config: LogConfig) -> None:
        """Take other settings from the next append on."""
        self._rules = BatchRules(config, self._name)
        self._segment_bytes = config.segment_bytes

    def prepare(
        self, records: bytearray | memoryview, leader_epoch: int, wall_ms: int, origin: Origin, log_start_offset: int
    ) -> PreparedAppend:
        """Check a leader's records and give them their offsets, in place (rule 2)."""
        valid, batches, log_append_time_ms = validate(records, self._rules, wall_ms=wall_ms, origin=origin)
        prepared = PreparedAppend(valid, leader_epoch, log_append_time_ms)
        if prepared.size > self._segment_bytes:
            raise self._too_large(prepared.size)
        offset = self.next_offset
        markers = _markers(valid, batches)
        if batches[0][1][9] >= 0 or len(batches) > 1:
            duplicate = self._check_producers(batches, markers, offset, origin)
            if duplicate is not None:
                base_offset, last_offset, timestamp_ms = duplicate
                prepared.size = 0
                prepared.duplicate = AppendInfo(
                    base_offset, last_offset, timestamp_ms, log_start_offset, True, leader_epoch
                )
                return prepared
        infos = []
        for position, header in batches:
            patch(valid, position, offset, leader_epoch)  # type: ignore[arg-type]  # rule 2: it is writable
            last = offset + header[6]
            infos.append(
                _new_tuple(BatchInfo, (position, header[1] + LOG_OVERHEAD, offset, last, header[8], leader_epoch))
            )
            offset = last + 1
        self._reserve(prepared, batches, markers, infos, wall_ms)
        return prepared

    def prepare_as_follower(self, records: Buffer, batches: list[Placed], wall_ms: int) -> PreparedAppend:
        """Find the place for a leader's batches, which keep their offsets; those that would fill a segment come again."""
        while len(batches) > 1 and batches[-1][0] + batches[-1][1].size > self._segment_bytes:
            batches.pop()
        position, last = batches[-1]
        prepared = PreparedAppend(memoryview(records)[: position + last.size], last.leader_epoch, NO_TIMESTAMP)
        if prepared.size > self._segment_bytes:
            raise self._too_large(prepared.size)
        if batches[0][1].base_offset < self.next_offset:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"Unexpected offset in append to {self._name}: {batches[0][1].base_offset} is less than the next "
                f"offset {self.next_offset}",
            )
        infos = [
            BatchInfo(
                at, header.size, header.base_offset, header.last_offset, header.max_timestamp, header.leader_epoch
            )
            for at, header in batches
        ]
        self._reserve(prepared, batches, _markers(records, batches), infos, wall_ms)
        return prepared

    def write(self, prepared: PreparedAppend) -> None:
        """Write the bytes; may run in another thread."""
        if prepared.reservation is not None:
            self._engine.write(prepared.reservation, prepared.records)

    def commit(self, prepared: PreparedAppend, log_start_offset: int) -> AppendInfo:
        """Let the records be read."""
        reservation = prepared.reservation
        if prepared.is_aborted or reservation is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"An append to {self._name} did not succeed")
        first = self._under_way.popleft()
        assert first is prepared, "appends are committed in the order in which they were prepared"
        infos = reservation.batches
        if prepared.snapshot is not None:
            self._snapshots.take(infos[0][2], prepared.snapshot)
            self.has_rolled = True
        self._engine.publish(reservation)
        epochs = self._epochs
        for info in infos:
            if info[5] > epochs.latest:
                epochs.assign(info[5], info[2])
        if prepared.headers:
            self._update_producers(prepared)
        time_ms = prepared.log_append_time_ms
        return _new_tuple(
            AppendInfo, (infos[0][2], infos[-1][3], time_ms, log_start_offset, False, prepared.leader_epoch)
        )

    def abort(self, prepared: PreparedAppend) -> None:
        """Undo what was prepared: this append and all later ones."""
        reservation = prepared.reservation
        if reservation is None or prepared.is_aborted:
            return
        assert prepared in self._under_way, "what is committed cannot be aborted"
        while not prepared.is_aborted:
            self._under_way.pop().is_aborted = True
        self.next_offset = reservation.batches[0].base_offset
        self._producers.abandon(self.next_offset)
        self._engine.abandon(reservation)

    def give_up(self) -> None:
        """Nothing that is under way will be committed; files are left as they are."""
        for prepared in self._under_way:
            prepared.is_aborted = True
        self._under_way.clear()

    def _reserve(
        self,
        prepared: PreparedAppend,
        batches: list[Placed],
        markers: list[EndTxn | None],
        infos: list[BatchInfo],
        wall_ms: int,
    ) -> None:
        reservation = self._engine.reserve(prepared.size, infos, wall_ms)
        producers = self._producers
        if reservation.rolled:
            prepared.snapshot = producers.snapshot()
        for (_, header), marker, info in zip(batches, markers, infos, strict=True):
            if header[9] >= 0:
                placed = _new_tuple(BatchHeader, (info[2], *header[1:]))
                producers.reserve(placed, marker)
                prepared.headers.append(placed)
                prepared.markers.append(marker)
        prepared.reservation = reservation
        self._under_way.append(prepared)
        self.next_offset = infos[-1][3] + 1

    def _check_producers(
        self, batches: list[Placed], markers: list[EndTxn | None], offset: int, origin: Origin
    ) -> Duplicate | None:
        producers = self._producers
        for (_, header), marker in zip(batches, markers, strict=True):
            if header[9] >= 0:
                if marker is not None:
                    producers.check_marker(header, marker, offset)
                elif not header[5] & CONTROL_BIT:
                    duplicate = producers.check(
                        header,
                        offset,
                        is_client=origin.is_client,
                        begins_at_0=origin == Origin.CLIENT_FROM_0,
                    )
                    if duplicate is not None:
                        return duplicate
            offset += header[6] + 1
        return None

    def _update_producers(self, prepared: PreparedAppend) -> None:
        for header, marker in zip(prepared.headers, prepared.markers, strict=True):
            completed = self._producers.update(header, marker)
            if completed is not None and completed.is_aborted:
                self._engine.add_aborted(aborted_by(completed))

    def _too_large(self, size: int) -> KafkaError:
        return KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"Message batch size is {size} bytes in append to partition {self._name}, which exceeds the maximum "
            f"configured segment size of {self._segment_bytes}.",
        )


def _markers(records: Buffer, batches: list[Placed]) -> list[EndTxn | None]:
    """What each batch says if it ends a transaction."""
    return [end_txn_of(records, position, header) if header[5] & CONTROL_BIT else None for position, header in batches]
