"""A node's wall clock, shifted by a preloaded library (`wrong_clock.c`)."""

from __future__ import annotations

from pathlib import Path

WRONG_BY = "clock-is-wrong-by"


def shift_clock(disk: Path, seconds: int) -> None:
    """Shifts the wall clock of the machine with this disk."""
    made = disk / "clock-being-set"
    made.symlink_to(str(seconds))
    made.rename(disk / WRONG_BY)


def restore_clock(disk: Path) -> None:
    (disk / WRONG_BY).unlink(missing_ok=True)
