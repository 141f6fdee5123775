"""The controllers in the settings (broker/peers/quorum_config.py)."""

from __future__ import annotations

import pytest

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.network.peer import HostAndPort
from broker.peers.quorum_config import has_other_controllers, load_quorum_config

STARTED = {
    "node.id": "2",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
}


def test_static_voters_have_no_directory_id() -> None:
    config = BrokerConfig({**STARTED, "controller.quorum.voters": "1@a:9093, 2@[::1]:9094"})
    voters = list(load_quorum_config(config).static_voters)
    assert [voter.key for voter in voters] == [(1, bytes(16)), (2, bytes(16))]
    assert [voter.addresses for voter in voters] == [(("CONTROLLER", "a", 9093),), (("CONTROLLER", "::1", 9094),)]


def test_bootstrap_servers_are_addresses() -> None:
    quorum_config = load_quorum_config(BrokerConfig({**STARTED, "controller.quorum.bootstrap.servers": "a:1,b:2"}))
    assert (quorum_config.bootstrap, len(quorum_config.static_voters)) == (
        [HostAndPort("a", 1), HostAndPort("b", 2)],
        0,
    )


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("controller.quorum.voters", "one@a:9093", "id@host:port"),
        ("controller.quorum.voters", "1@a", "id@host:port"),
        ("controller.quorum.voters", "²@a:9093", "id@host:port"),
        ("controller.quorum.voters", "2@a:9093,2147483648@b:9093", "id@host:port"),
        ("controller.quorum.voters", "1@a:9093", "the node id 2 must be included in the set of voters"),
        ("controller.quorum.bootstrap.servers", "a:0", "host:port"),
        ("controller.quorum.bootstrap.servers", "a:²", "host:port"),
    ],
)
def test_a_malformed_address_is_a_sentence(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_quorum_config(BrokerConfig({**STARTED, name: text}))


def test_a_static_voter_without_the_role_of_a_controller_is_refused() -> None:
    """The other voters could not reach it: it would count for the majority, and never vote."""
    given = {"node.id": "2", "process.roles": "broker", "controller.quorum.voters": "1@a:9093,2@b:9093"}
    with pytest.raises(ConfigError, match=r"the node id 2 must not be included in the set of voters .*=1, 2$"):
        load_quorum_config(BrokerConfig(given))
    assert load_quorum_config(BrokerConfig({**given, "node.id": "3"})).static_voters.node_ids == [1, 2]


def test_a_broker_need_not_be_a_voter() -> None:
    config = BrokerConfig({**STARTED, "process.roles": "broker", "controller.quorum.voters": "1@a:9093"})
    assert load_quorum_config(config).static_voters.node_ids == [1]


def test_a_controller_without_a_listener_is_refused_if_there_are_others() -> None:
    settings = {**STARTED, "listeners": "PLAINTEXT://:9092"}
    assert load_quorum_config(BrokerConfig(settings)).bootstrap == []
    with pytest.raises(ConfigError, match="the other controllers must reach this one"):
        load_quorum_config(BrokerConfig({**settings, "controller.quorum.bootstrap.servers": "a:9093"}))


@pytest.mark.parametrize(
    ("address", "is_other"),
    [
        ("localhost:9093", False),
        ("127.0.0.1:9093", False),
        ("own:9093", False),
        ("localhost:9094", True),
        ("b:9093", True),
    ],
)
def test_a_node_recognises_itself_among_the_bootstrap_servers(address: str, is_other: bool) -> None:
    advertised = {"advertised.listeners": "CONTROLLER://own:9093", "controller.quorum.bootstrap.servers": address}
    config = BrokerConfig({**STARTED, **advertised})
    assert has_other_controllers(config, load_quorum_config(config)) is is_other
