"""Nodes that cannot join a cluster end with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas import Broker, Cluster
from barnabas.cluster import free_ports, new_id
from barnabas.embedded import BrokerError
from tests.support.accept_queue import full_listener

pytestmark = pytest.mark.long

SOON = {"initial.broker.registration.timeout.ms": "1500"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Node 1 is broker and controller; node 2 is a broker."""
    with Cluster(1, 1) as made:
        yield made


def new_broker(folder: Path, number: int, controller: str, cluster_id: str, **settings: str) -> Broker:
    """A new broker."""
    own = {
        "node.id": number,
        "process.roles": "broker",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}",
        "controller.quorum.bootstrap.servers": controller,
        **SOON,
    }
    return Broker(folder / "data", settings={**own, **settings}, arguments=["--cluster-id", cluster_id])


def identity(cluster: Cluster) -> tuple[str, str]:
    """The controller's address and the cluster id."""
    lines = (cluster.nodes[1].data_dir / "meta.properties").read_text().splitlines()
    (cluster_id,) = (line.partition("=")[2] for line in lines if line.startswith("cluster.id="))
    return cluster.nodes[1].settings["controller.quorum.bootstrap.servers"], cluster_id


def start_error(broker: Broker) -> str:
    """The message that it ends with."""
    with pytest.raises(BrokerError) as caught, broker:
        pass
    return str(caught.value)


def test_a_node_with_a_registered_id_ends(cluster: Cluster, tmp_path: Path) -> None:
    message = start_error(new_broker(tmp_path, 1, *identity(cluster)))
    assert message == "The broker did not start: another process is node 1: end it, or set another node.id here"
    assert cluster.nodes[1].is_running


def test_a_node_of_another_cluster_ends(cluster: Cluster, tmp_path: Path) -> None:
    controller, _ = identity(cluster)
    stranger = new_broker(tmp_path, 3, controller, new_id())
    stranger.log_path = tmp_path / "log"
    assert "no controller that leads this cluster was found within 1.5 s" in start_error(stranger)
    assert "bootstrap server 1 belongs to another cluster" in stranger.log_path.read_text()


def test_a_node_whose_controllers_do_not_resolve_ends(cluster: Cluster, tmp_path: Path) -> None:
    enough = {"initial.broker.registration.timeout.ms": "4000"}
    lost = new_broker(tmp_path, 3, "nowhere.invalid:9093", new_id(), **enough)
    lost.log_path = tmp_path / "log"
    assert "no controller that leads this cluster was found within 4 s" in start_error(lost)
    assert lost.log_path.read_text().count("the host name nowhere.invalid of another node does not resolve") == 1


def test_a_node_whose_controllers_do_not_accept_connections_ends(tmp_path: Path) -> None:
    with full_listener() as (host, port):
        assert "no controller that leads this cluster was found within 1.5 s" in start_error(
            new_broker(tmp_path, 3, f"{host}:{port}", new_id())
        )
