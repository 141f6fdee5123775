"""The simulations of segments and of commit logs on disks that are full for a while.

RULES    1. While a disk is full, most calls that need space fail with ENOSPC (simulated_disk.py rule 5). Nothing goes offline:
            work waits in its queue and is retried, in order (work_queues.py rule 6), background work is given up. All other
            operations continue, retention and truncations too.
         2. Histories with even seeds have segments, the others commit logs.
         3. A stop, a move and the end find space again; a kill may happen on a full disk.
NOT HERE The operations and the invariants (tests/simulation/storage, tests/simulation/commitlog).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.commitlog.simulator import CommitLogOperations, CommitLogSimulation
from tests.simulation.runner import Failure
from tests.simulation.storage.operations import Operations
from tests.simulation.storage.simulator import STEPS, Simulation
from tests.simulation.storage.simulator import simulate as simulate_storage

if TYPE_CHECKING:
    from collections.abc import Callable


class FullDiskOperations(Operations):
    """Operations, also on a full disk."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        weights: dict[Callable[[], None], int] = {self.fill_disk: 4, simulation.free_disk: 3, self.retry: 6}
        self._all += weights
        self._all_weights += weights.values()

    def fill_disk(self) -> None:
        """The disk is full."""
        self._simulation.disk.is_full = True

    def retry(self) -> None:
        """Retry what waits for space."""
        self._simulation.queues.retry()

    def move(self) -> None:
        """Move a replica; a move without space is given up, which is not simulated."""
        self._simulation.free_disk()
        super().move()


class FullDiskSimulation(Simulation):
    """Logs in segments."""

    plays_full_disks = True
    operations_type = FullDiskOperations


class CommitLogFullDiskOperations(FullDiskOperations, CommitLogOperations):
    """The same with cleaning and settling."""


class CommitLogFullDiskSimulation(CommitLogSimulation):
    """Logs in commit logs."""

    plays_full_disks = True
    operations_type = CommitLogFullDiskOperations


def simulate(seed: int, steps: int = 2 * STEPS) -> Failure | None:
    """Run the simulation of a seed; None if all invariants hold."""
    simulated = CommitLogFullDiskSimulation if seed % 2 else FullDiskSimulation
    return simulate_storage(seed, steps=steps, simulated=simulated, part="-fulldisks")
