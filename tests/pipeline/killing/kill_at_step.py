"""Kills this process before its n-th change below a folder, so that every step of a commit can be the last one.

RULES    1. Changes are Python's own calls below the folder: renames, removals, creations and fsyncs.
         2. The whole process group receives SIGKILL: nothing is cleaned up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "fsync")


def kill_before_change(number: int, folder: str) -> None:
    count_matches = 0

    def wrap(step: str) -> None:
        really: Callable[..., Any] = getattr(os, step)

        def changes(*args: Any, **kwargs: Any) -> Any:
            nonlocal count_matches
            if _path(args[1] if step == "symlink" else args[0], kwargs.get("dir_fd")).startswith(folder):
                count_matches += 1
                if count_matches == number:
                    os.killpg(0, signal.SIGKILL)
            return really(*args, **kwargs)

        setattr(os, step, changes)

    for step in STEPS:
        wrap(step)


def _path(named: Any, dir_fd: int | None) -> str:
    """The path that a call names: by descriptor, or relative to one."""
    if isinstance(named, int):
        return os.readlink(f"/proc/self/fd/{named}")
    name = os.fsdecode(named)
    return name if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
