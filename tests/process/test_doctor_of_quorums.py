"""`barnabas doctor` on the directories of nodes whose voters are a setting."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.cluster import Cluster
from tests.support.librdkafka import create_topic


@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.long)])
def test_nothing_is_wrong_with_nodes_that_stopped_cleanly(nodes: int) -> None:
    replicas = {"offsets.topic.replication.factor": "1", "default.replication.factor": "1", "min.insync.replicas": "1"}
    with Cluster(nodes, replicas if nodes == 1 else None) as cluster:
        create_topic(cluster.bootstrap, "orders", 3, nodes)
        cluster.wait_until_known("orders")
        for node in cluster.nodes.values():
            node.stop()
        for number in cluster.nodes:
            command = [sys.executable, "-m", "barnabas", "doctor", str(cluster.folder / str(number))]
            outcome = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert "Nothing is wrong." in outcome.stdout, outcome
            assert outcome.returncode == 0, outcome
