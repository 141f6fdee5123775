"""Records that every client writes with every codec, read by every client.

Each codec has a topic and each writer a partition; a cell is a writer and a reader.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.conformance.suite.driver_process import DriverEnded, Refused, Unsupported
from tests.conformance.suite.player import Player, error_name
from tests.conformance.suite.steps import Record, mismatch
from tests.conformance.suite.tables.records import CODECS, SHAPES

NOT_WRITTEN = " (the client does not write it)"


class Cell(NamedTuple):
    """The codecs that a reader read correctly from a writer, and the faults of the others."""

    whole: tuple[str, ...]
    faults: tuple[str, ...]


class Matrix:
    def __init__(self, players: Mapping[str, Player]) -> None:
        self._players = players
        self._whole: dict[tuple[str, str], list[str]] = {(w, r): [] for w in players for r in players}
        self._faults: dict[tuple[str, str], list[str]] = {(w, r): [] for w in players for r in players}

    def fill(self, codecs: Sequence[str]) -> dict[tuple[str, str], Cell]:
        """Writes and reads everything; the cells by writer and reader."""
        for codec in codecs:
            self._fill(codec)
        return {pair: Cell(tuple(self._whole[pair]), tuple(self._faults[pair])) for pair in self._whole}

    def _fill(self, codec: str) -> None:
        topic = f"matrix-{codec}-{secrets.token_hex(4)}"
        names = list(self._players)
        self._players[names[0]].ask("create_topic", topic=topic, count=len(names), configs={})
        written = {}
        for partition, writer in enumerate(names):
            records = [record._replace(partition=partition) for record in SHAPES]
            fault = self._written(writer, topic, codec, records)
            if fault is None:
                written[partition] = records
            else:
                for reader in names:
                    self._faults[writer, reader].append(f"{codec}: {fault}{NOT_WRITTEN}")
        for reader in names:
            self._read(reader, topic, codec, written)

    def _written(self, writer: str, topic: str, codec: str, records: list[Record]) -> str | None:
        try:
            self._players[writer].ask("produce", topic=topic, records=records, codec=codec)
        except Unsupported as why:
            return str(why)
        return None

    def _read(self, reader: str, topic: str, codec: str, written: Mapping[int, list[Record]]) -> None:
        names = list(self._players)
        count = sum(len(records) for records in written.values())
        fault, found = "", []
        try:
            found = self._players[reader].ask("consume", topic=topic, partitions=list(written), count=count)["records"]
        except Refused as why:
            fault = f"{error_name(why.code)}: {why.message}"
        except (Unsupported, DriverEnded) as why:
            fault = str(why)
        for partition, records in written.items():
            pair = names[partition], reader
            wrong = fault or mismatch(records, [one for one in found if one["partition"] == partition])
            if wrong:
                self._faults[pair].append(f"{codec}: {wrong}")
            else:
                self._whole[pair].append(codec)


def fill(
    commands: Mapping[str, list[str]], bootstrap: str, codecs: Sequence[str] = CODECS
) -> dict[tuple[str, str], Cell]:
    """Starts every client once and fills the matrix."""
    with contextlib.ExitStack() as stack:
        players = {name: stack.enter_context(Player(command, bootstrap)) for name, command in commands.items()}
        return Matrix(players).fill(codecs)
