"""`make sim-coordinators`: histories of groups and transactions."""

from __future__ import annotations

from tests.simulation.coordinators.history import play
from tests.simulation.running import run

if __name__ == "__main__":
    run("sim-coordinators", "Plays histories of groups and transactions.", play)
