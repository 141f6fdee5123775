"""`barnabas dump-log`: what stands in the files of a log, for people, for the greps that Kafka's tool has and for programs.

RULES    1. One file that cannot be shown does not keep the others from it; the exit status is 1 then.
         2. Lines go to standard output as they are found; what is wrong with a file goes to standard error, or with JSON
            is an object among the others.
         3. A terminal gets control characters shown, not sent: a record may hold any.
NOT HERE What the files hold (dump_rows.py), Kafka's lines (dump_text.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from broker.tools.dump_rows import Options, Row, UnknownFile, problem, rows, shown_bytes
from broker.tools.dump_text import line
from broker.tools.message_json import json_text
from storage.io.disk import Disk, StorageError

_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}

Show = Callable[[str, Row], None]
"""Shows a row of the file of a name."""


def dump_files(files: Iterable[str], options: Options, show: Show) -> int:
    """Show some files; the exit status."""
    disk = Disk()
    is_whole = True
    for path in files:
        show(path, {"type": "file"})
        try:
            for row in rows(disk, path, options):
                is_whole &= row["type"] != "problem"
                show(path, row)
        except (StorageError, UnknownFile) as error:
            show(path, problem(str(error)))
            is_whole = False
    return 0 if is_whole else 1


def as_text(out: TextIO, problems: TextIO, *, skip_record_metadata: bool) -> Show:
    """Lines as Kafka's tool writes them."""
    is_terminal = out.isatty()

    def show(path: str, row: Row) -> None:
        if row["type"] == "file":
            out.write(f"Dumping {path}\n")
        elif row["type"] == "problem":
            out.flush()
            problems.write(f"barnabas: {row['text'].translate(_SHOWN)}\n")
        else:
            text = line(row, skip_record_metadata=skip_record_metadata)
            out.write((text.translate(_SHOWN) if is_terminal else text) + "\n")

    return show


def as_json(out: TextIO) -> Show:
    """One object a line, each with the name of the file."""

    def show(path: str, row: Row) -> None:
        if row["type"] != "file":
            shown = {name: _jsonable(value) for name, value in row.items()}
            out.write(json_text({"file": path, **shown}) + "\n")

    return show


def _jsonable(value: Any) -> Any:
    return shown_bytes(value) if isinstance(value, bytes) else value


def standard_output() -> TextIO:
    """Standard output that takes every character."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    return sys.stdout
