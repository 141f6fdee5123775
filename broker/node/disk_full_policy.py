"""What a node does while a log directory is full: other brokers lead, and clients are redirected.

RULES    1. A broker with a full log directory asks to be fenced; so does one whose metadata log has no space, since it cannot
            apply new metadata. An active controller without space resigns.
         2. A broker that is fenced for a full disk leads no partition, whatever its metadata image says, until it is unfenced.
         3. If the metadata log has no space, this node does not learn the new leaders either. It rejects clients until it is
            unfenced: its metadata would direct them to this node again.
         4. The only active broker is never fenced, so its data stay readable.
NOT HERE Waiting for space (`worker_thread.py`), requests that are refused meanwhile
         (`replication/partition/appender.py`), the heartbeats (`broker_lifecycle.py`).
         Why: docs/decisions/0024-full-disks.md
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from broker.network.listener import Listener
from replication.metadata.metadata_publisher import MetadataPublisher

_log = logging.getLogger("barnabas.disk_full")

_REJECTING = (
    "rejecting clients: the metadata log has no disk space, so this node does not learn the leaders; free some space"
)
_ACCEPTING = "accepting clients again"


class DiskFullPolicy:
    """Which log directories of the node are full."""

    def __init__(
        self, broker_id: int, metadata_directory: str, publisher: MetadataPublisher, listeners: Sequence[Listener]
    ) -> None:
        self._broker_id = broker_id
        self._metadata_directory = metadata_directory
        self._publisher = publisher
        self._listeners = listeners
        self._full: set[str] = set()
        self._is_fenced = False
        self._is_rejecting = False
        self.on_change: Callable[[], None] = lambda: None
        """The controller should get a heartbeat."""
        self.on_metadata_log_full: Callable[[], None] = lambda: None
        """The metadata log has no space."""

    def has_space(self) -> bool:
        """Whether no directory is full."""
        return not self._full

    def space_changed(self, directory: str, has_space: bool) -> None:  # noqa: FBT001
        """A directory is full, or has space again."""
        if has_space:
            self._full.discard(directory)
        else:
            self._full.add(directory)
        if directory == self._metadata_directory and not has_space:
            self.on_metadata_log_full()
        self._update_listeners()
        self.on_change()

    def set_fenced(self, is_fenced: bool) -> None:  # noqa: FBT001
        """The controller has fenced this broker for a full disk, or has unfenced it."""
        self._is_fenced = is_fenced
        newest = self._publisher.newest
        image, changes = newest.without_leader(self._broker_id)
        self._publisher.publish_temporary(image if is_fenced else newest, changes)
        self._update_listeners()

    def _update_listeners(self) -> None:
        """Rejects clients until the broker is unfenced: with space again, it must first catch up (rule 3)."""
        is_rejecting = self._is_fenced and (self._is_rejecting or self._metadata_directory in self._full)
        if is_rejecting == self._is_rejecting:
            return
        self._is_rejecting = is_rejecting
        _log.warning(_REJECTING if is_rejecting else _ACCEPTING)
        for listener in self._listeners:
            listener.reject_clients(is_rejecting)
