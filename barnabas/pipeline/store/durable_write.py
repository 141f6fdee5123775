"""Files and names that survive the machine."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, text: str) -> None:
    """A file that is there whole or not at all, also after the machine went down, or on a full disk."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(text)
        sync(beside)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    beside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have a file's bytes, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
