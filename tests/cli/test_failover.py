"""While nodes are killed, each record is stored once, and printed once; what is refused does not hide what is done."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from barnabas import Cluster
from tests.cli.running import COMMAND, TIMEOUT_S, Verbs
from tests.support.librdkafka import create_topic
from tests.support.waiting import until

RECORDS = 3000


@pytest.mark.long
def test_each_record_is_stored_and_printed_once_while_nodes_are_killed(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(RECORDS)))
    with Cluster(3) as cluster:
        at = ["-b", cluster.bootstrap]
        create_topic(cluster.bootstrap, "t", partitions=6, replicas=3, min_insync_replicas="2")
        with subprocess.Popen([*COMMAND, "consume", *at, "t", "-F"], stdout=subprocess.PIPE) as consumer:
            assert consumer.stdout is not None
            produce = [*COMMAND, "produce", *at, "t", "-l", "--rate", "200", "-i", str(lines)]
            with subprocess.Popen(produce) as producer:
                found = []
                for number in range(RECORDS):
                    found.append(int(json.loads(consumer.stdout.readline())["value"]))
                    if number in {300, 1200, 2100}:
                        node = list(cluster.nodes.values())[number // 900]
                        node.kill()
                        node.restart()
                assert producer.wait(TIMEOUT_S) == 0
            consumer.send_signal(signal.SIGINT)
            assert consumer.stdout.read() == b""
        assert sorted(found) == list(range(RECORDS))
        done = subprocess.run([*COMMAND, "consume", *at, "t"], capture_output=True, check=True, timeout=TIMEOUT_S)
        assert sorted(int(json.loads(line)["value"]) for line in done.stdout.splitlines()) == list(range(RECORDS))


@pytest.mark.long
def test_partitions_with_a_leader_are_read_while_others_have_none() -> None:
    with Cluster(3) as cluster:
        at = ["-b", cluster.bootstrap]
        subprocess.run([*COMMAND, "topics", "create", "t", *at, "--assign", "1", "--assign", "2"], check=True)
        for number in ("0", "1"):
            subprocess.run([*COMMAND, "produce", "t", *at, "-l", "-p", number], input=b"x\n", check=True)
        reset = ["groups", "reset", "g", *at, "--topic", "t", "--to-earliest", "--execute"]
        subprocess.run([*COMMAND, *reset], check=True, timeout=TIMEOUT_S)
        cluster.nodes[2].kill()

        def leaders() -> list[int]:
            described = subprocess.run(
                [*COMMAND, "topics", "describe", "t", "--json", *at], capture_output=True, check=True
            )
            return [part["leader"] for part in json.loads(described.stdout)["partitions"]]

        until(lambda: leaders() == [1, -1], "one partition has no leader")
        done = subprocess.run(
            [*COMMAND, "consume", *at, "t", "-p", "0", "-f", "%v"], capture_output=True, check=True, timeout=TIMEOUT_S
        )
        assert done.stdout == b"x"
        describe = [*COMMAND, "topics", "describe", "t", "--offsets", "--json", *at]
        done = subprocess.run(describe, capture_output=True, check=True, timeout=TIMEOUT_S)
        assert [part["end"] for part in json.loads(done.stdout)["partitions"]] == [1, None]
        lag = [*COMMAND, "groups", "lag", "g", "--partitions", "--json", *at]
        done = subprocess.run(lag, capture_output=True, check=True, timeout=TIMEOUT_S)
        assert [json.loads(line)["lag"] for line in done.stdout.splitlines()] == [1, None]


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


@pytest.mark.long
def test_an_election_that_fails_does_not_hide_the_others(verbs: Verbs) -> None:
    ended = verbs.run("partitions elect spread")
    assert (ended.code, ended.out.split()[3:]) == (1, ["spread", "0", "ELECTION_NOT_NEEDED"])
    assert ended.err == (
        "barnabas: Cannot elect a leader of spread-1: PREFERRED_LEADER_NOT_AVAILABLE: "
        "The preferred leader was not available.\n"
    )


@pytest.mark.long
def test_a_plan_has_no_replicas_on_a_fenced_broker_unless_it_is_named(verbs: Verbs) -> None:
    assert {broker for row in verbs.rows("partitions reassign spread single") for broker in row["new_replicas"]} == {
        1,
        3,
    }
    assert verbs.refused("partitions reassign single -r 3") == (
        "3 replicas need as many brokers, and there are 2 that are not fenced."
    )
    assert verbs.rows("partitions reassign single --to 2")[0]["new_replicas"] == [2]


@pytest.mark.long
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


@pytest.mark.long
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
