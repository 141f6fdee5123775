"""SHA-256 digests of files.

RULES    1. A digest also detects changes that no record shows: readers skip row groups by the statistics in a Parquet footer.
         2. The driver reads the files, several at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_A_TIME = 4


def digests(paths: Collection[Path]) -> dict[Path, str]:
    """Returns the SHA-256 digest of each file, in hex."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return dict(zip(paths, pool.map(_digest, paths), strict=True))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
