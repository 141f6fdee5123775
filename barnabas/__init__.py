"""Barnabas: a Kafka-protocol broker; the face that a user's environment imports.

`barnabas.Broker` and `barnabas.Cluster` are looked up only when somebody asks for them, so that the daemon's start does not
pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.cluster import Cluster
    from barnabas.embedded import Broker

__all__ = ["Broker", "Cluster"]


def __getattr__(name: str) -> object:
    if name == "Broker":
        from barnabas.embedded import Broker

        return Broker
    if name == "Cluster":
        from barnabas.cluster import Cluster

        return Cluster
    raise AttributeError(f"module 'barnabas' has no attribute {name!r}")
