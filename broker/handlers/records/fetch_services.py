"""What the ways to answer a Fetch share: the replicas, the sessions, and who may read how much of what.

NOT HERE The ways: `fetch.py`, `delayed_fetch.py`, `fetch_fast_path.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.handlers.records.fetch_sessions import FetchedPartition, FetchSessions
from broker.handlers.router import RequestContext
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.errors import ErrorCode, KafkaError
from replication.partition.partition import CONSUMER, Reader
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory
from storage.log.log_reader import Isolation

DEFAULT_MAX_BYTES: Final = 55 * 1024 * 1024
_FIRST_VERSION_WITH_RACK: Final = 11

SelectReplica = Callable[[str, int, int, str, str], "int | None"]
"""(topic, partition, offset, client rack, listener) -> preferred read replica (KIP-392)."""


class FetchServices:
    """What a Fetch needs of its broker."""

    def __init__(
        self,
        replicas: ReplicaManager,
        sessions: FetchSessions,
        purgatory: Purgatory,
        authorizer: Authorizer,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """A response has at most `max_bytes` (fetch.max.bytes), except for a first batch."""
        self.replicas = replicas
        self.sessions = sessions
        self.purgatory = purgatory
        self.authorizer = authorizer
        sessions.authorizer_version = lambda: authorizer.version
        self.max_bytes = max_bytes
        self.select_replica: SelectReplica | None = None
        """Set together with `sessions.sends_high_watermarks`."""
        self._consumers = {
            (isolation, leader_only): Reader(CONSUMER, isolation, leader_only)
            for isolation in (Isolation.HIGH_WATERMARK, Isolation.LAST_STABLE)
            for leader_only in (True, False)
        }

    def topic_name(self, topic_id: bytes, partition: FetchedPartition | None = None) -> str:
        """The name of a topic, of which a fetch has this partition.

        Raises:
            KafkaError: the id is unknown; if the partition knows the name, the topic was deleted, or created again.
        """
        image = self.replicas.image
        topic = image.topics_by_id.get(topic_id)
        if topic is not None:
            return topic.name
        if partition is None or partition.topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        successor = image.topics_by_name.get(partition.topic)
        is_replaced = successor is not None and partition.index in successor.partitions
        raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID if is_replaced else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def authorize_consumer(
        self, ctx: RequestContext, topic: str, references: Callable[[], int] | None = None, *, log_denied: bool = True
    ) -> None:
        """Require READ on a topic, of which a request names several partitions.

        With `log_denied` false the audit log does not report a denial.

        Raises:
            KafkaError: the client may not read it.
        """
        if not self.authorizer.authorize(
            ctx, Operation.READ, Resource.TOPIC, topic, log_denied=log_denied, references=references
        ):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def response_max_bytes(self, requested: int) -> int:
        """The limit of a response to a client that accepts `requested` bytes."""
        return min(requested, self.max_bytes)

    def consumer(self, isolation: Isolation, version: int) -> Reader:
        """The reader for consumers; only versions with a rack id may read from followers (KIP-392)."""
        return self._consumers[isolation, version < _FIRST_VERSION_WITH_RACK]
