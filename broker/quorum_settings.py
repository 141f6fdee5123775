"""Where the controllers are, as the settings say: a quorum of names that cannot change, or some to ask for the others.

NOT HERE Who votes in a quorum that can change: that stands in its log.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.config import BrokerConfig, ConfigError
from broker.network.peer import Address
from replication.raft.voters import Address as VoterAddress
from replication.raft.voters import ReplicaKey, Voter, VoterSet

VOTERS = "controller.quorum.voters"
BOOTSTRAP = "controller.quorum.bootstrap.servers"


class QuorumPlaces(NamedTuple):
    """What the settings say of the quorum."""

    static_voters: VoterSet
    """Empty where the voters stand in the log."""
    bootstrap: list[Address]
    """Whom to ask who leads, besides the voters that are known."""


def quorum_places(config: BrokerConfig) -> QuorumPlaces:
    """Read the settings.

    Raises:
        ConfigError: an address is none, or this controller has no vote.
    """
    listener = config.controller_listener_names[0] if config.controller_listener_names else "CONTROLLER"
    voters = []
    for text in _texts(config, VOTERS):
        node, separator, place = text.partition("@")
        address = _address(place)
        if not separator or not node.strip().isdigit() or address is None:
            raise ConfigError(f"{VOTERS}: {text!r} is not of the form id@host:port, such as 1@127.0.0.1:9093")
        voters.append(Voter(ReplicaKey(int(node)), (VoterAddress(listener, *address),)))
    ids = [voter.key.node_id for voter in voters]
    if voters and "controller" in config.roles and config.node_id not in ids:
        raise ConfigError(
            "If process.roles contains the 'controller' role, the node id "
            f"{config.node_id} must be included in the set of voters {VOTERS}={', '.join(map(str, ids))}"
        )
    bootstrap = []
    for text in _texts(config, BOOTSTRAP):
        address = _address(text)
        if address is None:
            raise ConfigError(f"{BOOTSTRAP}: {text!r} is not of the form host:port, such as 127.0.0.1:9093")
        bootstrap.append(address)
    return QuorumPlaces(VoterSet(voters), bootstrap)


def _texts(config: BrokerConfig, name: str) -> list[str]:
    value = config.value(name)
    assert isinstance(value, list), "it is a list"
    return [text.strip() for text in value if text.strip()]


def _address(text: str) -> Address | None:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) <= 65535:
        return None
    return Address(host.strip("[]"), int(port))
