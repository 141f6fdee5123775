"""The clock of a node: the time of day jumps there, outside the node's own code (`wrong_clock.c`)."""

from __future__ import annotations

from pathlib import Path

WRONG_BY = "clock-is-wrong-by"


def jump(disk: Path, seconds: int) -> None:
    """From now on the time of day is wrong by so much, on the machine with this disk."""
    made = disk / "clock-being-set"
    made.symlink_to(str(seconds))
    made.rename(disk / WRONG_BY)


def jump_back(disk: Path) -> None:
    """It is right again."""
    (disk / WRONG_BY).unlink(missing_ok=True)
