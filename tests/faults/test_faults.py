"""Some faults on three real nodes, as `make cluster-faults` runs them for longer; and the checks of a run.

CLUSTER_FAULTS_SEED replays a run.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.exactly_once.history import History
from tests.exactly_once.loop import MANUAL, SOURCE, TARGET, check_result
from tests.faults.cluster import Cluster
from tests.faults.cluster_state import PartitionState, Quorum, View, why_quorum_unhealthy, why_view_unhealthy
from tests.faults.fault_run import Run, nodes_logged_to
from tests.faults.faults import FAULTS
from tests.faults.network import why_no_namespaces
from tests.support.seeds import seed_of

pytestmark = pytest.mark.long

SEED = seed_of("CLUSTER_FAULTS_SEED")
SAMPLE_S = 8.0
SAMPLE = [name for name in FAULTS if name not in {"restarted in turns", "last in sync", "bridge"}]
"""The others take long or need more nodes; `make cluster-faults` runs them all."""


@pytest.mark.skipif(why_no_namespaces() is not None, reason=why_no_namespaces() or "machines can be made")
def test_faults_lose_tear_and_duplicate_nothing(tmp_path: Path) -> None:
    """With min.insync.replicas=2 of 3 there is no anomaly, and the cluster recovers from every fault."""
    print(f"replay with CLUSTER_FAULTS_SEED={SEED}; histories and logs are in {tmp_path}")
    with Cluster() as cluster, nodes_logged_to(tmp_path, cluster):
        run = Run(tmp_path, cluster, SEED, SAMPLE)
        run.play(2, time.monotonic() + SAMPLE_S)
    print(dict(run.done))


def write_histories(folder: Path, carried: list[str]) -> None:
    """Writes the histories of a small run in which a, b, c were processed into these values."""
    writer, reader = History(folder, "writer-0"), History(folder, "last-0")
    for topic in (SOURCE, TARGET, MANUAL):
        values = ["a", "b", "c"] if topic == SOURCE else ["<a>", "<b>", "<c>"] if topic == MANUAL else carried
        for offset, value in enumerate(values):
            writer.note("sends", f"{topic}{offset}", topic, 0, -1, value)
            writer.note("sent", f"{topic}{offset}", topic, 0, offset, value)
            writer.note("committed", f"{topic}{offset}")
            reader.note("polled", "", topic, 0, offset, value)
    writer.close()
    reader.close()


def test_the_folder_of_a_correct_run_passes_the_check(tmp_path: Path) -> None:
    write_histories(tmp_path, ["<a>", "<b>", "<c>"])
    check_result(tmp_path)


@pytest.mark.parametrize("carried", [["<a>", "<c>"], ["<b>", "<a>", "<c>"], ["<a>", "<b>", "<b>", "<c>"]])
def test_a_target_that_differs_from_its_source_fails_the_check(tmp_path: Path, carried: list[str]) -> None:
    """A missing, a reordered and a duplicate record."""
    write_histories(tmp_path, carried)
    with pytest.raises(AssertionError):
        check_result(tmp_path)


def test_a_lost_write_fails_the_check(tmp_path: Path) -> None:
    """An anomaly that the histories alone show."""
    write_histories(tmp_path, ["<a>", "<b>", "<c>"])
    other = History(tmp_path, "steady-0")
    other.note("sends", "s", "steady", 0, -1, "s")
    other.note("committed", "s")
    other.close()
    with pytest.raises(AssertionError, match="unseen: s of s"):
        check_result(tmp_path)


@pytest.mark.parametrize(("error", "fails"), [("NO_ERROR", True), ("UNSTABLE_OFFSET_COMMIT", False)])
def test_a_committed_offset_that_is_not_found_fails_the_check(tmp_path: Path, error: str, fails: bool) -> None:
    write_histories(tmp_path, ["<a>", "<b>", "<c>"])
    line = f"OffsetFetchResponse: source [2] offset -1, leader epoch -1, metadata 0 byte(s): {error}"
    (tmp_path / "processor-a.log").write_text(f"%7|1.0|OFFSETFETCH|rdkafka#consumer-1| [thrd:main]: {line}\n")
    with pytest.raises(AssertionError, match="NO_ERROR") if fails else nullcontext():
        check_result(tmp_path)


NODES = {1: "one", 2: "two", 3: "three"}
LED = PartitionState(1, 4, (1, 2, 3), (1, 2, 3))
WHOLE = View(frozenset(NODES), {("t", 0): LED})
QUORUM = Quorum(2, 50, {1: 50, 2: 51, 3: 50}, {})


def test_a_healthy_cluster_is_healthy() -> None:
    assert why_view_unhealthy(1, WHOLE, NODES) == ""
    assert why_quorum_unhealthy(1, QUORUM, NODES) == ""


@pytest.mark.parametrize(
    "view",
    [
        WHOLE._replace(brokers=frozenset({1, 2})),
        WHOLE._replace(partitions={("t", 0): LED._replace(isr=(1, 2))}),
        WHOLE._replace(partitions={("t", 0): LED._replace(leader=-1)}),
    ],
)
def test_an_incomplete_cluster_is_unhealthy(view: View) -> None:
    """A broker, an in-sync replica or a leader is missing."""
    assert why_view_unhealthy(1, view, NODES)


@pytest.mark.parametrize(
    "quorum",
    [QUORUM._replace(leader=-1), QUORUM._replace(voters={1: 50, 2: 51}), QUORUM._replace(voters={1: 9, 2: 51, 3: 50})],
)
def test_an_incomplete_quorum_is_unhealthy(quorum: Quorum) -> None:
    """The leader or a voter is missing, or a voter lags."""
    assert why_quorum_unhealthy(1, quorum, NODES)
