"""Files out of the page cache, so that the next read of them needs the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def evict(paths: Iterable[Path]) -> None:
    """Write files back and drop their pages; those that were deleted meanwhile are skipped."""
    for path in paths:
        with suppress(FileNotFoundError), path.open("rb+") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
