"""`make sim-cluster`: histories of a whole cluster."""

from __future__ import annotations

from tests.simulation.cluster.playing import play
from tests.simulation.running import run

if __name__ == "__main__":
    run("sim-cluster", "Plays histories of a whole cluster.", play)
