"""DescribeLogDirs and AlterReplicaLogDirs.

RULES    1. File systems and closed logs are measured by the reader thread of each directory; the response waits for all.
         2. An offline directory gets KAFKA_STORAGE_ERROR and has no logs.
         3. The offset lag is the distance to the high watermark; of a future replica, to the current log's end.
         4. A move is started here and continues in the background. For a repeated partition the last directory counts.
NOT HERE Sizes on disk (`storage/io/disk_usage.py`), moving (`replication/partition/log_dir_moves.py`).
"""

from __future__ import annotations

from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.common import PartitionError, Topic
from protocol.messages.logs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from replication.completion import Completion, all_done
from replication.io_executor import IoExecutor, IoResult
from replication.partition.log_dir_moves import LogDirMoves
from replication.partition.replica_manager import ReplicaManager
from storage.directories.log_manager import LogManager
from storage.io.disk_usage import DiskUsage
from storage.log.log import Log

_Requested = set[tuple[str, int]]


class LogDirsHandler(AuthorizingHandlers):
    """Answers DescribeLogDirs requests."""

    def __init__(
        self,
        log_manager: LogManager,
        replicas: ReplicaManager,
        moves: LogDirMoves,
        worker: IoExecutor,
        authorizer: Authorizer,
    ) -> None:
        self._moves = moves
        self._log_manager = log_manager
        self._replicas = replicas
        self._worker = worker
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, self.alter),
            Route(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, self.describe),
        ]

    def alter(self, ctx: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        """Handle AlterReplicaLogDirs."""
        is_allowed = self._is_authorized(ctx, Operation.ALTER)
        target_paths = {
            (topic.name, index): directory.path
            for directory in request.dirs
            for topic in directory.topics
            for index in topic.partitions
        }
        results: dict[str, AlterReplicaLogDirTopicResult] = {}
        for (name, index), path in target_paths.items():
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            if is_allowed:
                code = self._moves.alter(name, index, path)
            topic = results.setdefault(name, AlterReplicaLogDirTopicResult(topic_name=name, partitions=[]))
            topic.partitions.append(PartitionError(partition_index=index, error_code=code))
        return AlterReplicaLogDirsResponse(results=list(results.values()))

    def describe(
        self, ctx: RequestContext, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse | Completion[DescribeLogDirsResponse]:
        """Handle DescribeLogDirs."""
        if not self._is_authorized(ctx, Operation.DESCRIBE):
            return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results=[])
        requested = None
        if request.topics is not None:
            requested = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
        directories = self._log_manager.directories
        results = [
            DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path, topics=[])
            for path in (*directories, *self._log_manager.offline)
        ]
        measured = [self._measure(result, requested) for result in results if result.log_dir in directories]
        return all_done(measured).map(lambda _: DescribeLogDirsResponse(results=results))

    def _measure(self, result: DescribeLogDirsResult, requested: _Requested | None) -> Completion[None]:
        """Measure a directory on its thread and fill in its result."""
        path = result.log_dir
        unopened = [log for log in self._logs_in(path, requested) if not log.is_open]
        usage = self._log_manager.disk_usage(path, unopened)

        def on_measured(measured: IoResult) -> None:
            if measured.value is not None:
                self._replicas.directory_failed(path, measured.value)
            elif path in self._log_manager.directories:
                self._fill(result, usage, requested)

        return self._worker.read(path, usage.run).handle(on_measured)

    def _logs_in(self, path: str, requested: _Requested | None) -> list[Log]:
        directory = self._log_manager.directories.get(path)
        if directory is None:
            return []
        copies = [copy for copy in self._log_manager.future_logs.values() if copy.directory == path]
        logs = [*directory.logs.values(), *copies]
        return [log for log in logs if requested is None or (log.topic, log.partition) in requested]

    def _fill(self, result: DescribeLogDirsResult, usage: DiskUsage, requested: _Requested | None) -> None:
        path = result.log_dir
        result.error_code = ErrorCode.NONE
        result.total_bytes, result.usable_bytes = usage.total_bytes, usage.usable_bytes
        broker = self._replicas.image.brokers.get(self._replicas.broker_id)
        cordoned = () if broker is None else broker.cordoned_directories or ()
        result.is_cordoned = self._log_manager.directories[path].directory_id in cordoned
        topics: dict[str, Topic[DescribeLogDirsPartition]] = {}
        for log in self._logs_in(path, requested):
            topic = topics.setdefault(log.topic, Topic(name=log.topic, partitions=[]))
            topic.partitions.append(self._describe_log(log, usage))
        result.topics = list(topics.values())

    def _describe_log(self, log: Log, usage: DiskUsage) -> DescribeLogDirsPartition:
        key = (log.topic, log.partition)
        is_future = self._log_manager.future_logs.get(key) is log
        lag = 0
        if log.is_open:
            original = self._log_manager.logs.get(key, log)
            target_offset = original.log_end_offset if is_future and original.is_open else log.high_watermark
            lag = max(target_offset - log.log_end_offset, 0)
        return DescribeLogDirsPartition(
            partition_index=log.partition,
            partition_size=log.opened.engine.size_bytes if log.opened is not None else usage.sizes.get(log.path, 0),
            offset_lag=lag,
            is_future_key=is_future,
        )
