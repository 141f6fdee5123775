"""`make sim-cluster`: simulations of a whole cluster on simulated disks, clocks and networks."""

from __future__ import annotations

from tests.simulation.cluster.simulator import simulate
from tests.simulation.runner import run

if __name__ == "__main__":
    run("make sim-cluster", "Simulates a whole cluster on simulated disks, clocks and networks.", simulate)
