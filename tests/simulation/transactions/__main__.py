"""`python -m tests.simulation.transactions`: simulations of a transactional producer whose broker is killed."""

from __future__ import annotations

from tests.simulation.runner import run
from tests.simulation.transactions.simulator import simulate

if __name__ == "__main__":
    run(
        "python -m tests.simulation.transactions",
        "Simulates a transactional producer whose broker is killed.",
        simulate,
    )
