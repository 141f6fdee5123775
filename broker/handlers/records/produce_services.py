"""What the ways to answer a Produce share: the replicas, the timers, transactions, and who may write to which topic.

NOT HERE The ways: `produce.py`, `delayed_produce.py`, `produce_fast_path.py`.
"""

from __future__ import annotations

from typing import Final

from broker.coordinators.transactions.transaction_verification import TransactionVerification
from broker.handlers.router import RequestContext
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.errors import ErrorCode, KafkaError
from replication.metadata.topic_names import INTERNAL_TOPICS
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import TimerQueue

_ADMIN_CLIENT: Final = "__admin_client"  # the client id of Kafka's tools, which may write to internal topics
_FIRST_VERSION_WITH_IDS: Final = 13


class ProduceServices:
    """What a Produce needs of its broker."""

    def __init__(
        self,
        replicas: ReplicaManager,
        timers: TimerQueue,
        verification: TransactionVerification,
        authorizer: Authorizer,
    ) -> None:
        self.replicas = replicas
        self.timers = timers
        self.verification = verification
        self.authorizer = authorizer

    def topic_name(self, ctx: RequestContext, name: str, topic_id: bytes, *, log_denied: bool = True) -> str:
        """The name of a topic that the client may write to; `topic_id` is used in versions that have it.

        With `log_denied` false the audit log does not report a denial. Appending reports an internal topic that does not exist.

        Raises:
            KafkaError: the id is unknown, or the client may not write to the topic.
        """
        if ctx.api_version >= _FIRST_VERSION_WITH_IDS:
            topic_image = self.replicas.image.topics_by_id.get(topic_id)
            if topic_image is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = topic_image.name
        if not self.authorizer.authorize(ctx, Operation.WRITE, Resource.TOPIC, name, log_denied=log_denied):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        is_internal = name in INTERNAL_TOPICS and name in self.replicas.image.topics_by_name
        if is_internal and ctx.client_id != _ADMIN_CLIENT:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return name
