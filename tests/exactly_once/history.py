"""Histories on disk: each process writes its own file, line by line, so a kill keeps all complete lines.

FORMAT   A line is a JSON array: an Event without its client; the client is the file's name.
RULES    1. A line without a newline is the last one of its file; it is ignored.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.exactly_once.anomalies import Event


class History:
    """The history of one process."""

    def __init__(self, folder: Path, client: str) -> None:
        self._client = client
        self._file = (folder / f"{client}.jsonl").open("w", buffering=1, encoding="utf-8")

    def note(
        self, kind: str, transaction: str = "", topic: str = "", partition: int = -1, offset: int = -1, value: str = ""
    ) -> None:
        """Appends an event."""
        self._file.write(json.dumps([kind, transaction, topic, partition, offset, value]) + "\n")

    def close(self) -> None:
        self._file.close()


def read_histories(folder: Path) -> list[Event]:
    """All events of all clients, each client's in their order."""
    return [
        Event(file.stem, *json.loads(line))
        for file in sorted(folder.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True)
        if line.endswith("\n")
    ]
