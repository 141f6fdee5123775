"""The settings of the pytest plugin. The fixtures are used by all other tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.pytest_plugin import _settings


def config(*lines: str) -> Any:
    return SimpleNamespace(getini=lambda _: list(lines))


def test_lines_may_have_blanks_around_the_name() -> None:
    assert _settings(config("num.partitions = 4", "log.dirs=/a=b")) == {
        "group.initial.rebalance.delay.ms": "100", "num.partitions": "4", "log.dirs": "/a=b"
    }  # fmt: skip


def test_a_line_without_a_value_is_a_sentence() -> None:
    with pytest.raises(pytest.UsageError, match=r"barnabas_settings: 'num\.partitions' is not of the form name=value"):
        _settings(config("num.partitions"))
