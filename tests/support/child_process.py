"""Child processes that the kernel kills with their parent; their own children are not covered."""

from __future__ import annotations

from collections.abc import Sequence


def mortal(words: Sequence[str]) -> list[str]:
    """The command with a parent-death signal."""
    return ["setpriv", "--pdeathsig", "KILL", *words]
