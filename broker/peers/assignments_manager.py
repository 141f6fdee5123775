"""Sends the log directories of this broker's replicas to the controller (AssignReplicasToDirs, KIP-858).

RULES    1. A replica is sent if its directory differs from the metadata or is not assigned there: when it is created or moved,
            and at startup, since a crash may have happened in between. So a directory that is missing at a later start is
            noticed, and its replicas are not created again empty.
         2. Assignments are batched. Clusters below the metadata.version of KIP-858 get none.
NOT HERE Moving replicas (`replication/partition/log_dir_moves.py`), the decision
         (`replication/controller/partitions/assign_replicas_to_dirs.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
from storage.directories.log_manager import LogManager

MAX_PARTITIONS_PER_REQUEST: Final = 256

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

    def reconcile(self, partitions: Iterable[Partition], image: MetadataImage) -> Iterator[None]:
        """Sends the directories that differ from the metadata; yields after each partition."""
        if image.metadata_version < WITH_DIRECTORIES:
            return
        assignments: _Assignments = {}
        for number, partition in enumerate(partitions, 1):
            directory_id = self._log_manager.directory_ids[partition.log.directory]
            topic = image.topics_by_name.get(partition.topic)
            state = None if topic is None else topic.partitions.get(partition.index)
            if state is not None and state.directory_of(self._broker_id) != directory_id:
                assert partition.topic_id is not None, "a hosted partition is in the image"
                assignments.setdefault(directory_id, {}).setdefault(partition.topic_id, []).append(partition.index)
            if number % MAX_PARTITIONS_PER_REQUEST == 0:
                self._send(assignments)
                assignments = {}
            yield
        self._send(assignments)

    def assign(self, partition: Partition) -> None:
        """Sends the directory of a partition that was moved."""
        for _ in self.reconcile([partition], self._channel.image):
            pass

    def _send(self, assignments: _Assignments) -> None:
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
        self._channel.submit(request).then(_on_response)


def _on_response(done: Completion[AssignReplicasToDirsResponse]) -> None:
    response = done.result()
    codes = [p.error_code for directory in response.directories for topic in directory.topics for p in topic.partitions]
    refused = [code for code in (response.error_code, *codes) if code != ErrorCode.NONE]
    if refused:
        _log.warning(
            "the controller refused the directory assignments of %d replicas: %s",
            len(refused),
            ErrorCode(refused[0]).name,
        )
