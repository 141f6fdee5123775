"""Writes files and directory entries durably."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, text: str) -> None:
    """Replaces a file atomically: temporary file, fsync, rename, fsync of the folder. A failure removes the temporary file."""
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
    """Calls fsync on a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
