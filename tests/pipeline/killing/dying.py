"""A process that kills itself before its n-th change below a folder: every step of a commit can be the last one.

RULES    1. Counted is what Python itself does below the folder: renames, removals, new names, and syncs.
         2. The end is SIGKILL for the whole process group: nothing is cleaned up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "fsync")


def die_before(number: int, folder: str) -> None:
    """Have the change with this number be the one that does not happen."""
    counted = 0

    def wrap(step: str) -> None:
        really: Callable[..., Any] = getattr(os, step)

        def changes(*args: Any, **kwargs: Any) -> Any:
            nonlocal counted
            if _path(args[1] if step == "symlink" else args[0], kwargs.get("dir_fd")).startswith(folder):
                counted += 1
                if counted == number:
                    os.killpg(0, signal.SIGKILL)
            return really(*args, **kwargs)

        setattr(os, step, changes)

    for step in STEPS:
        wrap(step)


def _path(named: Any, dir_fd: int | None) -> str:
    """The whole path of what a call names: a descriptor, or a name that may be relative to one."""
    if isinstance(named, int):
        return os.readlink(f"/proc/self/fd/{named}")
    name = os.fsdecode(named)
    return name if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
