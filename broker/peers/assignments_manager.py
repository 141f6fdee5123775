"""Tells the controller in which log directory replicas lie, and which directories failed (AssignReplicasToDirs).

RULES    1. A replica is told of when it lies elsewhere than the metadata say, or they do not say: when it is made, when it has
            moved, and at the start, since a crash may have come between. So a directory that is not there at a later start
            is missed, and nothing is made anew in its place.
         2. Many are told of at a time. Clusters that do not note directories are told nothing.
NOT HERE Moving (`replication/partition/log_dir_moves.py`), the decision (`replication/controller/partitions/assign_replicas_to_dirs.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from broker.peers.broker_lifecycle import BrokerLife
from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AssignReplicasToDirsDirectory,
    AssignReplicasToDirsPartition,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsTopic,
)
from replication.metadata.feature_levels import WITH_DIRECTORIES
from replication.metadata.image import MetadataImage, PartitionState
from replication.metadata_log.kraft_replica import Clock
from replication.partition.partition import Partition
from storage.directories.log_manager import LogManager

AT_A_TIME: Final = 256

_log = logging.getLogger("barnabas.directories")

_Places = dict[bytes, dict[bytes, list[int]]]
"""By directory and topic."""


class DirectoryRequests:
    """What one broker has to tell."""

    def __init__(
        self, channel: ControllerChannel, life: BrokerLife, log_manager: LogManager, broker_id: int, clock: Clock
    ) -> None:
        self._channel = channel
        self._life = life
        self._log_manager = log_manager
        self._broker_id = broker_id
        self._clock = clock

    def check(self, partitions: Iterable[Partition], image: MetadataImage) -> Iterator[None]:
        """Tell where those lie of which the metadata say something else, a step for each."""
        if image.metadata_version < WITH_DIRECTORIES:
            return
        places: _Places = {}
        for number, partition in enumerate(partitions, 1):
            place = self._log_manager.directory_ids[partition.log.directory]
            state = _state_of(partition, image)
            if state is not None and state.directory_of(self._broker_id) != place:
                assert partition.topic_id is not None, "what is here is in the image, by its id"
                places.setdefault(place, {}).setdefault(partition.topic_id, []).append(partition.index)
            if number % AT_A_TIME == 0:
                self._tell(places)
                places = {}
            yield
        self._tell(places)

    def tell(self, partition: Partition) -> None:
        """Tell where a partition lies that has moved."""
        for _ in self.check([partition], self._channel.image):
            pass

    def failed(self, directory: str) -> None:
        """Tell that a log directory is out of service."""
        self._life.failed(self._log_manager.directory_ids[directory])

    def _tell(self, places: _Places) -> None:
        if not places:
            return
        request = AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._life.epoch,
            directories=[
                AssignReplicasToDirsDirectory(
                    id=place,
                    topics=[
                        AssignReplicasToDirsTopic(
                            topic_id=topic_id,
                            partitions=[AssignReplicasToDirsPartition(partition_index=index) for index in indexes],
                        )
                        for topic_id, indexes in topics.items()
                    ],
                )
                for place, topics in places.items()
            ],
        )
        self._channel.submit(request, wall_ms=self._clock.wall_ms(), reply=_answered)


def _state_of(partition: Partition, image: MetadataImage) -> PartitionState | None:
    topic = image.topics_by_name.get(partition.topic)
    return None if topic is None else topic.partitions.get(partition.index)


def _answered(answer: AssignReplicasToDirsResponse) -> None:
    codes = [p.error_code for directory in answer.directories for topic in directory.topics for p in topic.partitions]
    refused = [code for code in (answer.error_code, *codes) if code != ErrorCode.NONE]
    if refused:
        _log.warning("where %d replicas lie is not noted: %s", len(refused), ErrorCode(refused[0]).name)
