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
