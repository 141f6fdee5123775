"""Ends a job before its n-th change below a folder, so that every step of a commit can be the last one.

RULES    1. Changes are Python's own calls below the folder: renames, removals, creations, links and fsyncs.
         2. A process is ended with its whole process group, by SIGKILL: nothing is cleaned up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "link", "fsync")


def kill_process() -> None:
    os.killpg(0, signal.SIGKILL)


def end_before_change(
    number: int, folder: str, end: Callable[[], object] = kill_process, replace: Callable[..., None] = setattr
) -> None:
    """Calls `end` before the change with this number; `replace` puts a function into a module."""
    count_matches = 0

    def wrap(step: str) -> None:
        really: Callable[..., Any] = getattr(os, step)

        def changes(*args: Any, **kwargs: Any) -> Any:
            nonlocal count_matches
            if _path(args[1] if step == "symlink" else args[0], kwargs.get("dir_fd")).startswith(folder):
                count_matches += 1
                if count_matches == number:
                    end()
            return really(*args, **kwargs)

        replace(os, step, changes)

    for step in STEPS:
        wrap(step)


def _path(named: Any, dir_fd: int | None) -> str:
    """The path that a call names: by descriptor, or relative to one."""
    if isinstance(named, int):
        return os.readlink(f"/proc/self/fd/{named}")
    name = os.fsdecode(named)
    return name if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
