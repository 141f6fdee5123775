"""Finds anomalies in the histories that clients write of their transactions: Jepsen's list for logs.

FORMAT   An event names the client, what it did, the transaction and the record:
           sends       a record was passed to the producer               (transaction, topic, partition, value)
           sent        the broker acknowledged it                        (the same, offset)
           commits     the client requests the commit; it sends nothing more in this transaction
           committed   the commit succeeded
           aborted     the abort succeeded
           assigned    a consumer starts to read a partition             (topic, partition)
           polled      a read_committed consumer returned a record       (topic, partition, offset, value); with a transaction
                       if the client processes the record in it
           again       a consumer aborted and seeks to the group's committed offset   (transaction, topic, partition)
RULES    1. Events of one client are in the order in which they happened; there is no order between clients.
         2. Within a topic, two different records have different values. An aborted value may be sent again in another
            transaction.
         3. `lost`, `unseen` and `torn` require that some client has read every partition to its end.
         4. A transaction without an outcome may have been committed if its client had requested the commit.
NOT HERE How histories are stored (`history.py`), what an application makes of the records (`loop.py`, `word_count.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

AT_ANY_TIME: Final = frozenset(
    {"inconsistent offset", "duplicate", "non-monotonic poll", "non-monotonic send", "offset of an aborted transaction"}
)
"""The anomalies that can be found while clients are still writing their histories."""

Partition = tuple[str, int]
Position = tuple[str, int, int]
RecordId = tuple[str, str]

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
ASKED: Final = "commits"
OPEN: Final = "open"


class Event(NamedTuple):
    """One line of a history."""

    client: str
    kind: str
    transaction: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1
    value: str = ""

    @property
    def topic_partition(self) -> Partition:
        return self.topic, self.partition

    @property
    def position(self) -> Position:
        """The record's topic, partition and offset."""
        return self.topic, self.partition, self.offset

    @property
    def record_id(self) -> RecordId:
        """The topic and the value, which identify a record (rule 2)."""
        return self.topic, self.value


class Anomaly(NamedTuple):
    kind: str
    sentence: str


def anomalies(history: Iterable[Event]) -> list[Anomaly]:
    seen = _HistoryIndex(history)
    kinds = (
        ("inconsistent offset", seen.inconsistent_offsets()),
        ("duplicate", seen.duplicates()),
        ("aborted read", seen.aborted_reads()),
        ("lost write", seen.lost_writes()),
        ("unseen", seen.unseen()),
        ("torn transaction", seen.torn()),
        ("non-monotonic poll", seen.polls_backwards()),
        ("skipped by a poll", seen.polls_that_skip()),
        ("offset of an aborted transaction", seen.offsets_of_aborted()),
        ("non-monotonic send", seen.sends_backwards()),
    )
    return [Anomaly(kind, sentence) for kind, sentences in kinds for sentence in sentences]


class _HistoryIndex:
    """The events of a history, grouped for the checks."""

    def __init__(self, history: Iterable[Event]) -> None:
        self.sends: dict[str, list[Event]] = defaultdict(list)
        self.sent: list[Event] = []
        self.outcomes: dict[str, str] = {}
        self.reads: dict[str, list[Event]] = defaultdict(list)
        """What each client was assigned and polled."""
        self.processors: dict[Position, set[str]] = defaultdict(set)
        """The clients that processed each record in a transaction."""
        self.targets: dict[str, set[str]] = defaultdict(set)
        """The topics that each client sends to."""
        self.polled: dict[RecordId, set[Position]] = defaultdict(set)
        self.values: dict[Position, set[str]] = defaultdict(set)
        self.furthest: dict[Partition, int] = {}
        for event in history:
            self._note(event)
        self.transactions_of: dict[RecordId, set[str]] = defaultdict(set)
        for transaction, sends in self.sends.items():
            for send in sends:
                self.transactions_of[send.record_id].add(transaction)

    def _note(self, event: Event) -> None:
        if event.kind == "sends":
            self.sends[event.transaction].append(event)
            self.targets[event.client].add(event.topic)
        elif event.kind == "sent":
            self.sent.append(event)
            self.values[event.position].add(event.value)
        elif event.kind == "polled":
            self.reads[event.client].append(event)
            self.polled[event.record_id].add(event.position)
            self.values[event.position].add(event.value)
            self.furthest[event.topic_partition] = max(event.offset, self.furthest.get(event.topic_partition, -1))
            if event.transaction:
                self.processors[event.position].add(event.client)
        elif event.kind in {"assigned", "again"}:
            self.reads[event.client].append(event)
        else:
            self.outcomes[event.transaction] = event.kind

    def _outcome(self, transaction: str) -> str:
        return self.outcomes.get(transaction, OPEN)

    # ---- records

    def inconsistent_offsets(self) -> Iterator[str]:
        """Two records at one offset."""
        for position, values in self.values.items():
            if len(values) > 1:
                yield f"at {_shown(position)} lie {sorted(values)}"

    def duplicates(self) -> Iterator[str]:
        """One record at two offsets, as consumers read it or as it was acknowledged."""
        committed: dict[RecordId, set[Position]] = defaultdict(set)
        for event in self.sent:
            if self._outcome(event.transaction) == COMMITTED:
                committed[event.record_id].add(event.position)
        for value in self.polled.keys() | committed.keys():
            places = self.polled.get(value, set()) | committed.get(value, set())
            if len(places) > 1:
                yield f"{value[1]} lies at {', '.join(map(_shown, sorted(places)))}"

    def aborted_reads(self) -> Iterator[str]:
        """A read_committed consumer read a record that was aborted, or for which no commit was requested."""
        never = {ABORTED, OPEN}
        for value in self.polled:
            outcomes = {self._outcome(transaction) for transaction in self.transactions_of.get(value, ())}
            if outcomes and outcomes <= never:
                yield f"{value[1]} was read, and was {' or '.join(sorted(outcomes))}"
        for event in self.sent:
            is_sent_again = len(self.transactions_of[event.record_id]) > 1  # otherwise the loop above reports it
            is_read = event.position in self.polled.get(event.record_id, ())
            if is_sent_again and is_read and self._outcome(event.transaction) in never:
                yield f"{event.value} was read at {_shown(event.position)}, where it was aborted"

    def _missing(self) -> Iterator[tuple[Event, bool]]:
        """Committed records that no consumer read, and whether a consumer read a later offset."""
        offsets = {(event.transaction, event.record_id): event.offset for event in self.sent}
        for transaction, sends in self.sends.items():
            if self._outcome(transaction) == COMMITTED:
                for send in sends:
                    if send.record_id not in self.polled:
                        offset = offsets.get((transaction, send.record_id))
                        yield send, offset is not None and offset < self.furthest.get(send.topic_partition, -1)

    def lost_writes(self) -> Iterator[str]:
        """A committed record is missing although a consumer read a later offset."""
        for send, is_passed in self._missing():
            if is_passed:
                yield f"{send.value} of {send.transaction} is not in {send.topic}-{send.partition}"

    def unseen(self) -> Iterator[str]:
        """A committed record that no consumer read."""
        for send, is_passed in self._missing():
            if not is_passed:
                yield f"{send.value} of {send.transaction} was not shown in {send.topic}-{send.partition}"

    def torn(self) -> Iterator[str]:
        """Some records of a transaction with unknown outcome are readable, others are not."""
        for transaction, sends in self.sends.items():
            if self._outcome(transaction) != ASKED:
                continue
            own = [send for send in sends if len(self.transactions_of[send.record_id]) == 1]
            there = [send for send in own if send.record_id in self.polled]
            if there and len(there) < len(own):
                yield f"of {transaction} {len(there)} records of {len(own)} are there"

    # ---- order

    def polls_backwards(self) -> Iterator[str]:
        """A client polled a record again, or an earlier one, without a new assignment."""
        for earlier, later in self._polls():
            if later.offset <= earlier.offset:
                yield f"{later.client} was given {_shown(later.position)} after {_shown(earlier.position)}"

    def polls_that_skip(self) -> Iterator[str]:
        """A client skipped a record that others read."""
        known: dict[Partition, list[int]] = defaultdict(list)
        for topic, partition, offset in {position for places in self.polled.values() for position in places}:
            known[topic, partition].append(offset)
        next_offsets = {
            (*key, one): other for key, offsets in known.items() for one, other in pairwise(sorted(offsets))
        }
        for earlier, later in self._polls():
            skipped = next_offsets.get(earlier.position, later.offset)
            if skipped < later.offset:
                yield f"{later.client} was not given {_shown((*later.topic_partition, skipped))}"

    def offsets_of_aborted(self) -> Iterator[str]:
        """After an abort neither the client nor another one with the same targets processed the aborted records again."""
        for client, events in self.reads.items():
            first: dict[Partition, Event] = {}  # polled in each partition in the last transaction
            expected_again: dict[Partition, Event] = {}
            for event in events:
                topic_partition = event.topic_partition
                if event.kind == "polled":
                    due = expected_again.pop(topic_partition, event)
                    if due.offset < event.offset and not self._is_processed_by_another(due.position, client):
                        yield f"{client} was not given {_shown(due.position)} again, but {_shown(event.position)}"
                    if topic_partition not in first or first[topic_partition].transaction != event.transaction:
                        first[topic_partition] = event
                    continue
                expected_again.pop(topic_partition, None)
                begun = first.pop(topic_partition, event)
                if event.kind == "again" and begun.kind == "polled" and begun.transaction == event.transaction:
                    expected_again[topic_partition] = begun

    def _is_processed_by_another(self, position: Position, client: str) -> bool:
        return any(self.targets[other] == self.targets[client] for other in self.processors[position] - {client})

    def _polls(self) -> Iterator[tuple[Event, Event]]:
        """Consecutive records of a client in one partition."""
        for events in self.reads.values():
            last: dict[Partition, Event] = {}
            for event in events:
                if event.kind != "polled":
                    last.pop(event.topic_partition, None)
                    continue
                if event.topic_partition in last:
                    yield last[event.topic_partition], event
                last[event.topic_partition] = event

    def sends_backwards(self) -> Iterator[str]:
        """The records of one client are stored in another order than it sent them."""
        offsets = {(event.transaction, event.record_id): event.offset for event in self.sent}
        last: dict[tuple[str, Partition], Event] = {}
        for transaction, sends in self.sends.items():
            for send in sends:
                offset = offsets.get((transaction, send.record_id))
                if offset is None:
                    continue
                now = send._replace(offset=offset)
                before = last.get((send.client, send.topic_partition))
                if before is not None and now.offset <= before.offset:
                    first, second = (f"{one.value} to {_shown(one.position)}" for one in (before, now))
                    yield f"{now.client} sent {second} after {first}"
                last[send.client, send.topic_partition] = now


def _shown(position: Position) -> str:
    topic, partition, offset = position
    return f"{topic}-{partition}@{offset}"
