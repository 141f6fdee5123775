"""Tests of whole clusters by simulation: fixed seeds, new seeds, determinism, planted bugs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.cluster import planted_bugs
from tests.simulation.cluster.simulator import simulate
from tests.simulation.runner import PlantedBug, bugs_in, check_new_seeds, check_seeds, finds

FIXED_SEEDS = 45
CHUNK = 15
NEW_S = 10.0
SEEDS_PER_BUG = 60
FIRST_SEED = {
    "the_high_watermark_ignores_joining_replicas": 28,
    "records_count_before_they_are_durable": 8,
    "followers_truncate_to_the_high_watermark": 1,
    "alter_partition_ignores_epochs": 91,
    "an_unclean_restart_changes_nothing": 1,
    "all_elections_are_unclean": 20,
    "a_new_controller_ignores_uncommitted_records": 1,
    "metadata_counts_before_it_is_durable": 3,
    "snapshots_miss_the_last_record": 2,
}
"""A seed that finds a bug which the first seeds do not find; it runs first."""

EVENT_LOGS = """
from tests.simulation.cluster.faults import FaultInjector
from tests.simulation.cluster.simulator import Simulation
for seed in (3, 4):
    simulation = Simulation(seed)
    FaultInjector(simulation).run()
    print(simulation.random.random(), *simulation.event_log, sep="\\n")
"""


@pytest.mark.parametrize("first", range(0, FIXED_SEEDS, CHUNK))
def test_the_invariants_hold_for_fixed_seeds(first: int) -> None:
    check_seeds(simulate, range(first, first + CHUNK))


@pytest.mark.long
def test_the_invariants_hold_for_new_seeds() -> None:
    check_new_seeds(simulate, NEW_S)


def test_a_seed_determines_the_simulation_in_every_process() -> None:
    """The hash seed of the process has no influence."""
    logs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", EVENT_LOGS]
        logs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert "the faults end" in logs[0]
    assert logs[0] == logs[1]


@pytest.mark.long
@pytest.mark.parametrize("plant", bugs_in(planted_bugs), ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert finds(simulate, (FIRST_SEED.get(plant.__name__, 0), *range(SEEDS_PER_BUG)))
