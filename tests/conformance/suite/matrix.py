"""Records that every client writes with every codec, read by every client.

Each codec has a topic and each writer a partition; a cell is a writer and a reader.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.conformance.suite.driver_process import DriverEnded, Refused, Unsupported
from tests.conformance.suite.player import Player, error_name
from tests.conformance.suite.steps import Record, mismatch
from tests.conformance.suite.tables.records import CODECS, SHAPES

NOT_WRITTEN = " (the client does not write it)"


class Cell(NamedTuple):
    """The codecs that a reader read correctly from a writer, and the faults of the others."""

    whole: list[str]
    faults: list[str]


def fill(
    commands: Mapping[str, list[str]],
    bootstrap: str,
    codecs: Sequence[str] = CODECS,
    **security: Any,
) -> dict[tuple[str, str], Cell]:
    """Starts every client once; writes and reads everything. The cells by writer and reader.

    `security` is what `Player` takes.
    """
    cells = {(writer, reader): Cell([], []) for writer in commands for reader in commands}
    with contextlib.ExitStack() as stack:
        players = {
            name: stack.enter_context(Player(command, bootstrap, **security)) for name, command in commands.items()
        }
        for codec in codecs:
            _fill(cells, players, codec)
    return cells


def _fill(cells: Mapping[tuple[str, str], Cell], players: Mapping[str, Player], codec: str) -> None:
    topic = f"matrix-{codec}-{secrets.token_hex(4)}"
    next(iter(players.values())).ask("create_topic", topic=topic, count=len(players), configs={})
    written: dict[str, list[Record]] = {}
    for partition, (writer, player) in enumerate(players.items()):
        records = [record._replace(partition=partition) for record in SHAPES]
        try:
            player.ask("produce", topic=topic, records=records, codec=codec)
            written[writer] = records
        except Unsupported as why:
            for reader in players:
                cells[writer, reader].faults.append(f"{codec}: {why}{NOT_WRITTEN}")
    for reader, player in players.items():
        found, fault = _read(player, topic, written)
        for writer, records in written.items():
            mine = [one for one in found if one["partition"] == records[0].partition]
            wrong = fault or mismatch(records, mine)
            if wrong:
                cells[writer, reader].faults.append(f"{codec}: {wrong}")
            else:
                cells[writer, reader].whole.append(codec)


def _read(player: Player, topic: str, written: Mapping[str, list[Record]]) -> tuple[list[dict[str, Any]], str]:
    """What a client reads, and why it cannot."""
    partitions = [records[0].partition for records in written.values()]
    count = sum(map(len, written.values()))
    try:
        return player.ask("consume", topic=topic, partitions=partitions, count=count)["records"], ""
    except Refused as why:
        return [], f"{error_name(why.code)}: {why.message}"
    except (Unsupported, DriverEnded) as why:
        return [], str(why)
