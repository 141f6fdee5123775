"""A folder has one writer at a time, and a dead one leaves no lock behind.

The lock is of the opened file, not of the process: two threads of a notebook are two writers.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from barnabas.pipeline.trouble import JobError


@contextlib.contextmanager
def held(own: Path) -> Iterator[None]:
    """Be the one who writes below `own`'s parent; the folder is made."""
    try:
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


def local_folder(path: Path | str) -> Path:
    """The folder, which is one of a file system: renames there are atomic, and can be made durable."""
    if "://" in str(path) or str(path).startswith(("hdfs:", "s3:", "s3a:", "gs:", "abfs:")):
        raise JobError(f"It must be a folder of a file system, and {path} names an object store.")
    return Path(path).absolute()
