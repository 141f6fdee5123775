"""Sends records from Spark's workers to a topic, each exactly once, also when a task or the job is retried.

RULES    1. One task sends the records of one source partition, in offset order.
         2. It sends them in transactions. Each transaction also commits the source offset after its last record for the job's
            group (KIP-98, consume-transform-produce). Brokers delete the offsets of a group after a week without a commit
            (`offsets.retention.minutes`).
         3. The transactional id is the group's name and the source partition. Initialisation fences an earlier producer with
            this id (a killed task, a lost worker) and aborts its transaction. Only then the task reads the committed offset
            and continues after it.
         4. Timestamps, keys and headers are sent unchanged, including nulls. A record of timestamp 0 is refused: librdkafka
            would send the current time.
         5. Each task limits its own rate to an equal share of the job's rate.
         6. Sending the offsets has a timeout of its own: librdkafka may wait forever when the group coordinator moves (its
            issue 5456). The failed task is retried by Spark; the thread of the call is abandoned.
NOT HERE The records to send (`jobs/replay.py`, `jobs/dead_letters.py`). See docs/decisions/0041.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeVar

from pyspark.sql import DataFrame

from barnabas.pipeline.errors import JobError, denied
from barnabas.pipeline.spark.py_files import import_shipped, ship

T = TypeVar("T")
RECORDS_PER_TRANSACTION = 20_000
SECONDS_PER_TRANSACTION = 10.0
TRANSACTION_TIMEOUT_MS = 60_000
TIMEOUT_S = 60.0
SENT_SCHEMA = "topic string, partition int, sent bigint, skipped bigint"


class SendOptions(NamedTuple):
    """The options of a task; serialised to the workers."""

    client_settings: dict[str, Any]
    group: str
    rate: float | None = None
    """Records a second of one task."""
    offsets_topic: str | None = None
    """The topic for which source offsets are committed, if not the source topic. It must exist."""


def send(records: DataFrame, sending: SendOptions, max_tasks: int) -> DataFrame:
    """Sends records (columns: topic, partition, offset; to_topic, to_partition, key, value, headers, ms).

    `topic`, `partition` and `offset` are the record's source. Returns for each source partition the number of records sent now,
    and of records sent by earlier attempts.
    """
    ship(records.sparkSession)
    ordered = records.repartition(max(1, max_tasks), "topic", "partition").sortWithinPartitions(
        "topic", "partition", "offset"
    )

    def task(rows: Iterable[Any]) -> Iterator[tuple[str, int, int, int]]:
        for (topic, partition), rows_of_partition in itertools.groupby(rows, lambda row: (row.topic, row.partition)):
            sent, skipped = _PartitionSender(sending, topic, partition).send(rows_of_partition)
            yield topic, partition, sent, skipped

    sent: DataFrame = ordered.rdd.mapPartitions(task).toDF(SENT_SCHEMA)
    return sent


class _PartitionSender:
    """Sends one source partition, from initialising the transactional id to the last commit."""

    def __init__(self, options: SendOptions, topic: str, partition: int) -> None:
        self._client = import_shipped("confluent_kafka")
        self._options = options
        self._name = f"{topic}-{partition}"
        self._offset_partition = (options.offsets_topic or topic, partition)
        self._skipped = 0
        """Records that an earlier attempt has sent."""
        self._failures: list[tuple[str, str]] = []
        """The topics of records that were not sent, and why."""
        self._sending_to = ""
        """The topic of the record that was sent last, until all records of the transaction are delivered."""
        settings = {**options.client_settings, "group.id": options.group, "isolation.level": "read_committed"}
        self._reader = self._client.Consumer({**settings, "enable.auto.commit": False})
        self._producer = self._client.Producer(
            {
                **options.client_settings,
                "transactional.id": f"{options.group}-{topic}-{partition}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 20,
                "compression.type": "lz4",
                "message.max.bytes": 1_000_000_000,  # the broker enforces its own limit
            }
        )

    def send(self, rows: Iterable[Any]) -> tuple[int, int]:
        """Sends the records after the committed offset; returns how many were sent and how many skipped."""
        try:
            self._producer.init_transactions(TIMEOUT_S)
            [committed] = self._reader.committed(
                [self._client.TopicPartition(*self._offset_partition)], timeout=TIMEOUT_S
            )
            transactions = _transactions(self._unsent(rows, committed.offset), RateLimiter(self._options.rate))
            return sum(self._send_transaction(part) for part in transactions), self._skipped
        except self._client.KafkaException as failure:
            raise self._error(failure) from failure
        finally:
            self._reader.close()

    def _error(self, failure: Any) -> Exception:
        """Names the right that is missing; other errors are unchanged."""
        name = failure.args[0].name()
        options = self._options
        topic = (
            f"Write on topic {self._sending_to}" if self._sending_to else f"Read on topic {self._offset_partition[0]}"
        )
        rights = {
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": f"Write on transactional id {options.group}-{self._name}",
            "GROUP_AUTHORIZATION_FAILED": f"Read on group {options.group}",
            "TOPIC_AUTHORIZATION_FAILED": topic,
        }
        return denied(str(options.client_settings["bootstrap.servers"]), rights[name]) if name in rights else failure

    def _unsent(self, rows: Iterable[Any], committed_offset: int) -> Iterator[Any]:
        """Yields the rows at and after the committed offset; counts the others."""
        for row in rows:
            if row.offset < committed_offset:
                self._skipped += 1
            else:
                yield row

    def _send_transaction(self, rows: Iterable[Any]) -> int:
        """Sends the rows in one transaction and returns their number."""
        self._producer.begin_transaction()
        count, last = 0, -1
        for row in rows:
            self._sending_to = row.to_topic
            self._produce(row)
            count, last = count + 1, row.offset
        self._producer.flush(TIMEOUT_S)
        if self._failures:
            self._producer.commit_transaction(TIMEOUT_S)  # raises the reason
        self._sending_to = ""
        tp = self._client.TopicPartition(*self._offset_partition, last + 1)
        group = self._reader.consumer_group_metadata()
        call_with_timeout(
            2 * TIMEOUT_S,
            lambda: self._producer.send_offsets_to_transaction([tp], group, TIMEOUT_S),
            f"The broker did not accept the offset of {self._name}.",
        )
        self._producer.commit_transaction(TIMEOUT_S)
        if self._failures:
            topic, reason = self._failures[0]
            raise JobError(f"The broker refused a record for topic {topic}: {reason}.")
        return count

    def _produce(self, row: Any) -> None:
        if row.ms == 0:
            raise JobError(
                f"The record at offset {row.offset} of {self._name} has the timestamp 0, for which librdkafka "
                "sends the current time: it cannot be replayed."
            )
        headers = None if row.headers is None else [(header["key"], _bytes(header["value"])) for header in row.headers]
        while True:
            try:
                self._producer.produce(
                    row.to_topic,
                    key=_bytes(row.key),
                    value=_bytes(row.value),
                    partition=row.to_partition,
                    timestamp=row.ms,
                    headers=headers,
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(1.0)  # the client's queue is full: poll() waits for deliveries
            except self._client.KafkaException as failure:
                if failure.args[0].name() == "_STATE":  # the transaction has failed since the last record
                    self._producer.commit_transaction(TIMEOUT_S)  # raises the reason
                raise
            else:
                self._producer.poll(0)
                return

    def _delivered(self, failure: Any, message: Any) -> None:
        if failure is not None:
            self._failures.append((message.topic(), failure.str()))


class RateLimiter:
    """Limits records per second; None is no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self._count = 0

    def wait_s(self) -> float:
        """Returns the seconds until the next record may be sent."""
        if self._rate is None:
            return 0.0
        return max(0.0, (self._count + 1) / self._rate - (time.monotonic() - self._started))

    def step(self) -> None:
        """Waits until the next record may be sent."""
        wait_s = self.wait_s()
        self._count += 1
        if wait_s:
            time.sleep(wait_s)


def call_with_timeout(seconds: float, call: Callable[[], T], message: str) -> T:
    """Returns the call's result, or raises its exception; raises JobError(message) after the timeout (rule 6)."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as failure:  # noqa: BLE001 - it is the caller's
            result.set_exception(failure)

    threading.Thread(target=run, daemon=True).start()
    if not wait([result], seconds).done:
        raise JobError(message)
    return result.result()


def _transactions(rows: Iterable[Any], limiter: RateLimiter) -> Iterator[Iterator[Any]]:
    """Splits rows into transactions, by count or by time."""
    rows = iter(rows)
    for first in rows:
        limiter.step()
        yield itertools.chain([first], _limited(rows, limiter))


def _limited(rows: Iterator[Any], limiter: RateLimiter) -> Iterator[Any]:
    """The other rows of a transaction, which ends rather than wait beyond its time: brokers abort it after a minute."""
    ends = time.monotonic() + SECONDS_PER_TRANSACTION
    for _ in range(RECORDS_PER_TRANSACTION - 1):
        if time.monotonic() + limiter.wait_s() > ends or (row := next(rows, None)) is None:
            return
        limiter.step()
        yield row


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
