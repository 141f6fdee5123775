"""Offsets: earliest, latest, by timestamp; committed and resumed."""

from __future__ import annotations

from functools import partial

from tests.conformance.suite.steps import Record, Step, all_of, do, meanwhile, members, numbered, scenario, values
from tests.conformance.suite.tables.records import WRITTEN_MS, topic, write

_offsets = partial(scenario, "offsets")
DATED = [Record(0, b"k", b"%d" % number, (), WRITTEN_MS + 1000 * number) for number in range(10)]


def offset(at: str, partition: int = 0, **more: object) -> Step:
    return do("list_offsets", topic="$t", partition=partition, at=at, **more)


def at_time(milliseconds: int) -> Step:
    """The first offset with this timestamp or a later one."""
    return offset("time", time=milliseconds)


def join(member: str, **more: object) -> Step:
    """A member that starts at the earliest offset and commits only on request."""
    settings = {"group": "$g", "topics": ["$t"], "reset": "earliest", "commit": "none", **more}
    return do("join", member=member, **settings)


def read_by_a(count: int, partitions: int = 1, **more: object) -> tuple[Step, ...]:
    """The first member of a new group has read a new topic's records."""
    return (
        topic(partitions),
        write(numbered(count, partitions)),
        join("a", **more),
        members("a").becomes(values=values(count)),
    )


SCENARIOS = (
    _offsets(
        "earliest and latest",
        topic(2),
        offset("earliest").gives(offset=0),
        offset("latest").gives(offset=0),
        write(numbered(20, 2)),
        offset("earliest", 1).gives(offset=0),
        offset("latest", 1).gives(offset=10),
    ),
    _offsets(
        "by time",
        topic(),
        write(DATED),
        at_time(WRITTEN_MS).gives(offset=0),
        at_time(WRITTEN_MS + 4000).gives(offset=4),
        at_time(WRITTEN_MS + 4001).gives(offset=5),
        at_time(WRITTEN_MS - 50_000).gives(offset=0),
    ),
    _offsets(
        "by a timestamp after the last record",
        topic(),
        write(DATED),
        at_time(WRITTEN_MS + 9001).gives(offset=-1),
    ),
    _offsets(
        "a new group reads from the earliest",
        topic(2),
        write(numbered(20, 2)),
        join("a"),
        members("a").becomes(assigned=all_of("$t", 2), values=values(20)),
    ),
    _offsets(
        "a new group reads from the latest",
        topic(),
        write(numbered(20)),
        join("a", reset="latest"),
        members("a").becomes(assigned=all_of("$t", 1)),
        meanwhile(write([Record(0, b"k", b"late")]), "a").becomes(values=frozenset({b"late"})),
    ),
    _offsets(
        "the next member continues after a commit",
        *read_by_a(20, 2),
        do("commit", member="a"),
        do("leave", member="a"),
        do("committed", group="$g", topic="$t").gives(offsets={"0": 10, "1": 10}),
        write(numbered(10, 2, start=20)),
        join("b"),
        members("b").becomes(values=values(10, 20)),
    ),
    _offsets(
        "uncommitted records are read again",
        *read_by_a(10),
        do("leave", member="a"),
        join("b"),
        members("b").becomes(values=values(10)),
    ),
    _offsets(
        "automatic commits",
        *read_by_a(10, commit="auto"),
        do("committed", group="$g", topic="$t").becomes(offsets={"0": 10}),
    ),
    _offsets(
        "altered by an administrator",
        topic(2),
        write(numbered(20, 2)),
        do("alter_offsets", group="$g", topic="$t", offsets={"0": 7, "1": 3}),
        do("committed", group="$g", topic="$t").gives(offsets={"0": 7, "1": 3}),
        join("a"),
        members("a").becomes(values=frozenset(b"%d" % n for n in [*range(14, 20, 2), *range(7, 20, 2)])),
    ),
    _offsets(
        "deleted by an administrator",
        *read_by_a(20, 2),
        do("commit", member="a"),
        do("leave", member="a"),
        do("delete_offsets", group="$g", topic="$t", partitions=[1]),
        do("committed", group="$g", topic="$t").gives(offsets={"0": 10}),
    ),
)
