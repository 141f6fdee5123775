"""Where the controllers are, as the settings say: a quorum of names that cannot change, or some to ask for the others.

NOT HERE Who votes in a quorum that can change: that stands in its log.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.network.peer import Address
from replication.raft.voters import Address as VoterAddress
from replication.raft.voters import ReplicaKey, Voter, VoterSet

VOTERS = "controller.quorum.voters"
BOOTSTRAP = "controller.quorum.bootstrap.servers"
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")


class QuorumPlaces(NamedTuple):
    """What the settings say of the quorum."""

    static_voters: VoterSet
    """Empty where the voters stand in the log."""
    bootstrap: list[Address]
    """Whom to ask who leads, besides the voters that are known."""


def quorum_places(config: BrokerConfig) -> QuorumPlaces:
    """Read the settings.

    Raises:
        ConfigError: an address is none, this controller has no vote, or others cannot reach it.
    """
    listener = config.controller_listener_names[0] if config.controller_listener_names else "CONTROLLER"
    voters = []
    for text in _texts(config, VOTERS):
        node, separator, place = text.partition("@")
        address = parse_address(place)
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
        address = parse_address(text)
        if address is None:
            raise ConfigError(f"{BOOTSTRAP}: {text!r} is not of the form host:port, such as 127.0.0.1:9093")
        bootstrap.append(address)
    places = QuorumPlaces(VoterSet(voters), bootstrap)
    if "controller" in config.roles and not config.controller_listeners and knows_others(config, places):
        raise ConfigError(
            "controller.listener.names must contain at least one value appearing in the 'listeners' configuration when running "
            "the KRaft controller role: the other controllers must reach this one"
        )
    return places


def knows_others(config: BrokerConfig, places: QuorumPlaces) -> bool:
    """Whether the settings name another controller than the one of this node."""
    if places.static_voters:
        return places.static_voters.node_ids != [config.node_id]
    return any(not _is_own(config, address) for address in places.bootstrap)


def _is_own(config: BrokerConfig, address: Address) -> bool:
    """Whether this is where this node's controller listens; nobody else can, at the machine's own name and the same port."""
    told = config.advertised_listeners
    return any(
        address == Address(endpoint.host, endpoint.port)
        or (address.port == endpoint.port and address.host in _THIS_MACHINE)
        for listener in config.controller_listeners
        for endpoint in (listener, told.get(listener.name, listener))
    )


def _texts(config: BrokerConfig, name: str) -> list[str]:
    value = config.value(name)
    assert isinstance(value, list), "it is a list"
    return [text.strip() for text in value if text.strip()]


def parse_address(text: str) -> Address | None:
    """Of the form host:port; None: it is not."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) <= 65535:
        return None
    return Address(host.strip("[]"), int(port))
