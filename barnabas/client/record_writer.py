"""Writes records to partitions: in order within each partition, each once, acknowledged.

RULES    1. Records are collected into a round: one batch for each partition. A thread sends rounds one after the other, so
            order holds over retries, while the caller collects the next.
         2. A retriable error or a broken connection repeats the batch. With `acks` all the producer is idempotent: the leader
            knows a repeated batch by its sequence numbers. With less, a repeated batch may be stored twice.
         3. A record that the cluster refuses ends the writer with ClientError; the records before it are written.
         4. A batch that is larger than max.message.bytes of the topic is split, as long as it has several records; so is one
            that is larger than HUGE_BYTES, if the node closes the connection instead of an answer.
         5. In a transaction, nothing is visible to read-committed readers before `close(commit=True)`.
         6. While a partition has no leader, the batches of others are written; its own batch is repeated as by rule 2.
         7. Timestamps, header keys and nulls are sent as given. Only `timestamp=None` becomes the present.
NOT HERE Which partition a record goes to (`cli/partitioning.py`), bytes of a batch (`record_batches.py`).
"""

from __future__ import annotations

import queue
import struct
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from barnabas.client.cluster import PATIENCE_S, PAUSE_S, Cluster, Node, Retriable, leader_of, topic_array
from barnabas.client.compression import CODECS
from barnabas.client.error_codes import (
    DUPLICATE_SEQUENCE_NUMBER,
    LEADER_NOT_AVAILABLE,
    MESSAGE_TOO_LARGE,
    RETRIABLE,
    refusal,
)
from barnabas.client.errors import ClientError
from barnabas.client.record_batches import NO_PRODUCER, SEQUENCES, Header, encode_batch, encode_record, split_batch
from barnabas.client.topic_partition import TopicPartition
from barnabas.client.wire import Api, Fields, text

BATCH_BYTES = 512 << 10
ROUND_BYTES = 4 << 20
RECORD_OVERHEAD = 32
TRANSACTION_TIMEOUT_MS = 900_000
"""The default of transaction.max.timeout.ms: brokers abort a transaction that takes longer."""
PRODUCE_TIMEOUT_MS = 30_000
HUGE_BYTES = 100 << 20
"""The default of socket.request.max.bytes: a node closes the connection at a larger request."""
HUGE_TRIES = 3
"""How often a connection may break at a record of this size, which may also be by chance."""


class WriteOptions(NamedTuple):
    """How records are written."""

    acks: int = -1
    compression: str = "none"
    transactional_id: str | None = None


@dataclass
class _Collected:
    """The records of a partition that are not sent yet."""

    base_timestamp: int
    max_timestamp: int
    records: list[bytes] = field(default_factory=list)
    size: int = 0


_Round = dict[TopicPartition, _Collected]
_Waiting = dict[TopicPartition, list[bytes]]
"""The batches of a round that are not written, in order."""


class RecordWriter:
    """Writes records. `append` may raise the error of an earlier record; `close` raises it at the latest."""

    def __init__(self, cluster: Cluster, options: WriteOptions | None = None) -> None:
        self._cluster = cluster
        self._options = options or WriteOptions()
        self._codec = CODECS.index(self._options.compression)
        self._collected: _Round = {}
        self._size = 0
        self._rounds: queue.Queue[_Round | None] = queue.Queue(1)
        self._failure: Exception | None = None
        self._written = 0
        self._sequences: dict[TopicPartition, int] = {}
        self._nodes: dict[int, Node] = {}
        self._leaders: dict[str, dict[int, int]] = {}
        self._producer = NO_PRODUCER[:2]
        self._coordinator: Node | None = None
        self._in_transaction: set[TopicPartition] = set()
        if self._options.acks == -1:
            self._producer = cluster.retry(self._initialise)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def written(self) -> int:
        """The number of acknowledged records."""
        return self._written

    def append(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> None:
        """Adds a record; waits if a round is being sent and the next is full. Raises ClientError."""
        if timestamp is None:
            timestamp = int(time.time() * 1000)
        collected = self._collected.get(partition)
        if collected is None:
            collected = self._collected[partition] = _Collected(timestamp, timestamp)
        record = encode_record(len(collected.records), timestamp - collected.base_timestamp, key, value, headers)
        collected.records.append(record)
        collected.max_timestamp = max(collected.max_timestamp, timestamp)
        collected.size += len(record)
        self._size += len(record) + RECORD_OVERHEAD
        if collected.size >= BATCH_BYTES or self._size >= ROUND_BYTES:
            self.send()

    def send(self) -> None:
        """Hands the collected records to the thread. Raises ClientError."""
        if self._failure is not None:
            raise self._failure
        if self._collected:
            self._rounds.put(self._collected)
            self._collected, self._size = {}, 0

    def close(self, *, commit: bool = True) -> None:
        """Writes what is left, and ends the transaction. Raises ClientError."""
        try:
            if commit and self._failure is None:
                self.send()
        finally:
            self._rounds.put(None)
            self._thread.join()
            for node in self._nodes.values():
                node.close()
        if self._in_transaction:
            self._end_transaction(commit=commit and self._failure is None)
        if self._failure is not None:
            raise self._failure

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (collected_round := self._rounds.get()) is not None:
            if self._failure is None:
                try:
                    self._write(collected_round)
                except Exception as failure:  # noqa: BLE001 the caller raises it; without the thread it would wait for ever
                    self._failure = failure

    def _write(self, collected_round: _Round) -> None:
        waiting = {partition: [self._batch(partition, collected)] for partition, collected in collected_round.items()}
        if self._options.transactional_id is not None:
            self._cluster.retry(lambda: self._add_to_transaction(waiting.keys() - self._in_transaction))
        started, patience_s, broken = time.monotonic(), PATIENCE_S, 0
        while waiting:
            retry_reason = ""
            for leader, partitions in self._by_leader(waiting).items():
                if leader < 0:
                    retry_reason = str(refusal(LEADER_NOT_AVAILABLE, str(partitions[0])))
                    continue
                try:
                    retry_reason = self._produce(leader, partitions, waiting) or retry_reason
                except Retriable as failure:
                    retry_reason, patience_s = str(failure), failure.patience_s
                    if leader in self._nodes:
                        broken += self._split_if_huge(partitions, waiting)
                    self._forget(leader)
            if broken == HUGE_TRIES:
                raise ClientError(
                    f"The node closes the connection at a record of more than {HUGE_BYTES:,} bytes: raise its "
                    "socket.request.max.bytes, or write smaller records."
                )
            if retry_reason:
                if time.monotonic() - started > patience_s:
                    raise ClientError(retry_reason)
                self._leaders.clear()
                time.sleep(PAUSE_S)
        self._written += sum(len(collected.records) for collected in collected_round.values())

    def _split_if_huge(self, partitions: Iterable[TopicPartition], waiting: _Waiting) -> bool:
        """After a connection broke: splits the batches that brokers do not take by default (rule 4).

        Returns whether one of them has a single record.
        """
        is_single = False
        for partition in partitions:
            batch = waiting[partition][0]
            if len(batch) > HUGE_BYTES:
                halves = split_batch(batch, self._codec)
                waiting[partition][:1] = halves or [batch]
                is_single = is_single or not halves
        return is_single

    def _batch(self, partition: TopicPartition, collected: _Collected) -> bytes:
        producer = NO_PRODUCER
        if self._producer != NO_PRODUCER[:2]:
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = (sequence + len(collected.records)) % SEQUENCES
            producer = (*self._producer, sequence)
        return encode_batch(
            collected.records,
            collected.base_timestamp,
            collected.max_timestamp,
            codec=self._codec,
            producer=producer,
            is_transactional=self._options.transactional_id is not None,
        )

    def _by_leader(self, partitions: Collection[TopicPartition]) -> dict[int, list[TopicPartition]]:
        if unknown := {partition.topic for partition in partitions} - self._leaders.keys():
            self._leaders |= self._cluster.leaders_of(dict.fromkeys(unknown, ()))
        found: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            found.setdefault(leader_of(partition, self._leaders[partition.topic]), []).append(partition)
        return found

    def _produce(self, leader: int, partitions: list[TopicPartition], waiting: _Waiting) -> str:
        """Sends the next batch of each partition of a leader; removes the written ones; returns why others were not."""
        if leader not in self._nodes:
            self._nodes[leader] = self._cluster.connect(leader)
        node, acks = self._nodes[leader], self._options.acks
        topics = topic_array(
            partitions,
            lambda partition: (
                struct.pack(">ii", partition.partition, len(waiting[partition][0])) + waiting[partition][0]
            ),
        )
        body = text(self._options.transactional_id) + struct.pack(">hi", acks, PRODUCE_TIMEOUT_MS) + topics
        if acks == 0:
            node.send(Api.PRODUCE, body)
            answers = dict.fromkeys(partitions, 0)
        else:
            answers = _answers(node.ask(Api.PRODUCE, body))
        retry_reason = ""
        for partition, error in answers.items():
            if error in RETRIABLE:
                retry_reason = str(refusal(error, str(partition)))
            elif error == MESSAGE_TOO_LARGE and (halves := split_batch(waiting[partition][0], self._codec)):
                waiting[partition][:1] = halves
            elif error not in (0, DUPLICATE_SEQUENCE_NUMBER):
                raise refusal(error, str(partition))
            else:
                del waiting[partition][0]
                if not waiting[partition]:
                    del waiting[partition]
        return retry_reason

    def _forget(self, leader: int) -> None:
        node = self._nodes.pop(leader, None)
        if node is not None:
            node.close()

    # --- idempotence and transactions ---------------------------------------------------------------------------------

    def _initialise(self) -> tuple[int, int]:
        """The producer id and epoch. An open transaction of the same id is aborted by its coordinator."""
        name = self._options.transactional_id
        body = text(name) + struct.pack(">i", TRANSACTION_TIMEOUT_MS)
        fields = (
            self._cluster.ask(Api.INIT_PRODUCER_ID, body)
            if name is None
            else self._ask_coordinator(Api.INIT_PRODUCER_ID, body)
        )
        _throttle_ms, error, producer_id, epoch = fields.numbers("ihqh")
        _check(error, f"The transactional id {name}" if name else "The producer id")
        return producer_id, epoch

    def _add_to_transaction(self, partitions: set[TopicPartition]) -> None:
        if not partitions:
            return
        topics = topic_array(partitions, lambda partition: struct.pack(">i", partition.partition))
        fields = self._ask_coordinator(Api.ADD_PARTITIONS_TO_TXN, self._transaction() + topics)
        fields.number("i")
        for _topic, partitions_of_it in fields.array(
            lambda: (fields.text(), fields.array(lambda: fields.numbers("ih")))
        ):
            for _number, error in partitions_of_it:
                _check(error, f"The transactional id {self._options.transactional_id}")
        self._in_transaction |= partitions

    def _end_transaction(self, *, commit: bool) -> None:
        def end() -> None:
            fields = self._ask_coordinator(Api.END_TXN, self._transaction() + struct.pack(">?", commit))
            _throttle_ms, error = fields.numbers("ih")
            _check(error, f"The transactional id {self._options.transactional_id}")

        self._cluster.retry(end)
        self._in_transaction.clear()

    def _transaction(self) -> bytes:
        return text(self._options.transactional_id) + struct.pack(">qh", *self._producer)

    def _ask_coordinator(self, api: Api, body: bytes) -> Fields:
        if self._coordinator is None:
            node_id, host, port = self._find_coordinator()
            self._coordinator = self._cluster.connect_to(node_id, (host, port))
        try:
            return self._coordinator.ask(api, body)
        except Retriable:
            self._coordinator = None
            raise

    def _find_coordinator(self) -> tuple[int, str, int]:
        fields = self._cluster.ask(Api.FIND_COORDINATOR, text(self._options.transactional_id) + struct.pack(">b", 1))
        _throttle_ms, error = fields.numbers("ih")
        fields.text()
        _check(error, f"The transactional id {self._options.transactional_id}")
        return fields.number("i"), fields.text(), fields.number("i")


def _check(error: int, about: str) -> None:
    if error in RETRIABLE:
        raise Retriable(str(refusal(error, about)))
    if error:
        raise refusal(error, about)


def _answers(fields: Fields) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}

    def topic() -> None:
        name = fields.text()
        for number, error, *_ in fields.array(lambda: fields.numbers("ihqqq")):
            found[TopicPartition(name, number)] = error

    fields.array(topic)
    return found
