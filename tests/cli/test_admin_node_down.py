"""Replicas and leaders while a node is down: what is refused does not hide what is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from barnabas import Cluster
from tests.cli.running import Verbs
from tests.support.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    """Of three nodes, of which the second is down."""
    with Cluster(3) as cluster:
        found = Verbs(cluster.bootstrap)
        found.rows("topics create spread --assign 3,1 --assign 2,1")
        found.rows("topics create single --assign 1")
        found.rows("topics create other --assign 1")
        cluster.nodes[2].kill()
        until(lambda: any(row["fenced"] for row in found.rows("nodes list")), "the node is fenced")
        yield found


def test_an_election_that_fails_does_not_hide_the_others(verbs: Verbs) -> None:
    ended = verbs.run("partitions elect spread")
    assert (ended.code, ended.out.split()[3:]) == (1, ["spread", "0", "ELECTION_NOT_NEEDED"])
    assert ended.err == (
        "barnabas: Cannot elect a leader of spread-1: PREFERRED_LEADER_NOT_AVAILABLE: "
        "The preferred leader was not available.\n"
    )


def test_a_plan_has_no_replicas_on_a_fenced_broker_unless_it_is_named(verbs: Verbs) -> None:
    assert {broker for row in verbs.rows("partitions reassign spread single") for broker in row["new_replicas"]} == {
        1,
        3,
    }
    assert verbs.refused("partitions reassign single -r 3") == (
        "3 replicas need as many brokers, and there are 2 that are not fenced."
    )
    assert verbs.rows("partitions reassign single --to 2")[0]["new_replicas"] == [2]


def test_a_move_that_is_refused_does_not_hide_the_others(verbs: Verbs, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    moves = [("single", [3]), ("spread", [7, 1])]
    partitions = [{"topic": topic, "partition": 0, "replicas": replicas} for topic, replicas in moves]
    plan.write_text(json.dumps({"partitions": partitions}))
    ended = verbs.run(f"partitions reassign --file {plan} --execute --json")
    assert (ended.code, [json.loads(line)["topic"] for line in ended.out.splitlines()]) == (1, ["single"])
    assert "barnabas: Cannot move replicas of spread-0: INVALID_REPLICA_ASSIGNMENT" in ended.err
    assert "Started" in ended.err
    until(lambda: not verbs.rows("partitions reassignments"), "the replica has moved")


def test_a_move_that_has_ended_does_not_hide_that_others_are_cancelled(verbs: Verbs) -> None:
    from barnabas.admin import partitions

    verbs.rows("partitions reassign other --to 2 --execute")
    found = partitions.list_reassignments
    ended_move = partitions.Reassignment("single", 0, [3], [], [])
    with mock.patch.object(partitions, "list_reassignments", lambda client: [*found(client), ended_move]):
        ended = verbs.run("partitions reassignments --cancel")
    assert ended.code == 1
    assert "Cannot cancel the move of single-0: NO_REASSIGNMENT_IN_PROGRESS" in ended.err
    assert ended.err.endswith("Cancelled: 1.\n")
    assert verbs.rows("partitions reassignments") == []
