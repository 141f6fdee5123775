"""The rest of a cluster for deliverers: coordinators and a target topic in memory; requests and responses are lost or late.

RULES    1. A request is handled when the test says so, in any order, even after its sender is gone. Its response arrives, or is
            lost: the sender gets None.
         2. The coordinator fences by epochs and knows one transaction, as in transactions of version 2.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.common import PartitionError, Topic
from protocol.messages.groups import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetsTopic,
)
from protocol.messages.metadata import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.produce_fetch import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from protocol.records import Record, parse_header, records
from protocol.schema import Message
from replication.completion import Completion

PRODUCER_ID = 7
_MAX_BYTES = 1 << 20


class DeliveryCluster:
    """See the module."""

    def __init__(self, rng: random.Random, loss: float) -> None:
        """`loss` is the share of requests whose response is lost."""
        self._rng = rng
        self._loss = loss
        self._waiting: list[tuple[Message, Completion[Message | None]]] = []
        self._epoch = -1
        self._open: dict[tuple[int, int], bytes] = {}  # batches by partition and sequence
        self._open_offset: tuple[int, int, str | None] | None = None
        self.committed: list[tuple[int, Record]] = []
        """Partition and record, as readers of committed records see them."""
        self.offset: tuple[int, int, str | None] = (-1, -1, None)
        """Offset, leader epoch and metadata that are committed."""
        self.refuses: Callable[[Record], bool] = lambda _: False
        """Records that the target refuses."""
        self.on_append: Callable[[Record], None] = lambda _: None
        self.largest_batch = 0
        """Size of the largest batch that was sent, in bytes."""

    def send(self, _node: int, request: Message) -> Completion[Message | None]:
        """Queues a request."""
        response: Completion[Message | None] = Completion()
        self._waiting.append((request, response))
        return response

    @property
    def is_idle(self) -> bool:
        """Whether no request waits."""
        return not self._waiting

    @property
    def has_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._open) or self._open_offset is not None

    def step(self) -> None:
        """Handles one waiting request."""
        if not self._waiting:
            return
        request, response = self._waiting.pop(self._rng.randrange(len(self._waiting)))
        is_lost = self._rng.random() < self._loss
        if is_lost and self._rng.random() < 0.3:
            response.complete(None)  # the request was lost
            return
        result = self._handle(request)
        response.complete(None if is_lost else result)

    def _handle(self, request: Any) -> Message:
        if isinstance(request, FindCoordinatorRequest):
            found = [
                Coordinator(key=key, node_id=1, host="", port=0, error_code=0, error_message=None)
                for key in request.coordinator_keys
            ]
            return FindCoordinatorResponse(coordinators=found)
        if isinstance(request, InitProducerIdRequest):
            self._abort()
            self._epoch += 1
            return InitProducerIdResponse(error_code=0, producer_id=PRODUCER_ID, producer_epoch=self._epoch)
        if isinstance(request, OffsetFetchRequest):
            return self._fetch_offset(request)
        if isinstance(request, ProduceRequest):
            return self._produce(request)
        if isinstance(request, TxnOffsetCommitRequest):
            return self._commit_offset(request)
        assert isinstance(request, EndTxnRequest)
        return self._end(request)

    def _fetch_offset(self, request: OffsetFetchRequest) -> Message:
        (group,) = request.groups
        assert group.topics is not None
        (topic,) = group.topics
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT if self._open_offset is not None else ErrorCode.NONE
        partition = OffsetFetchResponsePartition(
            partition_index=topic.partition_indexes[0],
            committed_offset=self.offset[0],
            committed_leader_epoch=self.offset[1],
            metadata=self.offset[2],
            error_code=code,
        )
        topics = [OffsetsTopic(name=topic.name, topic_id=topic.topic_id, partitions=[partition])]
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)])

    def _produce(self, request: ProduceRequest) -> Message:
        responses = []
        for topic in request.topic_data:
            results = []
            for data in topic.partition_data:
                assert isinstance(data.records, bytearray)
                batch = bytes(data.records)
                header = parse_header(batch)
                self.largest_batch = max(self.largest_batch, len(batch))
                code = ErrorCode.NONE
                found = records(batch, 0, header, max_bytes=_MAX_BYTES)
                if header.producer_epoch != self._epoch:
                    code = ErrorCode.INVALID_PRODUCER_EPOCH
                elif any(map(self.refuses, found)):
                    code = ErrorCode.MESSAGE_TOO_LARGE
                else:
                    for record in found:
                        self.on_append(record)
                    self._open[data.index, header.base_sequence] = batch
                results.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=0))
            responses.append(TopicProduceResponse(name=topic.name, partition_responses=results))
        return ProduceResponse(responses=responses)

    def _commit_offset(self, request: TxnOffsetCommitRequest) -> Message:
        code = ErrorCode.NONE
        (topic,) = request.topics
        (partition,) = topic.partitions
        if request.producer_epoch == self._epoch:
            self._open_offset = (
                partition.committed_offset, partition.committed_leader_epoch, partition.committed_metadata
            )  # fmt: skip
        else:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        result = PartitionError(partition_index=partition.partition_index, error_code=code)
        return TxnOffsetCommitResponse(topics=[Topic(name=topic.name, partitions=[result])])

    def _end(self, request: EndTxnRequest) -> Message:
        if request.producer_epoch != self._epoch:
            return EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
        if not request.committed:
            self._abort()
            self._epoch += 1
            return EndTxnResponse(error_code=0, producer_id=PRODUCER_ID, producer_epoch=self._epoch)
        if self._open_offset is None:
            return EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)
        for (index, _), batch in self._open.items():
            found = records(batch, 0, parse_header(batch), max_bytes=_MAX_BYTES)
            self.committed += [(index, record) for record in found]
        self.offset = self._open_offset
        self._abort()
        self._epoch += 1
        return EndTxnResponse(error_code=0, producer_id=PRODUCER_ID, producer_epoch=self._epoch)

    def _abort(self) -> None:
        self._open, self._open_offset = {}, None
