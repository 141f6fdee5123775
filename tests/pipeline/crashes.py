"""Simulated crashes of a job."""

from __future__ import annotations

from typing import Any


class Crash(BaseException):
    """The process ends here; no handler of the pipeline catches it."""


def crash(*_: Any, **__: Any) -> None:
    raise Crash
