"""Transactions: committed records are visible, aborted ones are not, and a zombie producer is fenced."""

from __future__ import annotations

from functools import partial

from tests.conformance.suite.steps import Step, do, kill, members, numbered, scenario, values
from tests.conformance.suite.tables.offsets import join
from tests.conformance.suite.tables.records import read, topic, write

_transactions = partial(scenario, "transactions")
FENCED = ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "fenced")
"""The errors of a fenced producer; `fenced` where the client gives no code."""


def open_(producer: str = "p", **more: object) -> Step:
    """A transactional producer after InitProducerId."""
    return do("open", producer=producer, transactional_id="$x", timeout_ms=60_000, **more)


def begin(producer: str = "p") -> Step:
    return do("begin", producer=producer)


def send(first: int, count: int, partitions: int = 1, producer: str = "p") -> Step:
    """Sends numbered records in the transaction and waits for their acknowledgements."""
    return do("send", producer=producer, topic="$t", records=numbered(count, partitions, first))


def end(how: str, producer: str = "p") -> Step:
    return do(how, producer=producer)


def transaction(first: int, count: int, partitions: int = 1, how: str = "commit_transaction") -> tuple[Step, ...]:
    """A transaction that sends numbered records and ends."""
    return begin(), send(first, count, partitions), end(how)


def committed(count: int, partitions: int = 1) -> Step:
    return read(count, partitions, isolation="read_committed")


SCENARIOS = (
    _transactions(
        "committed records are visible",
        topic(3),
        open_(),
        *transaction(0, 30, 3),
        *transaction(30, 30, 3),
        committed(60, 3).gives(records=numbered(60, 3)),
    ),
    _transactions(
        "aborted records are not visible",
        topic(),
        open_(),
        *transaction(0, 10, how="abort_transaction"),
        *transaction(10, 10),
        *transaction(20, 10, how="abort_transaction"),
        *transaction(30, 1),
        committed(11).gives(records=[*numbered(10, start=10), *numbered(1, start=30)]),
        read(31).gives(records=numbered(31)),
    ),
    _transactions(
        "an open transaction blocks read_committed consumers",
        topic(),
        write(numbered(2)),
        open_(),
        begin(),
        send(2, 3),
        write(numbered(2, start=5)),
        committed(2).gives(records=numbered(2)),
        do("list_offsets", topic="$t", partition=0, at="latest", isolation="read_committed").gives(offset=2),
        do("list_offsets", topic="$t", partition=0, at="latest").gives(offset=7),
        end("commit_transaction"),
        do("list_offsets", topic="$t", partition=0, at="latest", isolation="read_committed").becomes(offset=8),
        committed(7).gives(records=numbered(7)),
    ),
    _transactions(
        "a new producer with the same transactional id fences the old one",
        topic(),
        open_("old"),
        begin("old"),
        send(0, 3, producer="old"),
        open_("new"),
        begin("new"),
        end("commit_transaction", "old").is_refused(*FENCED),
        send(3, 3, producer="new"),
        end("commit_transaction", "new"),
        committed(3).gives(records=numbered(3, start=3)),
    ),
    _transactions(
        "a new producer aborts the transaction of a killed one",
        topic(),
        open_().by("other"),
        begin().by("other"),
        send(0, 5).by("other"),
        kill("other"),
        open_(),
        *transaction(5, 5),
        committed(5).gives(records=numbered(5, start=5)),
    ),
    _transactions(
        "consume-transform-produce commits offsets with the records",
        topic(1, "$source"),
        topic(),
        write(numbered(20), "$source"),
        join("a", topics=["$source"], isolation="read_committed", transactional_id="$x", producer="p"),
        members("a").becomes(values=values(20)),
        open_(),
        begin(),
        send(0, 10),
        do("send_offsets", producer="p", group="$g", member="a", topic="$source", offsets={"0": 10}),
        end("abort_transaction"),
        do("committed", group="$g", topic="$source").gives(offsets={}),
        begin(),
        send(100, 20),
        do("send_offsets", producer="p", group="$g", member="a", topic="$source", offsets={"0": 20}),
        end("commit_transaction"),
        do("committed", group="$g", topic="$source").becomes(offsets={"0": 20}),
        committed(20).gives(records=numbered(20, start=100)),
    ),
    _transactions(
        "compressed records",
        topic(),
        open_(codec="lz4"),
        *transaction(0, 50),
        committed(50).gives(records=numbered(50)),
    ),
    _transactions(
        "begin and abort without records",
        topic(),
        open_(),
        begin(),
        end("abort_transaction"),
        *transaction(0, 1),
        committed(1).gives(records=numbered(1)),
    ),
)
