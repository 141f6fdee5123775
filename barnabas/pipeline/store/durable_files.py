"""Writes files and directory entries durably; reads and validates JSON files; computes digests.

RULES    1. A digest also detects changes that no record shows: readers skip row groups by the statistics in a Parquet footer.
"""

from __future__ import annotations

import hashlib
import json
import os
import typing
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from barnabas.pipeline.errors import JobError

T = TypeVar("T")
DIGESTS_AT_A_TIME = 4
RESTORE = "restore it from a backup"


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


def read_json(path: Path, parse: Callable[[Any], T], name: str = "", advice: str = RESTORE) -> T:
    """Returns the parsed content; errors name the file `name`, and `advice` tells what to do with a damaged one.

    Raises:
        FileNotFoundError: there is no file.
        JobError: it is unreadable or damaged.
    """
    try:
        return parse(json.loads(path.read_text()))
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise JobError(f"{name or path} cannot be read: {failure.strerror}.") from failure
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as failure:
        raise JobError(f"{name or path} is damaged: {failure}; {advice}.") from failure


def from_fields(kind: type[T], fields: dict[str, Any], former_names: Mapping[str, str] | None = None) -> T:
    """Builds a dataclass and checks the type of each value. Raises TypeError.

    `former_names` maps names of fields in older files to those of the dataclass.
    """
    fields = {(former_names or {}).get(name, name): value for name, value in fields.items()}
    instance: Any = kind(**fields)
    for name, expected in _field_types(typing.cast("Any", kind)):
        if not isinstance(getattr(instance, name), expected):
            raise TypeError(f"{name} is {fields[name]!r}")
    return typing.cast("T", instance)


@cache
def _field_types(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, origin if (origin := typing.get_origin(hint)) in {tuple, dict} else hint)
        for name, hint in typing.get_type_hints(kind).items()
    )


def sync(path: Path) -> None:
    """Calls fsync on a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digests(paths: Collection[Path]) -> dict[Path, str]:
    """Returns the SHA-256 digest of each file, in hex; reads several files at a time."""
    with ThreadPoolExecutor(DIGESTS_AT_A_TIME) as pool:
        return dict(zip(paths, pool.map(_digest, paths), strict=True))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
