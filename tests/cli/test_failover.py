"""Reading and writing while leaders of a cluster are killed: each record is stored once, and printed once."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from barnabas import Cluster
from tests.cli.running import COMMAND, TIMEOUT_S
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
