"""`make sim`: simulations of the storage engine on a disk that loses power."""

from __future__ import annotations

from tests.simulation.runner import run
from tests.simulation.storage.simulator import simulate

if __name__ == "__main__":
    run("make sim", "Simulates the storage engine on a disk that loses power.", simulate)
