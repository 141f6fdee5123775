"""A lock of the simulated product: a call that finds it held lets others run until it is free (concurrent_calls.py)."""

from __future__ import annotations

from tests.simulation.simulated_disk import SimulatedDisk


class HeldLock:
    """A lock that is not reentrant."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.is_held = False
        self._disk = disk

    def __enter__(self) -> None:
        while self.is_held:
            assert self._disk.switch is not None, "the lock is not reentrant"
            self._disk.switch()
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False
