"""Whether what a recovery keeps is durable when the log is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.logs import SMALL, append, fill
from tests.unit.storage.test_power_loss import Machine, bases


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_what_a_recovery_keeps_is_durable_before_its_use_with_flush_messages(machine: Machine) -> None:
    config = replace(SMALL, flush_messages=1000)
    log = machine.log(config=config)
    fill(log, 30, step_ms=1)
    append(log, "x", epoch=3)
    assert len(log.open().engine.segments()) > 2
    assert log.flushed_end_offset == 0
    machine.start()
    assert machine.log(config=config).flushed_end_offset == 31
    machine.lose_power()
    log = machine.log()
    assert bases(log) == list(range(31))
    assert log.open().end_offset_for_epoch(3) == (3, 31)


def test_a_recovery_syncs_nothing_without_flush_messages(machine: Machine) -> None:
    fill(machine.log(), 30, step_ms=1)
    machine.start()
    assert (machine.log().log_end_offset, machine.log().flushed_end_offset) == (30, 0)
