"""Preloaded libraries between a node and the C library, for its disk and its clock.

RULES    1. Without a C compiler there are none, and neither disks nor clocks fail.
         2. Each call reads its orders from a file on the node's disk, so changes take effect at once.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.faults import disks

HERE = Path(__file__).parent
WRONG_BY = "clock-is-wrong-by"
SOURCES = ("failing_disk", "wrong_clock")


def libraries(folder: Path) -> list[Path]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return []
    built = [(HERE / f"{name}.c", folder / f"{name}.so") for name in SOURCES]
    for source, library in built:
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return [library for _, library in built]


def environment(built: Sequence[Path], disk: Path) -> list[str]:
    """The words before a command on a machine with this disk."""
    if not built:
        return []
    loaded = ":".join(map(str, built))
    return [
        "env",
        f"LD_PRELOAD={loaded}",
        f"FAULTS_DISK={disk / disks.FAULT_FILE}",
        f"FAULTS_CLOCK={disk / WRONG_BY}",
    ]


def shift_clock(disk: Path, seconds: int) -> None:
    """Shifts the wall clock of the machine with this disk."""
    made = disk / "clock-being-set"
    made.symlink_to(str(seconds))
    made.rename(disk / WRONG_BY)


def restore_clock(disk: Path) -> None:
    (disk / WRONG_BY).unlink(missing_ok=True)
