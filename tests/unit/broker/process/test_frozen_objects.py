"""Objects that live long are frozen, garbage never (broker/process/frozen_objects.py)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from broker.process.frozen_objects import FrozenObjects


class Node:
    """An object that refers to itself is garbage that only a collection frees."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_objects_are_frozen_after_each_further_step() -> None:
    frozen, counts = FrozenObjects(10), []
    for count in (9, 10, 19, 5, 19, 20):
        frozen.grow(count)
        counts.append(gc.get_freeze_count() > 0)
        gc.unfreeze()
    assert counts == [False, True, False, False, False, True]


def test_garbage_is_freed_before_objects_are_frozen() -> None:
    garbage = weakref.ref(Node())
    FrozenObjects(1).grow(1)
    assert garbage() is None


def test_nothing_is_collected_during_the_start() -> None:
    garbage, frozen = weakref.ref(Node()), FrozenObjects(1)
    gc.disable()  # as `barnabas serve` does
    try:
        frozen.grow(1)
        assert garbage() is not None
        assert not gc.get_freeze_count()
    finally:
        gc.enable()
    frozen.grow(1)
    assert garbage() is not None, "nothing was added"
