"""Some faults on three real nodes, as `make cluster-faults` plays them for longer; and the checker of what it leaves.

CLUSTER_FAULTS_SEED has the same faults played again.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.exactly_once.history import History
from tests.exactly_once.loop import BY_HAND, SOURCE, TARGET
from tests.faults.cluster import Cluster
from tests.faults.faults import FAULTS
from tests.faults.network import why_no_machines
from tests.faults.playing import Run, check, kept
from tests.faults.views import Led, Quorum, View, why_no_quorum, why_not_one
from tests.support.seeds import seed_of

SEED = seed_of("CLUSTER_FAULTS_SEED")
SAMPLE_S = 8.0
SAMPLE = [name for name in FAULTS if name not in {"restarted in turns", "last in sync", "bridge"}]
"""The others take long, or more than three nodes: `make cluster-faults` plays them all."""


@pytest.mark.skipif(why_no_machines() is not None, reason=why_no_machines() or "machines can be made")
def test_nothing_is_lost_torn_or_seen_twice_whatever_happens(tmp_path: Path) -> None:
    """Issue 7, part 4: with min.insync.replicas=2 of 3 no anomaly, and the cluster gets over everything."""
    print(f"replay with CLUSTER_FAULTS_SEED={SEED}; histories and logs are in {tmp_path}")
    with Cluster() as cluster, kept(tmp_path, cluster):
        run = Run(tmp_path, cluster, SEED, SAMPLE)
        run.play(2, time.monotonic() + SAMPLE_S)
    print(dict(run.done))


def leave(folder: Path, carried: list[str]) -> None:
    """Histories of a small run in which this was carried on from a, b, c."""
    writer, reader = History(folder, "writer-0"), History(folder, "last-0")
    for topic in (SOURCE, TARGET, BY_HAND):
        values = ["a", "b", "c"] if topic == SOURCE else ["<a>", "<b>", "<c>"] if topic == BY_HAND else carried
        for offset, value in enumerate(values):
            writer.note("sends", f"{topic}{offset}", topic, 0, -1, value)
            writer.note("sent", f"{topic}{offset}", topic, 0, offset, value)
            writer.note("committed", f"{topic}{offset}")
            reader.note("polled", "", topic, 0, offset, value)
    writer.close()
    reader.close()


def test_a_folder_that_was_kept_is_looked_at_again(tmp_path: Path) -> None:
    """What is right is right again."""
    leave(tmp_path, ["<a>", "<b>", "<c>"])
    check(tmp_path)


@pytest.mark.parametrize("carried", [["<a>", "<c>"], ["<b>", "<a>", "<c>"], ["<a>", "<b>", "<b>", "<c>"]])
def test_what_was_not_carried_on_as_it_was_is_found(tmp_path: Path, carried: list[str]) -> None:
    """Left out, in another order, twice."""
    leave(tmp_path, carried)
    with pytest.raises(AssertionError):
        check(tmp_path)


def test_a_lost_write_is_found_in_a_folder(tmp_path: Path) -> None:
    """An anomaly that the histories show by themselves."""
    leave(tmp_path, ["<a>", "<b>", "<c>"])
    other = History(tmp_path, "steady-0")
    other.note("sends", "s", "steady", 0, -1, "s")
    other.note("committed", "s")
    other.close()
    with pytest.raises(AssertionError, match="unseen: s of s"):
        check(tmp_path)


NODES = {1: "one", 2: "two", 3: "three"}
LED = Led(1, 4, (1, 2, 3), (1, 2, 3))
WHOLE = View(frozenset(NODES), {("t", 0): LED})
QUORUM = Quorum(2, 50, {1: 50, 2: 51, 3: 50}, {})


def test_a_whole_cluster_is_whole() -> None:
    """All brokers, all in sync, all voters with the log."""
    assert why_not_one(1, WHOLE, NODES) == ""
    assert why_no_quorum(1, QUORUM, NODES) == ""


@pytest.mark.parametrize(
    "view",
    [
        WHOLE._replace(brokers=frozenset({1, 2})),
        WHOLE._replace(partitions={("t", 0): LED._replace(isr=(1, 2))}),
        WHOLE._replace(partitions={("t", 0): LED._replace(leader=-1)}),
    ],
)
def test_a_cluster_that_misses_somebody_is_not_whole(view: View) -> None:
    """A broker, a replica in sync, a leader."""
    assert why_not_one(1, view, NODES)


@pytest.mark.parametrize(
    "quorum",
    [QUORUM._replace(leader=-1), QUORUM._replace(voters={1: 50, 2: 51}), QUORUM._replace(voters={1: 9, 2: 51, 3: 50})],
)
def test_a_quorum_that_misses_somebody_is_not_whole(quorum: Quorum) -> None:
    """Nobody leads, a voter is gone, a voter is behind."""
    assert why_no_quorum(1, quorum, NODES)
