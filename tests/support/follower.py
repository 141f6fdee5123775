"""Broker 2 of a cluster as its peers see it on the wire: it registers, sends heartbeats, and fetches from broker 1.

RULES    1. It has no log: the test chooses its fetch positions, so it can claim records that it does not hold.
         2. It runs in the test's thread and acts only when the test calls it.
         3. It works with any broker that has a controller listener, Apache Kafka included.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from protocol.messages import common, metadata, quorum
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.produce_fetch import FetchRequest
from protocol.messages.stored_records import BrokerEndpoint, BrokerFeature
from replication.metadata.feature_levels import SUPPORTED_FEATURES
from replication.metadata.image_records import stored_features
from tests.support.loading import Place, fetch_request, produce_request, topic
from tests.support.raw_client import RawClient
from tests.support.waiting import until

FAR = 2**40
"""A metadata offset above any other: the broker has applied everything."""
NEWEST_FETCH = 17


class PartitionView(NamedTuple):
    """A partition in client metadata; the ISR is sorted, because its order depends on the leader."""

    leader: int
    leader_epoch: int
    isr: list[int]
    eligible: list[int]
    last_known: list[int]


class Client:
    """A client of broker 1: creates and describes topics, produces and consumes."""

    def __init__(self, bootstrap: str) -> None:
        self.raw = RawClient(bootstrap)

    def create(self, name: str, *replicas: list[int], **settings: object) -> bytes:
        """Create a topic with these replicas; returns its id."""
        configs = [(key.replace("_", "."), str(value)) for key, value in settings.items()]
        wanted = topic(name, -1, -1, list(enumerate(replicas)), configs)
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False)
        (result,) = self.raw.ask(request, 7).topics
        assert result.error_code == 0, result
        until(lambda: self.describe(name) is not None, f"{name} is known")
        return result.topic_id  # type: ignore[no-any-return]

    def describe(self, name: str, index: int = 0) -> PartitionView | None:
        """A partition in this broker's metadata."""
        request = metadata.DescribeTopicPartitionsRequest(
            topics=[metadata.TopicRequest(name=name)], response_partition_limit=100
        )
        (topic,) = self.raw.ask(request, 0).topics
        if topic.error_code or index >= len(topic.partitions):
            return None
        p = topic.partitions[index]
        eligible, last_known = p.eligible_leader_replicas or [], p.last_known_elr or []
        return PartitionView(p.leader_id, p.leader_epoch, sorted(p.isr_nodes), eligible, last_known)

    def brokers(self) -> list[int]:
        """The brokers in client metadata."""
        return sorted(broker.node_id for broker in self.raw.ask(metadata.MetadataRequest(topics=[]), 12).brokers)

    def cluster_id(self) -> str:
        """The cluster id."""
        return self.raw.ask(metadata.DescribeClusterRequest(), 1).cluster_id  # type: ignore[no-any-return]

    def produce(self, name: str, batch: bytes, acks: int, *, timeout_ms: int = 20_000) -> Callable[[], int]:
        """Send a batch to partition 0; the result waits for the error code."""
        request = produce_request({name: [batch]}, acks=acks, timeout_ms=timeout_ms)
        self.raw.send(request, 9)
        return lambda: self.raw.receive(request, 9).responses[0].partition_responses[0].error_code

    def fetch(self, name: str, offset: int) -> tuple[int, int, bytes]:
        """Error code, high watermark and records of a consumer's fetch that does not wait."""
        (found,) = self.raw.ask(fetch_request(12, {(name, b"", 0): offset}), 12).responses[0].partitions
        return found.error_code, found.high_watermark, bytes(found.records or b"")


class Follower:
    """Broker 2, as its peers see it."""

    def __init__(self, bootstrap: str, controller: str, cluster_id: str, broker_id: int = 2) -> None:
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.incarnation = os.urandom(16)
        self.directory = os.urandom(16)
        self.epoch = -1
        self.session_id = 0
        self.session_epoch = 0
        self.leader = RawClient(bootstrap)
        self.controller = RawClient(controller)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leader.close()
        self.controller.close()

    # ------------------------------------------------------------ registration
    def register(self, version: int = 4, **changes: Any) -> quorum.BrokerRegistrationResponse:
        """Register; `changes` override request fields."""
        fields: dict[str, Any] = {
            "broker_id": self.broker_id,
            "cluster_id": self.cluster_id,
            "incarnation_id": self.incarnation,
            "listeners": [BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=1, security_protocol=0)],
            "features": features(),
            "rack": None,
            "log_dirs": [self.directory],
        }
        answer = self.controller.ask(quorum.BrokerRegistrationRequest(**{**fields, **changes}), version)
        assert isinstance(answer, quorum.BrokerRegistrationResponse)
        if not answer.error_code:
            self.epoch = answer.broker_epoch
        return answer

    def heartbeat(self, version: int = 2, **changes: Any) -> quorum.BrokerHeartbeatResponse:
        """Send a heartbeat, caught up and unfenced unless `changes` override it."""
        fields: dict[str, Any] = {
            "broker_id": self.broker_id,
            "broker_epoch": self.epoch,
            "current_metadata_offset": FAR,
            "want_fence": False,
            "want_shut_down": False,
        }
        answer = self.controller.ask(quorum.BrokerHeartbeatRequest(**{**fields, **changes}), version)
        assert isinstance(answer, quorum.BrokerHeartbeatResponse)
        return answer

    def alter_partition(
        self, topic_id: bytes, isr: list[int], leader_epoch: int, partition_epoch: int, version: int = 3, **changes: Any
    ) -> quorum.AlterPartitionResponsePartition:
        """Request an ISR of partition 0; `changes`: broker_epoch, epochs (of the members), recovery, index."""
        epochs = changes.get("epochs", {})
        partition = quorum.AlterPartitionRequestPartition(
            partition_index=changes.get("index", 0),
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            leader_recovery_state=changes.get("recovery", 0),
        )
        if version < 3:
            partition.new_isr = isr
        else:
            partition.new_isr_with_epochs = [
                quorum.BrokerState(broker_id=b, broker_epoch=epochs.get(b, -1)) for b in isr
            ]
        request = quorum.AlterPartitionRequest(
            broker_id=self.broker_id,
            broker_epoch=changes.get("broker_epoch", self.epoch),
            topics=[common.TopicById(topic_id=topic_id, partitions=[partition])],
        )
        answer = self.controller.ask(request, version)
        if answer.error_code:
            return quorum.AlterPartitionResponsePartition(partition_index=-1, error_code=answer.error_code)
        return answer.topics[0].partitions[0]  # type: ignore[no-any-return]

    # ------------------------------------------------------------ fetching
    def fetch(
        self,
        topic: tuple[str, bytes],
        offset: int,
        *,
        version: int = NEWEST_FETCH,
        leader_epoch: int = -1,
        last_epoch: int = -1,
        broker_epoch: int | None = None,
        max_wait_ms: int = 0,
    ) -> Any:
        """Fetch partition 0 outside of any session; returns PartitionData."""
        epochs = {"current_leader_epoch": leader_epoch, "last_fetched_epoch": last_epoch}
        request = self._request(version, {(*topic, 0): offset}, epochs, broker_epoch)
        request.max_wait_ms = max_wait_ms
        answer = self.leader.ask(request, version)
        assert answer.error_code == 0, answer
        return answer.responses[0].partitions[0]

    def fetch_in_session(self, topic: tuple[str, bytes] | None, offset: int = 0, *, version: int = NEWEST_FETCH) -> Any:
        """Fetch partition 0 in the session, which is created if needed; None: the response does not contain it."""
        request = self._request(version, {} if topic is None else {(*topic, 0): offset})
        request.session_id, request.session_epoch = self.session_id, self.session_epoch
        answer = self.leader.ask(request, version)
        assert answer.error_code == 0, answer
        self.session_id = answer.session_id
        self.session_epoch += 1
        return answer.responses[0].partitions[0] if answer.responses else None

    def _request(
        self,
        version: int,
        positions: dict[Place, int],
        epochs: dict[str, int] | None = None,
        broker_epoch: int | None = None,
    ) -> FetchRequest:
        epoch = self.epoch if broker_epoch is None else broker_epoch
        return fetch_request(version, positions, replica_id=self.broker_id, replica_epoch=epoch, partition=epochs)


def features(**changes: tuple[int, int]) -> list[BrokerFeature]:
    """The features of a Kafka 4.3 broker; dots are written as underscores."""
    return stored_features(
        {**SUPPORTED_FEATURES, **{name.replace("_", "."): levels for name, levels in changes.items()}}
    )
