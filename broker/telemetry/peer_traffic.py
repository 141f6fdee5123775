"""Requests and bytes of this node's connections to other nodes.

NOT HERE The connections (`broker/network/peer.py`).
"""

from __future__ import annotations


class PeerTraffic:
    """What the connections of one purpose have sent and received, authentication included (Kafka: Selector metrics)."""

    __slots__ = ("bytes_in", "bytes_out", "requests", "responses")

    def __init__(self) -> None:
        self.requests = self.responses = self.bytes_out = self.bytes_in = 0
