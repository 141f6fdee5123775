"""Histories on disk: each client writes its own, line by line, so that whoever kills it leaves what it had written.

FORMAT   a line is a JSON array: an Event without its client, whose name is that of the file
RULES    1. A line that a kill cut off is the last one of its file, and has not happened.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.exactly_once.anomalies import Event


class History:
    """What one life of a client writes down."""

    def __init__(self, folder: Path, who: str) -> None:
        self._who = who
        self._file = (folder / f"{who}.jsonl").open("w", buffering=1, encoding="utf-8")

    def note(
        self,
        what: str,
        transaction: str = "",
        topic: str = "",
        partition: int = -1,
        offset: int = -1,
        value: str = "",
    ) -> None:
        """Write down that something happened."""
        self._file.write(json.dumps([what, transaction, topic, partition, offset, value]) + "\n")

    def close(self) -> None:
        """Nothing more happens."""
        self._file.close()


def read_histories(folder: Path) -> list[Event]:
    """All events of all clients, each client's in their order."""
    return [
        Event(file.stem, *json.loads(line))
        for file in sorted(folder.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True)
        if line.endswith("\n")
    ]
