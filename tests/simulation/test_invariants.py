"""Tests by simulation: the invariants hold for fixed and for new seeds, and a seed determines its simulation."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.simulation.cluster.simulator import simulate as simulate_cluster
from tests.simulation.commitlog.simulator import simulate as simulate_commit_logs
from tests.simulation.coordinators.simulator import simulate as simulate_coordinators
from tests.simulation.fulldisks.simulator import simulate as simulate_full_disks
from tests.simulation.quorum.simulator import simulate as simulate_quorum
from tests.simulation.runner import Simulate, check_new_seeds, check_seeds
from tests.simulation.storage.simulator import Simulation as StorageSimulation
from tests.simulation.storage.simulator import simulate as simulate_storage
from tests.simulation.transactions.simulator import run_simulation as run_transactions
from tests.simulation.transactions.simulator import simulate as simulate_transactions


def seeds_of(name: str, simulate: Simulate, count: int, chunk: int) -> list[Any]:
    """The first seeds of a simulation, as one case per chunk; `make test` runs the first."""
    return [
        pytest.param(
            simulate, range(first, first + chunk), id=f"{name}-{first}", marks=[pytest.mark.long] if first else []
        )
        for first in range(0, count, chunk)
    ]


COMPACTING = partial(simulate_storage, is_compacting=True, steps=300)
FIXED_SEEDS = [
    *seeds_of("storage", simulate_storage, 400, 100),
    pytest.param(simulate_storage, [91706, 3980793518, 4253587705], id="storage-found-later"),
    *seeds_of("commitlog", simulate_commit_logs, 200, 100),
    pytest.param(
        simulate_commit_logs,
        [
            500015916,
            2205421837,
            308197547,
            3868463969,
            2843088862,
            2843091539,
            1334188111,
            3617262568,
            294383840,
            1953811205,
            1953841224,
            1703,
            504937956,
            3059015224,
        ],
        id="commitlog-found-later",
    ),
    *seeds_of("fulldisks", simulate_full_disks, 100, 50),
    *seeds_of("compaction", COMPACTING, 40, 20),
    pytest.param(COMPACTING, [81], id="compaction-81"),
    *seeds_of("coordinators", simulate_coordinators, 12, 6),
    *seeds_of("quorum", simulate_quorum, 10, 5),
    *seeds_of("cluster", simulate_cluster, 45, 9),
    pytest.param(simulate_cluster, [1287245166], id="cluster-1287245166"),
]
NEW_SEEDS = [
    pytest.param(simulate_storage, 10.0, 1500, id="storage", marks=pytest.mark.long),
    pytest.param(simulate_commit_logs, 10.0, 1500, id="commitlog", marks=pytest.mark.long),
    pytest.param(simulate_full_disks, 10.0, 1500, id="fulldisks", marks=pytest.mark.long),
    pytest.param(simulate_coordinators, 2.0, 1_000_000, id="coordinators", marks=pytest.mark.long),
    pytest.param(simulate_transactions, float("inf"), 25, id="transactions"),
    pytest.param(simulate_quorum, 10.0, 1_000_000, id="quorum", marks=pytest.mark.long),
    pytest.param(simulate_cluster, 10.0, 1_000_000, id="cluster", marks=pytest.mark.long),
]
EVENT_LOGS = """
from tests.simulation.cluster.faults import FaultInjector
from tests.simulation.cluster.simulator import Simulation
for seed in (3, 4):
    simulation = Simulation(seed)
    FaultInjector(simulation).run()
    print(simulation.random.random(), *simulation.event_log, sep="\\n")
"""


@pytest.mark.parametrize(("simulate", "seeds"), FIXED_SEEDS)
def test_the_invariants_hold_for_fixed_seeds(simulate: Simulate, seeds: Iterable[int]) -> None:
    check_seeds(simulate, seeds)


@pytest.mark.parametrize(("simulate", "seconds", "limit"), NEW_SEEDS)
def test_the_invariants_hold_for_new_seeds(simulate: Simulate, seconds: float, limit: int) -> None:
    check_new_seeds(simulate, seconds, limit=limit)


@settings(
    max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    print_blob=True,
)  # fmt: skip
@given(st.randoms(use_true_random=False))
def test_the_invariants_hold_for_short_storage_simulations_that_hypothesis_can_shrink(random: Random) -> None:
    simulation = StorageSimulation(random, steps=20)
    try:
        simulation.run()
    except AssertionError as error:
        error.add_note(f"after {simulation.trace}")
        raise


def test_a_seed_determines_the_cluster_simulation_in_every_process() -> None:
    """The hash seed of the process has no influence."""
    logs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", EVENT_LOGS]
        logs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert "the faults end" in logs[0]
    assert logs[0] == logs[1]


def test_a_seed_determines_the_storage_simulation_whenever_garbage_is_collected() -> None:
    """Files that only a collection closed would count against the limit of open files until then."""
    results = set()
    thresholds = gc.get_threshold()
    try:
        for threshold in (0, 3, 20, 50, 200):  # 0: no collections
            random = Random(5003021)
            gc.collect()
            gc.set_threshold(threshold, 2, 2)
            StorageSimulation(random, steps=30).run()
            results.add(random.random())
    finally:
        gc.set_threshold(*thresholds)
    assert len(results) == 1


@pytest.mark.parametrize("has_version_2", [True, False], ids=["version 2", "version 0"])
def test_a_kill_before_any_file_operation_of_a_transaction_loses_nothing(tmp_path: Path, has_version_2: bool) -> None:
    """The same simulation without a kill, then with one kill at each file operation."""
    operations = run_transactions(tmp_path / "whole", 0, [], has_version_2=has_version_2).file_operations
    assert operations > 10
    for kill in range(operations):
        run_transactions(tmp_path / str(kill), 0, [kill], has_version_2=has_version_2)
