"""Groups: members join, leave, crash and return."""

from __future__ import annotations

from functools import partial

from tests.conformance.suite.steps import (
    Scenario,
    Step,
    all_of,
    at_least,
    containing,
    do,
    kill,
    members,
    numbered,
    one_of,
    scenario,
    values,
    without,
)
from tests.conformance.suite.tables.offsets import join
from tests.conformance.suite.tables.records import topic, write

_groups = partial(scenario, "groups")
SESSION_MS = 6000
"""The shortest session timeout that a broker allows by default."""


def _sharing(name: str, **how: str) -> Scenario:
    """Two members share the partitions; one leaves, and the other reads everything."""
    return _groups(
        name,
        topic(4),
        write(numbered(40, 4)),
        join("a", **how),
        members("a").becomes(assigned=all_of("$t", 4), values=values(40)),
        join("b", **how),
        members("a", "b").becomes(shares=[2, 2], assigned=all_of("$t", 4)),
        write(numbered(40, 4, start=40)),
        members("a", "b").becomes(values=values(80)),
        do("leave", member="a"),
        members("b").becomes(assigned=all_of("$t", 4)),
        write(numbered(8, 4, start=80)),
        members("b").becomes(values=at_least(values(8, 80))),
    )


def _static(name: str, gone: Step, **how: str) -> Scenario:
    """A static member returns: the other member's assignment does not change, and the group has no new member."""
    return _groups(
        name,
        topic(4),
        write(numbered(40, 4)),
        join("a", instance="one", session_ms=45_000, **how),
        join("b", instance="two", session_ms=45_000, **how).by("other"),
        members("a", "b@other").becomes(shares=[2, 2], assigned=all_of("$t", 4)),
        gone,
        join("b", instance="two", session_ms=45_000, **how).by("again"),
        members("a", "b@again").becomes(shares=[2, 2], assigned=all_of("$t", 4), values=values(40)),
        do("describe_group", group="$g").gives(members=2),
    )


def _crash(name: str, **how: str) -> Scenario:
    """After the session timeout of a killed member the other one has its partitions."""
    return _groups(
        name,
        topic(4),
        join("a", session_ms=SESSION_MS, **how),
        join("b", session_ms=SESSION_MS, **how).by("other"),
        members("a", "b@other").becomes(shares=[2, 2], assigned=all_of("$t", 4)),
        kill("other"),
        members("a").becomes(assigned=all_of("$t", 4)),
        write(numbered(20, 4)),
        members("a").becomes(values=values(20)),
    )


SCENARIOS = (
    _sharing("two members, one leaves: range", assignor="range"),
    _sharing("two members, one leaves: round robin", assignor="roundrobin"),
    _sharing("two members, one leaves: sticky", assignor="sticky"),
    _sharing("two members, one leaves: cooperative sticky", assignor="cooperative-sticky"),
    _sharing("two members, one leaves: consumer protocol (KIP-848)", protocol="consumer"),
    _static("a static member crashes and returns", kill("other")),
    _static(
        "a static member leaves and returns: consumer protocol (KIP-848)",
        do("leave", member="b").by("other"),
        protocol="consumer",
    ),
    _crash("a member crashes"),
    _groups(
        "more members than partitions",
        topic(2),
        write(numbered(20, 2)),
        join("a"),
        join("b"),
        join("c"),
        members("a", "b", "c").becomes(shares=[0, 1, 1], assigned=all_of("$t", 2), values=values(20)),
    ),
    _groups(
        "a group reads two topics",
        topic(2, "$one"),
        topic(2, "$two"),
        write(numbered(10, 2), "$one"),
        write(numbered(10, 2, start=10), "$two"),
        join("a", topics=["$one", "$two"]),
        members("a").becomes(assigned=[*all_of("$one", 2), *all_of("$two", 2)], values=values(20)),
    ),
    _groups(
        "new partitions of a topic are read",
        topic(1),
        join("a", refresh_ms=500),
        members("a").becomes(assigned=all_of("$t", 1)),
        do("create_partitions", topic="$t", count=3),
        members("a").becomes(assigned=all_of("$t", 3)),
        write(numbered(9, 3)),
        members("a").becomes(values=values(9)),
    ),
    _groups(
        "listed, described, emptied, deleted",
        topic(2),
        join("a"),
        members("a").becomes(assigned=all_of("$t", 2)),
        do("list_groups").gives(groups=containing("$g")),
        do("describe_group", group="$g").gives(state="Stable", members=1),
        do("delete_group", group="$g").is_refused("NON_EMPTY_GROUP"),
        do("leave", member="a"),
        do("describe_group", group="$g").becomes(state=one_of("Empty", "Dead"), members=0),
        do("delete_group", group="$g"),
        do("list_groups").gives(groups=without("$g")),
    ),
)
