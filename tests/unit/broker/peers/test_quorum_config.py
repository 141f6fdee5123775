"""Guards broker/peers/quorum_config.py: where the controllers are."""

from __future__ import annotations

import pytest

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.network.peer import Address
from broker.peers.quorum_config import knows_others, quorum_places

STARTED = {
    "node.id": "2",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
}


def test_voters_that_are_a_setting_have_no_directory() -> None:
    """Nobody knows it: any directory of theirs votes."""
    config = BrokerConfig({**STARTED, "controller.quorum.voters": "1@a:9093, 2@[::1]:9094"})
    voters = list(quorum_places(config).static_voters)
    assert [voter.key for voter in voters] == [(1, bytes(16)), (2, bytes(16))]
    assert [voter.addresses for voter in voters] == [(("CONTROLLER", "a", 9093),), (("CONTROLLER", "::1", 9094),)]


def test_bootstrap_servers_are_addresses() -> None:
    """In their order."""
    places = quorum_places(BrokerConfig({**STARTED, "controller.quorum.bootstrap.servers": "a:1,b:2"}))
    assert (places.bootstrap, len(places.static_voters)) == ([Address("a", 1), Address("b", 2)], 0)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("controller.quorum.voters", "one@a:9093", "id@host:port"),
        ("controller.quorum.voters", "1@a", "id@host:port"),
        ("controller.quorum.voters", "1@a:9093", "the node id 2 must be included in the set of voters"),
        ("controller.quorum.bootstrap.servers", "a:0", "host:port"),
    ],
)
def test_what_is_no_address_is_said(name: str, text: str, words: str) -> None:
    """In a sentence, before anything is touched."""
    with pytest.raises(ConfigError, match=words):
        quorum_places(BrokerConfig({**STARTED, name: text}))


def test_a_broker_need_not_be_a_voter() -> None:
    """It only follows."""
    config = BrokerConfig({**STARTED, "process.roles": "broker", "controller.quorum.voters": "1@a:9093"})
    assert quorum_places(config).static_voters.node_ids == [1]


def test_a_controller_that_others_cannot_reach_is_refused() -> None:
    """Alone it need not listen (decision 0016)."""
    settings = {**STARTED, "listeners": "PLAINTEXT://:9092"}
    assert quorum_places(BrokerConfig(settings)).bootstrap == []
    with pytest.raises(ConfigError, match="the other controllers must reach this one"):
        quorum_places(BrokerConfig({**settings, "controller.quorum.bootstrap.servers": "a:9093"}))


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
def test_a_node_knows_itself_among_the_bootstrap_servers(address: str, is_other: bool) -> None:
    """By what it advertises, or as this machine at its own port."""
    told = {"advertised.listeners": "CONTROLLER://own:9093", "controller.quorum.bootstrap.servers": address}
    config = BrokerConfig({**STARTED, **told})
    assert knows_others(config, quorum_places(config)) is is_other
