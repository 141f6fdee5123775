"""Barnabas, a Kafka-protocol broker: the package that users import.

`barnabas.Broker`, `barnabas.Cluster` and `barnabas.Security` are imported on first use, so that the daemon starts faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.cluster import Cluster
    from barnabas.embedded import Broker
    from barnabas.security import Security

__all__ = ["Broker", "Cluster", "Security"]


def __getattr__(name: str) -> object:
    if name == "Broker":
        from barnabas.embedded import Broker

        return Broker
    if name == "Cluster":
        from barnabas.cluster import Cluster

        return Cluster
    if name == "Security":
        from barnabas.security import Security

        return Security
    raise AttributeError(f"module 'barnabas' has no attribute {name!r}")
