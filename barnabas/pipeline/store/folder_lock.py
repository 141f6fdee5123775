"""An exclusive lock on a folder.

`flock` locks the open file, not the process: two threads of a notebook exclude each other, and the lock ends with its
process. A folder with other content is refused before anything is created in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from pathlib import Path

from barnabas.pipeline.errors import JobError

_PATTERN = re.compile(r"[{}\[\]*?\\]")


@contextlib.contextmanager
def lock_folder(internal: Path) -> Iterator[None]:
    """Locks the parent of `internal`; creates both. Raises JobError if another job holds the lock, or there are no locks."""
    try:
        _refuse_foreign_folder(internal)
        internal.mkdir(parents=True, exist_ok=True)
        lock = (internal / "lock").open("w")
    except OSError as failure:
        raise JobError(f"{internal.parent} cannot be written to: {failure.strerror}.") from failure
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as failure:
            raise JobError(f"Another job writes to {internal.parent}: wait until it ends.") from failure
        except OSError as failure:
            raise JobError(
                f"{internal.parent} cannot be locked: {failure.strerror}; use a file system with flock."
            ) from failure
        yield


def _refuse_foreign_folder(internal: Path) -> None:
    if internal.parent.exists() and not internal.exists():
        for other in internal.parent.iterdir():
            raise JobError(f"{internal.parent} is not empty ({other.name}): choose another folder.")


def local_folder(path: Path | str) -> Path:
    """Returns the absolute path.

    Raises JobError for an object store, where renames are not atomic, and for a path that Spark takes for a pattern.
    """
    if "://" in str(path) or str(path).startswith(("hdfs:", "s3:", "s3a:", "gs:", "abfs:")):
        raise JobError(f"{path} is in an object store: use a folder of a file system.")
    absolute = Path(path).absolute()
    if _PATTERN.search(str(absolute)):
        raise JobError(
            f"Spark takes {absolute} for a pattern of names: choose a folder without {{ }} [ ] * ? \\ in its path."
        )
    return absolute
