"""Tells the controller in which log directory replicas lie (AssignReplicasToDirs, in process).

RULES    1. A replica that has moved is told of at once; one that lies elsewhere than the metadata say, because a crash came
            between, at the start.
         2. A directory that the metadata do not name (a broker with several chooses by itself) needs no telling.
NOT HERE Moving (`replication/moves.py`), the decision (`replication/controller/directories.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from broker.timer import SystemClock
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AssignReplicasToDirsDirectory,
    AssignReplicasToDirsPartition,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsTopic,
)
from replication.controller.controller import Controller
from replication.image import UNASSIGNED_DIRECTORY
from replication.partition import Partition
from storage.log_manager import LogManager

_log = logging.getLogger("barnabas.directories")


class DirectoryRequests:
    """What one broker has to tell."""

    def __init__(self, controller: Controller, log_manager: LogManager, broker_id: int, clock: SystemClock) -> None:
        self._controller = controller
        self._log_manager = log_manager
        self._broker_id = broker_id
        self._clock = clock

    def check(self, partitions: Iterable[Partition]) -> None:
        """Tell where those lie of which the metadata say something else."""
        for partition in partitions:
            self.tell(partition)

    def tell(self, partition: Partition) -> None:
        """Tell where a partition lies, if the metadata name another directory."""
        home = self._log_manager.directories.get(partition.log.directory)
        named = self._named(partition)
        if home is None or named in (UNASSIGNED_DIRECTORY, home.directory_id):
            return
        assert partition.topic_id is not None, "what is here is in the image, by its id"
        topic = AssignReplicasToDirsTopic(
            topic_id=partition.topic_id,
            partitions=[AssignReplicasToDirsPartition(partition_index=partition.index)],
        )
        request = AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._controller.broker_epoch,
            directories=[AssignReplicasToDirsDirectory(id=home.directory_id, topics=[topic])],
        )
        self._controller.submit(
            request, wall_ms=self._clock.wall_ms(), reply=lambda answer: self._answered(partition, answer)
        )

    def _named(self, partition: Partition) -> bytes:
        """The directory that the metadata name."""
        topic = self._controller.image.topics_by_name.get(partition.topic)
        state = None if topic is None else topic.partitions.get(partition.index)
        if state is None:
            return UNASSIGNED_DIRECTORY
        return dict(zip(state.replicas, state.directories, strict=False)).get(self._broker_id, UNASSIGNED_DIRECTORY)

    @staticmethod
    def _answered(partition: Partition, answer: AssignReplicasToDirsResponse) -> None:
        code = answer.error_code or answer.directories[0].topics[0].partitions[0].error_code
        if code != ErrorCode.NONE:
            name = ErrorCode(code).name
            _log.warning("where %s-%d lies is not noted: %s", partition.topic, partition.index, name)
