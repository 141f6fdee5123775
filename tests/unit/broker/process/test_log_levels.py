"""Levels of loggers (broker/process/log_levels.py)."""

from __future__ import annotations

import logging

from broker.process.log_levels import change_log_levels, log_levels
from protocol.messages.admin import AlterableConfig
from replication.controller.configs.config_changes import AlterConfigOp

PARENT, CHILD = "barnabas.tested", "barnabas.tested.child"


def change(name: str, level: str | None) -> None:
    operation = AlterConfigOp.DELETE if level is None else AlterConfigOp.SET
    changes = [AlterableConfig(name=name, config_operation=operation, value=level)]
    change_log_levels(changes, validate_only=False)


def test_records_below_a_loggers_level_are_not_logged() -> None:
    child = logging.getLogger(CHILD)
    logging.getLogger(PARENT)
    change(PARENT, "WARN")
    assert (child.isEnabledFor(logging.INFO), child.isEnabledFor(logging.WARNING)) == (False, True)
    change(CHILD, "TRACE")
    assert child.isEnabledFor(logging.DEBUG - 1)
    change(CHILD, "FATAL")
    assert (child.isEnabledFor(logging.ERROR), child.isEnabledFor(logging.CRITICAL)) == (False, True)
    change(CHILD, None)
    assert (child.isEnabledFor(logging.INFO), child.isEnabledFor(logging.WARNING)) == (False, True)


def test_a_level_between_kafkas_is_described_as_the_next_higher_one() -> None:
    logging.getLogger(CHILD).setLevel(25)
    assert log_levels()[CHILD] == "WARN"
    logging.getLogger(CHILD).setLevel(99)
    assert log_levels()[CHILD] == "FATAL"
