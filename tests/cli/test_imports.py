"""What verbs import to do their work: a start takes less than 150 ms, and imports are most of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from barnabas import Broker
from tests.cli.running import TIMEOUT_S
from tests.support.loading import create
from tests.support.raw_client import RawClient

LISTED = """
import sys
from barnabas.__main__ import main
code = main(sys.argv[1:])
sys.stderr.write("\\n" + " ".join(sys.modules))
sys.exit(code)
"""
HEAVY = {
    "asyncio",
    "concurrent.futures",
    "confluent_kafka",
    "http.client",
    "multiprocessing",
    "numpy",
    "pyspark",
    "rich",
}
PARTS = {"kafka.admin", "kafka.consumer", "kafka.coordinator", "kafka.producer", "kafka.record"}
"""Parts of kafka-python, half of its time."""
VERBS = [
    "configs describe broker 1",
    "groups list",
    "groups lag",
    "nodes list",
    "partitions reassignments",
    "quotas list",
    "topics list",
    "top --once --interval 100ms",
    "transactions list",
    "users list",
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        with RawClient(running.bootstrap) as client:
            create(client, "t")
        yield running


def imported(broker: Broker, line: str) -> set[str]:
    command = [sys.executable, "-c", LISTED, *line.split(), "-b", broker.bootstrap]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].decode().split())


@pytest.mark.parametrize("line", VERBS)
def test_an_admin_verb_imports_connections_and_its_messages(broker: Broker, line: str) -> None:
    modules = imported(broker, line)
    assert "kafka.net.manager" in modules
    assert not (HEAVY | PARTS | {"kafka.protocol.admin.acl"}) & modules


@pytest.mark.parametrize("line", ["consume t", "produce t"])
def test_a_verb_for_records_imports_its_own_client_only(broker: Broker, line: str) -> None:
    modules = imported(broker, line)
    assert "barnabas.client.cluster" in modules
    assert not (HEAVY | {"kafka"}) & modules
