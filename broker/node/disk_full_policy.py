"""What a node does while one of its directories is full: others lead, and its clients ask others.

RULES    1. A broker with a full log directory wants to be fenced, and so does one whose metadata log finds no room: it does
            not hear what is decided. A controller without room hands over.
         2. Who is fenced for that leads nothing, whatever its metadata say, until it is fenced no more.
         3. If the metadata log has no room, it does not hear who leads instead either: it turns its clients away, so that
            they ask others, until it is fenced no more. Its answers would send them in circles.
         4. The only active broker is never fenced: there is still what can be read.
NOT HERE What waits for room (`worker_thread.py`), what is refused meanwhile (`replication/partition/replica_manager.py`), how it is said and
         heard (`broker_lifecycle.py`). Why: docs/decisions/0024-a-full-disk-is-a-delay.md
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from replication.metadata.metadata_publisher import Publisher

_log = logging.getLogger("barnabas.full_disks")

_TURNED_AWAY = "clients are turned away: the metadata log has no room, so this node does not hear who leads"
_MAY_COME = "clients may come in again"


class Receives(Protocol):
    """Where clients come in."""

    def turn_away(self, turns_away: bool) -> None:  # noqa: FBT001
        """Whether they may not come in for now."""


class FullDisks:
    """The directories of one node, as far as room goes."""

    def __init__(
        self, broker_id: int, metadata_directory: str, publisher: Publisher, clients: Sequence[Receives]
    ) -> None:
        """All have room.

        Args:
            broker_id: this broker.
            metadata_directory: where its metadata log is.
            publisher: of the metadata as this node is to see them.
            clients: the listeners of clients.
        """
        self._broker_id = broker_id
        self._metadata_directory = metadata_directory
        self._publisher = publisher
        self._clients = clients
        self._full: set[str] = set()
        self._is_aside = False
        self._turns_away = False
        self.on_change: Callable[[], None] = _nothing
        """The controller should hear of it."""
        self.on_deaf: Callable[[], None] = _nothing
        """The metadata log has no room."""

    def has_room(self) -> bool:
        """Whether none of them is full."""
        return not self._full

    def changed(self, directory: str, has_room: bool) -> None:  # noqa: FBT001
        """A directory is full, or has room again."""
        if has_room:
            self._full.discard(directory)
        else:
            self._full.add(directory)
        if directory == self._metadata_directory and not has_room:
            self.on_deaf()
        self._turn_away()
        self.on_change()

    def stand_aside(self, is_aside: bool) -> None:  # noqa: FBT001
        """The controller has fenced this broker for a full disk, or does no more."""
        self._is_aside = is_aside
        newest = self._publisher.newest
        image, changes = newest.led_by_others(self._broker_id)
        self._publisher.show(image if is_aside else newest, changes)
        self._turn_away()

    def _turn_away(self) -> None:
        """Once it does, it waits for rule 3's end: with room it has to catch up first."""
        turns_away = self._is_aside and (self._turns_away or self._metadata_directory in self._full)
        if turns_away == self._turns_away:
            return
        self._turns_away = turns_away
        _log.warning(_TURNED_AWAY if turns_away else _MAY_COME)
        for receives in self._clients:
            receives.turn_away(turns_away)


def _nothing() -> None:
    pass
