"""Reads what clients wrote down of their transactions, and finds what may not happen: Jepsen's list for such logs.

FORMAT   an event says who did what, in which transaction, with which record:
           sends       a record is given to the producer                 (transaction, topic, partition, value)
           sent        the broker has said where it lies                 (the same, offset)
           commits     the client asks for the commit; nothing is sent in this transaction from here on
           committed   ... and was told that it is done
           aborted     the client was told that its transaction is aborted
           assigned    a consumer begins anew in a partition             (topic, partition)
           polled      a committed reader was given a record             (topic, partition, offset, value), and who carries it
                       on does so in this transaction
           again       a consumer has aborted, and goes back to what its group has committed   (transaction, topic, partition)
RULES    1. Events of one client stand in the order in which they happened; between clients no order is known.
         2. Within a topic no two records that are meant to be different have the same value, wherever they are sent. A value
            that was aborted may be sent again, in another transaction.
         3. Somebody has read every partition to its end, or `lost`, `unseen` and `torn` cannot be told.
         4. A transaction whose end nobody was told of may have been committed if its client had asked for that.
NOT HERE How histories are written down (`history.py`), what an application makes of the records (`loop.py`, `word_count.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

AT_ANY_TIME: Final = frozenset(
    {"inconsistent offset", "duplicate", "non-monotonic poll", "non-monotonic send", "offset of an aborted transaction"}
)
"""What is wrong already while clients are still writing their histories."""

Partition = tuple[str, int]
Place = tuple[str, int, int]
Value = tuple[str, str]

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
ASKED: Final = "commits"
OPEN: Final = "open"


class Event(NamedTuple):
    """One line of a history."""

    who: str
    what: str
    transaction: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1
    value: str = ""

    @property
    def where(self) -> Partition:
        """The partition."""
        return self.topic, self.partition

    @property
    def place(self) -> Place:
        """Where the record lies."""
        return self.topic, self.partition, self.offset

    @property
    def named(self) -> Value:
        """The record's value, which is its name within the topic."""
        return self.topic, self.value


class Anomaly(NamedTuple):
    """Something that may not happen, and where it was seen."""

    kind: str
    sentence: str


def anomalies(history: Iterable[Event]) -> list[Anomaly]:
    """All that may not happen and did."""
    seen = _Seen(history)
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


class _Seen:
    """A history, put in order for the questions that are asked of it."""

    def __init__(self, history: Iterable[Event]) -> None:
        self.sends: dict[str, list[Event]] = defaultdict(list)
        self.sent: list[Event] = []
        self.outcomes: dict[str, str] = {}
        self.reads: dict[str, list[Event]] = defaultdict(list)
        """What each client was assigned and polled."""
        self.carriers: dict[Place, set[str]] = defaultdict(set)
        """Who took each record into a transaction."""
        self.targets: dict[str, set[str]] = defaultdict(set)
        """The topics that each client sends to."""
        self.polled: dict[Value, set[Place]] = defaultdict(set)
        self.values: dict[Place, set[str]] = defaultdict(set)
        self.furthest: dict[Partition, int] = {}
        for event in history:
            self._note(event)
        self.transactions_of: dict[Value, set[str]] = defaultdict(set)
        for transaction, sends in self.sends.items():
            for send in sends:
                self.transactions_of[send.named].add(transaction)

    def _note(self, event: Event) -> None:
        if event.what == "sends":
            self.sends[event.transaction].append(event)
            self.targets[event.who].add(event.topic)
        elif event.what == "sent":
            self.sent.append(event)
            self.values[event.place].add(event.value)
        elif event.what == "polled":
            self.reads[event.who].append(event)
            self.polled[event.named].add(event.place)
            self.values[event.place].add(event.value)
            self.furthest[event.where] = max(event.offset, self.furthest.get(event.where, -1))
            if event.transaction:
                self.carriers[event.place].add(event.who)
        elif event.what in {"assigned", "again"}:
            self.reads[event.who].append(event)
        else:
            self.outcomes[event.transaction] = event.what

    def _outcome(self, transaction: str) -> str:
        return self.outcomes.get(transaction, OPEN)

    # ---- records

    def inconsistent_offsets(self) -> Iterator[str]:
        """Two records at one offset."""
        for place, values in self.values.items():
            if len(values) > 1:
                yield f"at {_shown(place)} lie {sorted(values)}"

    def duplicates(self) -> Iterator[str]:
        """One record at two offsets: as committed readers saw it, and as the producer was told."""
        committed: dict[Value, set[Place]] = defaultdict(set)
        for event in self.sent:
            if self._outcome(event.transaction) == COMMITTED:
                committed[event.named].add(event.place)
        for value in self.polled.keys() | committed.keys():
            places = self.polled.get(value, set()) | committed.get(value, set())
            if len(places) > 1:
                yield f"{value[1]} lies at {', '.join(map(_shown, sorted(places)))}"

    def aborted_reads(self) -> Iterator[str]:
        """A committed reader saw what was aborted, or was never to be committed."""
        never = {ABORTED, OPEN}
        for value in self.polled:
            outcomes = {self._outcome(transaction) for transaction in self.transactions_of.get(value, ())}
            if outcomes and outcomes <= never:
                yield f"{value[1]} was read, and was {' or '.join(sorted(outcomes))}"
        for event in self.sent:
            is_sent_again = len(self.transactions_of[event.named]) > 1  # else it is told already
            is_read = event.place in self.polled.get(event.named, ())
            if is_sent_again and is_read and self._outcome(event.transaction) in never:
                yield f"{event.value} was read at {_shown(event.place)}, where it was aborted"

    def _missing(self) -> Iterator[tuple[Event, bool]]:
        """Committed records that nobody has read, and whether somebody has read on behind them."""
        offsets = {(event.transaction, event.named): event.offset for event in self.sent}
        for transaction, sends in self.sends.items():
            if self._outcome(transaction) == COMMITTED:
                for send in sends:
                    if send.named not in self.polled:
                        offset = offsets.get((transaction, send.named))
                        yield send, offset is not None and offset < self.furthest.get(send.where, -1)

    def lost_writes(self) -> Iterator[str]:
        """Committed, passed by readers, and not there."""
        for send, is_passed in self._missing():
            if is_passed:
                yield f"{send.value} of {send.transaction} is not in {send.topic}-{send.partition}"

    def unseen(self) -> Iterator[str]:
        """Committed, and never shown to anybody."""
        for send, is_passed in self._missing():
            if not is_passed:
                yield f"{send.value} of {send.transaction} was not shown in {send.topic}-{send.partition}"

    def torn(self) -> Iterator[str]:
        """A part of a transaction was committed, another was not; where all of it was, `lost writes` tell."""
        for transaction, sends in self.sends.items():
            if self._outcome(transaction) != ASKED:
                continue
            own = [send for send in sends if len(self.transactions_of[send.named]) == 1]
            there = [send for send in own if send.named in self.polled]
            if there and len(there) < len(own):
                yield f"of {transaction} {len(there)} records of {len(own)} are there"

    # ---- order

    def polls_backwards(self) -> Iterator[str]:
        """A client was given a record again, or an earlier one, without having begun anew."""
        for earlier, later in self._polls():
            if later.offset <= earlier.offset:
                yield f"{later.who} was given {_shown(later.place)} after {_shown(earlier.place)}"

    def polls_that_skip(self) -> Iterator[str]:
        """A client was not given what others were given between two of its records."""
        known: dict[Partition, list[int]] = defaultdict(list)
        for topic, partition, offset in {place for places in self.polled.values() for place in places}:
            known[topic, partition].append(offset)
        following = {
            (*where, one): other for where, offsets in known.items() for one, other in pairwise(sorted(offsets))
        }
        for earlier, later in self._polls():
            skipped = following.get(earlier.place, later.offset)
            if skipped < later.offset:
                yield f"{later.who} was not given {_shown((*later.where, skipped))}"

    def offsets_of_aborted(self) -> Iterator[str]:
        """After an abort a client was not given again what it had read, nor anybody who carries it to the same place."""
        for who, events in self.reads.items():
            first: dict[Partition, Event] = {}  # of what it has read in each partition in its last transaction
            owed: dict[Partition, Event] = {}
            for event in events:
                where = event.where
                if event.what == "polled":
                    due = owed.pop(where, event)
                    if due.offset < event.offset and not self._is_carried_by_another(due.place, who):
                        yield f"{who} was not given {_shown(due.place)} again, but {_shown(event.place)}"
                    if where not in first or first[where].transaction != event.transaction:
                        first[where] = event
                    continue
                owed.pop(where, None)
                begun = first.pop(where, event)
                if event.what == "again" and begun.what == "polled" and begun.transaction == event.transaction:
                    owed[where] = begun

    def _is_carried_by_another(self, place: Place, who: str) -> bool:
        return any(self.targets[other] == self.targets[who] for other in self.carriers[place] - {who})

    def _polls(self) -> Iterator[tuple[Event, Event]]:
        """Records that a client was given one after the other in one partition."""
        for events in self.reads.values():
            last: dict[Partition, Event] = {}
            for event in events:
                if event.what != "polled":
                    last.pop(event.where, None)
                    continue
                if event.where in last:
                    yield last[event.where], event
                last[event.where] = event

    def sends_backwards(self) -> Iterator[str]:
        """Records of one client lie in another order than it sent them."""
        offsets = {(event.transaction, event.named): event.offset for event in self.sent}
        last: dict[tuple[str, Partition], Event] = {}
        for transaction, sends in self.sends.items():
            for send in sends:
                offset = offsets.get((transaction, send.named))
                if offset is None:
                    continue
                now = send._replace(offset=offset)
                before = last.get((send.who, send.where))
                if before is not None and now.offset <= before.offset:
                    yield f"{now.who} sent {now.value} to {_shown(now.place)} after {before.value} to {_shown(before.place)}"
                last[send.who, send.where] = now


def _shown(place: Place) -> str:
    topic, partition, offset = place
    return f"{topic}-{partition}@{offset}"
