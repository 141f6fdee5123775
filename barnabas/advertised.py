"""Whether clients of this machine reach every broker that a node names to them: `barnabas health --advertised HOST:PORT`.

A client asks its bootstrap server once, and then connects to the addresses in the answer. If these are the addresses of another
network (a container's, those behind a forwarded port), the bootstrap works and the client does not.

FORMAT   Metadata, version 1, of no topic: correlation id, brokers (id, host, port, rack), controller id, no topics.
NOT HERE The node's own health (`health.py`), logins: a listener with SASL does not say its addresses before.
"""

from __future__ import annotations

import socket
from struct import Struct
from typing import NamedTuple

_METADATA = b"\x00\x03\x00\x01\x00\x00\x00\x02\xff\xff\x00\x00\x00\x00"  # version 1, correlation id 2, no topic
_INT = Struct(">i")
_TIMEOUT_S = 2.0
_MOST_BYTES = 1 << 20


class BrokerAddress(NamedTuple):
    """A broker as a node's metadata name it to clients."""

    node_id: int
    host: str
    port: int


def find_unreachable(connection: socket.socket) -> list[str]:
    """A sentence for each broker of the node's metadata that does not answer; `connection` is one to the node.

    Raises:
        OSError: the node does not answer.
    """
    connection.sendall(_INT.pack(len(_METADATA)) + _METADATA)
    with connection.makefile("rb") as stream:
        size = stream.read(4)
        answer = stream.read(min(int.from_bytes(size, "big"), _MOST_BYTES))
    if len(size) < 4 or len(answer) < 8:
        raise OSError("the node does not say its addresses to a client without a login")
    return [sentence for broker in parse(answer) if (sentence := _try(broker))]


def parse(answer: bytes) -> list[BrokerAddress]:
    """The brokers in a response."""
    (count,) = _INT.unpack_from(answer, 4)
    position, found = 8, []
    for _ in range(count):
        (node_id,) = _INT.unpack_from(answer, position)
        host, position = _string(answer, position + 4)
        (port,) = _INT.unpack_from(answer, position)
        _, position = _string(answer, position + 4)
        found.append(BrokerAddress(node_id, host, port))
    return found


def _string(answer: bytes, position: int) -> tuple[str, int]:
    length = max(int.from_bytes(answer[position : position + 2], "big", signed=True), 0)
    end = position + 2 + length
    return answer[position + 2 : end].decode(), end


def _try(broker: BrokerAddress) -> str | None:
    """Why a broker cannot be reached."""
    try:
        socket.create_connection((broker.host, broker.port), _TIMEOUT_S).close()
    except OSError as error:
        return (
            f"clients are sent to node {broker.node_id} at {broker.host}:{broker.port}, which this machine does not reach "
            f"({error.strerror or error}): set advertised.listeners of node {broker.node_id} to an address that it reaches"
        )
    return None
