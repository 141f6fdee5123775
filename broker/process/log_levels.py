"""The levels of this process's loggers, shown and changed at run time (KIP-412).

RULES    1. Levels have Apache Kafka's names. A logger without a level inherits its parent's.
         2. Checks, their order, error codes and messages are those of Apache Kafka 4.3 (RuntimeLoggerManager); only an unknown
            operation, which is a server error there, differs.
         3. Changes last until the process ends; they are not in the metadata log.
NOT HERE Authorization and requests (`handlers/admin/topics.py`), describing them (`handlers/admin/configs.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import AlterableConfig
from replication.controller.configs.config_changes import AlterConfigOp

_log = logging.getLogger("barnabas")

ROOT = "root"
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_LISTS = {AlterConfigOp.APPEND: "APPEND", AlterConfigOp.SUBTRACT: "SUBTRACT"}


def log_levels() -> dict[str, str]:
    """The effective level of every logger, by name."""
    names = [name for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)]
    return {name: _level_of(_logger(name)) for name in (ROOT, *sorted(names))}


def change_log_levels(changes: Iterable[AlterableConfig], *, validate_only: bool) -> None:
    """Changes the levels of loggers: all of them or none.

    Raises:
        KafkaError: an unknown logger, level or operation.
    """
    known = log_levels()
    for change in changes:
        _check(change, known)
    if not validate_only:
        for change in changes:
            _apply(change)


def _check(change: AlterableConfig, known: Iterable[str]) -> None:
    name, operation, level = change.name, change.config_operation, change.value
    if operation in _LISTS:
        sentence = f"{_LISTS[operation]} operation is not allowed for the BROKER_LOGGER resource"
        raise KafkaError(ErrorCode.INVALID_REQUEST, sentence)
    if operation not in (AlterConfigOp.SET, AlterConfigOp.DELETE):
        sentence = f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource"
        raise KafkaError(ErrorCode.INVALID_REQUEST, sentence)
    if name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == AlterConfigOp.SET and level not in _LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(_LEVELS))}",
        )
    if operation == AlterConfigOp.DELETE and name == ROOT:
        sentence = f"Removing the log level of the {ROOT} logger is not allowed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, sentence)


def _apply(change: AlterableConfig) -> None:
    if change.config_operation == AlterConfigOp.DELETE or change.value is None:
        _logger(change.name).setLevel(logging.NOTSET)
        _log.warning("unset the log level of %s", change.name)
    else:
        _logger(change.name).setLevel(_LEVELS[change.value])
        _log.warning("set the log level of %s to %s", change.name, change.value)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _level_of(logger: logging.Logger) -> str:
    """The lowest level that the logger emits."""
    number = logger.getEffectiveLevel()
    return next((name for name, lowest in _LEVELS.items() if lowest >= number), "FATAL")
