"""Barnabas: a Kafka-protocol broker; the face that a user's environment imports.

`barnabas.Broker` is looked up only when somebody asks for it, so that the daemon's start does not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.embedded import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    if name == "Broker":
        from barnabas.embedded import Broker

        return Broker
    raise AttributeError(f"module 'barnabas' has no attribute {name!r}")
