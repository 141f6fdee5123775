"""Nodes that cannot join a cluster end with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas import Cluster
from barnabas.cluster import new_id
from barnabas.embedded import BrokerError
from tests.support.accept_queue import full_listener
from tests.support.cluster import identity_of, joining_node

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Node 1 is broker and controller; node 2 is a broker."""
    with Cluster(1, 1) as made:
        yield made


def failed_start(
    folder: Path, number: int, controllers: str, cluster_id: str, timeout_ms: int = 1500
) -> tuple[str, str]:
    """The message that a new broker ends with, and its log."""
    timeout = {"initial_broker_registration_timeout_ms": str(timeout_ms)}
    broker = joining_node(folder / "data", "broker", number, controllers, cluster_id, **timeout)
    broker.log_path = folder / "log"
    with pytest.raises(BrokerError) as caught, broker:
        pass
    return str(caught.value), broker.log_path.read_text()


def test_a_node_with_a_registered_id_ends(cluster: Cluster, tmp_path: Path) -> None:
    message, _ = failed_start(tmp_path, 1, *identity_of(cluster))
    assert message == "The broker did not start: another process is node 1: end it, or set another node.id here"
    assert cluster.nodes[1].is_running


def test_a_node_of_another_cluster_ends(cluster: Cluster, tmp_path: Path) -> None:
    message, log = failed_start(tmp_path, 3, identity_of(cluster)[0], new_id())
    assert "no controller that leads this cluster was found within 1.5 s" in message
    assert "bootstrap server 1 belongs to another cluster" in log


def test_a_node_whose_controllers_do_not_resolve_ends(tmp_path: Path) -> None:
    message, log = failed_start(tmp_path, 3, "nowhere.invalid:9093", new_id(), timeout_ms=4000)
    assert "no controller that leads this cluster was found within 4 s" in message
    assert log.count("cannot connect to the node at nowhere.invalid:9093: the host name does not resolve") == 1


def test_a_node_whose_controllers_do_not_accept_connections_ends(tmp_path: Path) -> None:
    with full_listener() as (host, port):
        message, _ = failed_start(tmp_path, 3, f"{host}:{port}", new_id())
    assert "no controller that leads this cluster was found within 1.5 s" in message
