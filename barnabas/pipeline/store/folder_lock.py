"""A folder has one writer at a time, and a dead one leaves no lock behind.

The lock is of the opened file, not of the process: two threads of a notebook are two writers. A folder that holds
something else is refused, and nothing is made in it.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from barnabas.pipeline.errors import JobError


@contextlib.contextmanager
def held(own: Path) -> Iterator[None]:
    """Be the one who writes below `own`'s parent; the folder is made."""
    try:
        _refuse_strangers(own)
        own.mkdir(parents=True, exist_ok=True)
        lock = (own / "lock").open("w")
    except OSError as failure:
        raise JobError(f"{own.parent} cannot be written to: {failure.strerror}.") from failure
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            raise JobError(f"Another job writes to {own.parent}.") from failure
        yield


def _refuse_strangers(own: Path) -> None:
    if own.parent.exists() and not own.exists():
        for stranger in own.parent.iterdir():
            raise JobError(f"{own.parent} is not empty ({stranger.name}): name a folder of its own.")


def local_folder(path: Path | str) -> Path:
    """The folder, which is one of a file system: renames there are atomic, and can be made durable."""
    if "://" in str(path) or str(path).startswith(("hdfs:", "s3:", "s3a:", "gs:", "abfs:")):
        raise JobError(f"It must be a folder of a file system, and {path} names an object store.")
    return Path(path).absolute()
