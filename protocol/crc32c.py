"""CRC-32C, the checksum of batches: the C function of the package crc32c.

RULES    1. The package itself is not imported, only its extension module: the package imports argparse, email and
            importlib.metadata, a twelfth of the time of a start.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder
from typing import Any, Final, Protocol


class Crc32c(Protocol):
    """The checksum of `data`, continuing from that of the data before."""

    def __call__(self, data: Any, crc: int = 0) -> int:
        """Takes any contiguous buffer."""


def _load() -> Crc32c:
    package = importlib.util.find_spec("crc32c")
    folders = package.submodule_search_locations if package is not None else None
    extension = PathFinder.find_spec("_crc32c", folders)
    if folders is None or extension is None or extension.loader is None:
        raise ImportError("the package crc32c has no extension module _crc32c; reinstall it: pip install crc32c")
    module = importlib.util.module_from_spec(extension)
    extension.loader.exec_module(module)
    function: Crc32c = module.crc32c
    return function


crc32c: Final = _load()
