"""A daemon with a controller listener that other nodes can reach."""

from __future__ import annotations

import re

from barnabas.embedded import Broker

WITH_CONTROLLER = {"listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"}


def controller_of(broker: Broker) -> str:
    """The controller endpoint that a daemon logs."""
    found = re.search(r"the controller listens on (\S+)", broker.log())
    assert found, broker.log()
    return found[1]
