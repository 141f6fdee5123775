"""`make sim-coordinators`: simulations of group and transaction coordinators that restart between any two batches."""

from __future__ import annotations

from tests.simulation.coordinators.simulator import simulate
from tests.simulation.runner import run

if __name__ == "__main__":
    run(
        "make sim-coordinators",
        "Simulates group and transaction coordinators that restart between any two batches.",
        simulate,
    )
