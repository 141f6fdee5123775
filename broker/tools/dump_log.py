"""`barnabas dump-log`: the contents of log files, as text in the format of Kafka's tool, or as JSON.

RULES    1. An unreadable file does not stop the dump of the others; the exit status is 1.
         2. Lines go to standard output immediately; problems go to standard error, or are objects in JSON.
         3. On a terminal, control characters of records are escaped.
NOT HERE The contents of files (dump_rows.py), Kafka's lines (dump_text.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from broker.tools.dump_batches import Options, Row, UnknownFile, problem
from broker.tools.dump_rows import rows
from broker.tools.dump_text import line
from broker.tools.message_json import json_text
from protocol.primitives import json_value
from storage.io.disk import Disk, StorageError

_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}

Show = Callable[[str, Row], None]
"""Shows a row of a file."""


def dump_files(files: Iterable[str], options: Options, show: Show) -> int:
    """Dumps files; returns the exit status."""
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
    """Lines in the format of Kafka's tool."""
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
    """One object per line, each with the file's name."""

    def show(path: str, row: Row) -> None:
        if row["type"] != "file":
            shown = {name: json_value(value) if isinstance(value, bytes) else value for name, value in row.items()}
            out.write(json_text({"file": path, **shown}) + "\n")

    return show


def standard_output() -> TextIO:
    """Standard output that replaces unencodable characters."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    return sys.stdout
