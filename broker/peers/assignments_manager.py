"""Sends the log directories of this broker's replicas to the controller (AssignReplicasToDirs, KIP-858).

RULES    1. A replica is sent if its directory differs from the metadata or is not assigned there: when it is created or moved,
            and at startup, since a crash may have happened in between. So a directory that is missing at a later start is
            noticed, and its replicas are not created again empty.
         2. Assignments are batched. Clusters below the metadata.version of KIP-858 get none.
         3. After a refused request, as while this broker registers again (STALE_BROKER_EPOCH), its replicas are compared with
            the metadata and sent again, until the controller accepts them. A refused replica is only logged: its metadata have
            changed.
NOT HERE Moving replicas (`replication/partition/log_dir_moves.py`), the decision
         (`replication/controller/partitions/assign_replicas_to_dirs.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from broker.peers.broker_lifecycle import BrokerLifecycle
from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages.common import PartitionIndex, TopicById
from protocol.messages.quorum import (
    AssignReplicasToDirsDirectory,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from replication.completion import Completion
from replication.metadata.feature_levels import WITH_DIRECTORIES
from replication.metadata.image import MetadataImage
from replication.partition.partition import Partition
from replication.timer_queue import Clock, TimerQueue
from storage.directories.log_manager import LogManager

MAX_PARTITIONS_PER_REQUEST: Final = 256
_RETRY_MS: Final = 500

_log = logging.getLogger("barnabas.directories")

_Assignments = dict[bytes, dict[bytes, list[int]]]
"""Partitions by log directory id and topic id."""


@dataclass(eq=False)
class AssignmentsManager:
    """The directory assignments of one broker."""

    _channel: ControllerChannel
    _lifecycle: BrokerLifecycle
    _log_manager: LogManager
    _broker_id: int
    _timers: TimerQueue
    _clock: Clock

    def reconcile(self, partitions: Iterable[Partition], image: MetadataImage) -> Iterator[None]:
        """Sends the directories that differ from the metadata; yields after each partition."""
        if image.metadata_version < WITH_DIRECTORIES:
            return
        assignments: _Assignments = {}
        assigned: list[Partition] = []
        for number, partition in enumerate(partitions, 1):
            directory_id = self._log_manager.directory_ids[partition.log.directory]
            topic = image.topics_by_name.get(partition.topic)
            state = None if topic is None else topic.partitions.get(partition.index)
            if state is not None and state.directory_of(self._broker_id) != directory_id:
                assert partition.topic_id is not None, "a hosted partition is in the image"
                assignments.setdefault(directory_id, {}).setdefault(partition.topic_id, []).append(partition.index)
                assigned.append(partition)
            if number % MAX_PARTITIONS_PER_REQUEST == 0:
                self._send(assignments, assigned)
                assignments, assigned = {}, []
            yield
        self._send(assignments, assigned)

    def assign(self, partition: Partition) -> None:
        """Sends the directory of a partition that was moved."""
        self.reconcile_now([partition])

    def reconcile_now(self, partitions: Iterable[Partition]) -> None:
        """Sends the directories that differ from the published metadata, in one step."""
        for _ in self.reconcile(partitions, self._channel.image):
            pass

    def _send(self, assignments: _Assignments, assigned: Sequence[Partition]) -> None:
        if not assignments:
            return
        request = AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._lifecycle.epoch,
            directories=[
                AssignReplicasToDirsDirectory(
                    id=directory_id,
                    topics=[
                        TopicById(
                            topic_id=topic_id,
                            partitions=[PartitionIndex(partition_index=index) for index in indexes],
                        )
                        for topic_id, indexes in topics.items()
                    ],
                )
                for directory_id, topics in assignments.items()
            ],
        )
        self._channel.submit(request).then(partial(self._on_response, assigned))

    def _on_response(self, assigned: Sequence[Partition], done: Completion[AssignReplicasToDirsResponse]) -> None:
        response = done.result()
        if response.error_code != ErrorCode.NONE:
            name = ErrorCode(response.error_code).name
            _log.warning("the controller refused directory assignments: %s; sending them again", name)
            again = partial(self.reconcile_now, assigned)
            self._timers.schedule(self._clock.mono_ms() + _RETRY_MS, again)
            return
        replicas = [p for directory in response.directories for topic in directory.topics for p in topic.partitions]
        refused = [p.error_code for p in replicas if p.error_code != ErrorCode.NONE]
        if refused:
            _log.warning(
                "the controller refused the directory assignments of %d replicas: %s",
                len(refused),
                ErrorCode(refused[0]).name,
            )
