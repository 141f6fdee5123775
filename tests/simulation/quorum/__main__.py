"""`make sim-quorum`: simulations of a metadata quorum with crashes and network faults."""

from __future__ import annotations

from tests.simulation.quorum.simulator import simulate
from tests.simulation.runner import run

if __name__ == "__main__":
    run("make sim-quorum", "Simulates a metadata quorum with crashes and network faults.", simulate)
