"""Whether clients of this machine reach every broker that a node names to them: `barnabas health --advertised HOST:PORT`.

A client asks its bootstrap server once, and then connects to the addresses in the answer. If these are the addresses of another
network (a container's, those behind a forwarded port), the bootstrap works and the client does not.

FORMAT   The response to Metadata, version 1: brokers (id, host, port, rack), controller id, no topics.
NOT HERE The node's own health (`health.py`), logins: a listener with SASL does not say its addresses before.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from barnabas.client.plain_requests import METADATA, ask
from barnabas.client.wire import Fields

_TIMEOUT_S = 2.0


class BrokerAddress(NamedTuple):
    """A broker as a node's metadata name it to clients."""

    node_id: int
    host: str
    port: int


def find_unreachable(connection: socket.socket) -> list[str]:
    """A sentence for each broker of the node's metadata that does not answer; `connection` is one to the node.

    Raises:
        OSError: the node does not answer.
        ClientError: it answers with something else.
    """
    answer = ask(connection, METADATA)
    if not answer:
        raise OSError("the node does not say its addresses to a client without a login")
    return [sentence for broker in parse(answer) if (sentence := _try(broker))]


def parse(answer: bytes) -> list[BrokerAddress]:
    """The brokers in a response. Raises ClientError."""
    fields = Fields(answer)

    def broker() -> BrokerAddress:
        found = BrokerAddress(fields.number("i"), fields.text(), fields.number("i"))
        fields.text()  # its rack
        return found

    return fields.array(broker)


def _try(broker: BrokerAddress) -> str | None:
    """Why a broker cannot be reached."""
    try:
        socket.create_connection((broker.host, broker.port), _TIMEOUT_S).close()
    except (OSError, UnicodeError) as error:  # a name that no host can have is a UnicodeError
        reason = getattr(error, "strerror", None) or error
        return (
            f"clients are sent to node {broker.node_id} at {broker.host}:{broker.port}, which this machine does not reach "
            f"({reason}): set advertised.listeners of node {broker.node_id} to an address that it reaches"
        )
    return None
