"""`make sim-quorum`: histories of a quorum of controllers."""

from __future__ import annotations

from tests.simulation.quorum.playing import play
from tests.simulation.running import run

if __name__ == "__main__":
    run("sim-quorum", "Plays histories of a quorum of controllers.", play)
