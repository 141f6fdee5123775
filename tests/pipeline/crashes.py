"""Simulated crashes of a job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Crash(BaseException):
    """The process ends here; no handler of the pipeline catches it."""


def crash(*_: Any, **__: Any) -> None:
    raise Crash


def crash_before(
    monkeypatch: pytest.MonkeyPatch, last: int, path_methods: tuple[str, ...], os_functions: tuple[str, ...]
) -> None:
    """Crashes before the call with this number of these functions, which change the disk."""
    calls = 0

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == last:
                raise Crash
            return function(*args, **kwargs)

        return call

    for target, names in ((Path, path_methods), (os, os_functions)):
        for name in names:
            monkeypatch.setattr(target, name, counting(getattr(target, name)))
