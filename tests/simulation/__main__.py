"""`make sim`: histories of the storage on a simulated disk."""

from __future__ import annotations

from tests.simulation.playing import play
from tests.simulation.running import run

if __name__ == "__main__":
    run("sim", "Plays histories of the storage on a simulated disk.", play)
