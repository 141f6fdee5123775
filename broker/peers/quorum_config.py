"""The controllers in the settings: static voters, or bootstrap servers of a dynamic quorum (KIP-853).

NOT HERE The voters of a dynamic quorum: they are in its log.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.config.broker_config import MAX_PORT, BrokerConfig, ConfigError, is_number
from broker.network.peer import HostAndPort
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from storage.config.config_def import MAX_INT

VOTERS = "controller.quorum.voters"
BOOTSTRAP = "controller.quorum.bootstrap.servers"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class QuorumConfig(NamedTuple):
    """The settings of the quorum."""

    static_voters: VoterSet
    """Empty if the quorum is dynamic."""
    bootstrap: list[HostAndPort]
    """The nodes to query for the leader, besides the voters."""


def load_quorum_config(config: BrokerConfig) -> QuorumConfig:
    """Reads the settings.

    Raises:
        ConfigError: an address is malformed, this controller is no voter, this voter is no controller, or other controllers
            cannot reach it.
    """
    listener = config.controller_listener_names[0] if config.controller_listener_names else "CONTROLLER"
    voters = []
    for text in filter(None, config.texts(VOTERS)):
        node, separator, address_text = text.partition("@")
        address = parse_host_port(address_text)
        if not separator or not is_number(node.strip(), MAX_INT) or address is None:
            raise ConfigError(f"{VOTERS}: {text!r} is not of the form id@host:port, such as 1@127.0.0.1:9093")
        voters.append(Voter(ReplicaKey(int(node)), (ListenerAddress(listener, *address),)))
    ids = [voter.key.node_id for voter in voters]
    if voters and "controller" in config.roles and config.node_id not in ids:
        raise ConfigError(
            "If process.roles contains the 'controller' role, the node id "
            f"{config.node_id} must be included in the set of voters {VOTERS}={', '.join(map(str, ids))}"
        )
    if config.roles == {"broker"} and config.node_id in ids:
        raise ConfigError(
            f"If process.roles contains just the 'broker' role, the node id {config.node_id} must not be included in the set "
            f"of voters {VOTERS}={', '.join(map(str, ids))}"
        )
    bootstrap = []
    for text in filter(None, config.texts(BOOTSTRAP)):
        address = parse_host_port(text)
        if address is None:
            raise ConfigError(f"{BOOTSTRAP}: {text!r} is not of the form host:port, such as 127.0.0.1:9093")
        bootstrap.append(address)
    quorum_config = QuorumConfig(VoterSet(voters), bootstrap)
    if (
        "controller" in config.roles
        and not config.controller_listeners
        and has_other_controllers(config, quorum_config)
    ):
        raise ConfigError(
            "controller.listener.names must contain at least one value appearing in the 'listeners' configuration when running "
            "the KRaft controller role: the other controllers must reach this one"
        )
    return quorum_config


def has_other_controllers(config: BrokerConfig, quorum_config: QuorumConfig) -> bool:
    """Whether the settings name a controller on another node."""
    if quorum_config.static_voters:
        return quorum_config.static_voters.node_ids != [config.node_id]
    return any(not _is_local(config, address) for address in quorum_config.bootstrap)


def _is_local(config: BrokerConfig, address: HostAndPort) -> bool:
    """Whether this node's controller listens there: a loopback address with its port, or one of its own addresses."""
    advertised = config.advertised_listeners
    return any(
        address == HostAndPort(endpoint.host, endpoint.port)
        or (address.port == endpoint.port and address.host in _LOOPBACK)
        for listener in config.controller_listeners
        for endpoint in (listener, advertised.get(listener.name, listener))
    )


def parse_host_port(text: str) -> HostAndPort | None:
    """Parses host:port; None if it is malformed."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not is_number(port, MAX_PORT) or not int(port):
        return None
    return HostAndPort(host.strip("[]"), int(port))
