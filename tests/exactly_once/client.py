"""What the programs share: their command line, how they exit, and transactional producers of librdkafka.

RULES    1. SIGTERM asks a program to finish what it has started; SIGKILL ends it at once.
         2. An abortable error aborts the transaction, a retriable one is retried; any other error ends the program, and the
            next process of it continues.
         3. A library call that does not return within STALLED_S ends the program by SIGALRM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import confluent_kafka

from tests.exactly_once.history import History

FAILED = 3
CALL_S = 5.0
STALLED_S = 8
"""librdkafka 2.16 may wait forever for a group coordinator that has left the metadata: its issues 5456 and 5511."""
QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "metadata.recovery.strategy": "none",
    "socket.timeout.ms": 6000,
    "socket.connection.setup.timeout.ms": 3000,
    "topic.metadata.refresh.interval.ms": 3000,
}
"""When librdkafka 2.16 rebootstraps, which it does when its only broker is down, it may wait forever for an earlier connection,
with any broker: so the recovery strategy is `none`.
"""


class Client:
    """One process of a program; its arguments are BOOTSTRAP FOLDER NAME INCARNATION and the program's own."""

    def __init__(self) -> None:
        self.bootstrap, folder, self.name, self.incarnation, *self.arguments = sys.argv[1:]
        self.history = History(Path(folder), f"{self.name}-{self.incarnation}")
        self.stop_requested = threading.Event()
        self._transactions = 0
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, _signal: int, _frame: FrameType | None) -> None:
        self.stop_requested.set()

    def next_transaction(self) -> str:
        """A unique name."""
        self._transactions += 1
        return f"{self.name}-{self.incarnation}-{self._transactions}"


class Producer:
    """A transactional producer of librdkafka that writes its history."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._note = client.history.note
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": client.bootstrap, "transactional.id": client.name, "linger.ms": 0,
                "transaction.timeout.ms": 15_000, "request.timeout.ms": 5000, **QUICK,
            }
        )  # fmt: skip
        self.transaction = ""
        """The current transaction, or the last one."""
        self._given_up = 0
        self._retry(lambda: self._producer.init_transactions(CALL_S))

    def begin(self) -> None:
        self.transaction = self._client.next_transaction()
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: str) -> None:
        transaction = self.transaction

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self._note("sent", transaction, topic, partition, message.offset(), value)
            else:
                self._given_up += 1

        self._note("sends", transaction, topic, partition, -1, value)
        self._producer.produce(topic, value, partition=partition, on_delivery=delivered)

    def commit(self, offsets: list[Any] | None = None, group: Any = None, *, abort: bool = False) -> bool:
        """Commits, with the offsets of a group; False if the transaction was aborted, as with `abort`."""
        try:
            if offsets is not None:
                self._retry(lambda: self._producer.send_offsets_to_transaction(offsets, group, CALL_S))
            if abort:
                self.abort()
                return False
            self._note("commits", self.transaction)
            self._retry(lambda: self._producer.commit_transaction(CALL_S))
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.abort()
            return False
        self._note("committed", self.transaction)
        return True

    def abort(self) -> None:
        """Aborts if the broker has acknowledged every record; otherwise exits, and the next process has a new producer epoch.

        librdkafka reuses the sequence numbers of records that it gives up, for instance those that wait for a retry when
        the transaction fails. If the broker has the old records, the new ones are out of order, or are taken for duplicates
        and acknowledged, with any broker (docs/cluster-faults.md).
        """
        if count := self._producer.flush(CALL_S) + self._given_up:
            print(
                f"{self.transaction}: {count} records are not acknowledged, so it is not aborted here", file=sys.stderr
            )
            sys.exit(FAILED)
        self._retry(lambda: self._producer.abort_transaction(CALL_S))
        self._note("aborted", self.transaction)

    @staticmethod
    def _retry(call: Callable[[], None]) -> None:
        while True:
            signal.alarm(STALLED_S)  # rule 3
            try:
                return call()
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
            finally:
                signal.alarm(0)


def read_committed(client: Client, group: str, **settings: Any) -> confluent_kafka.Consumer:
    """A read_committed consumer with these further settings."""
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": client.bootstrap, "group.id": group, "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50, **settings, **QUICK,
        }
    )  # fmt: skip


def member(client: Client, group: str, topic: str, **settings: Any) -> confluent_kafka.Consumer:
    """A member of a group that subscribes to a topic and notes its assignments.

    Its group has offsets before it starts, and a missing offset is an error: when librdkafka has to look up the earliest offset
    it may do so again later and return there, whatever was committed meanwhile (docs/exactly-once.md).
    """

    def assigned(_consumer: Any, partitions: list[Any]) -> None:
        for one in partitions:
            client.history.note("assigned", "", one.topic, one.partition)

    consumer = read_committed(client, group, **{"auto.offset.reset": "error", **settings})
    consumer.subscribe([topic], on_assign=assigned)
    return consumer


def is_record(consumer: confluent_kafka.Consumer, message: Any) -> bool:
    """False for an error that passes by itself.

    An offset reset ends the program: librdkafka resets offsets that are valid (docs/cluster-faults.md). But it fails the run if
    the group has no committed offset.
    """
    error = message.error()
    if error is not None and error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
        partition = confluent_kafka.TopicPartition(message.topic(), message.partition())
        for committed in consumer.committed([partition], CALL_S):
            assert committed.error is not None or committed.offset >= 0, f"{error}: {partition} has no offset any more"
        raise confluent_kafka.KafkaException(error)
    return error is None


def run(main: Callable[[Client], None], *failures: type[Exception]) -> None:
    """Runs the program; a KafkaException, or one of these failures, ends it with FAILED."""
    client = Client()
    expected: tuple[type[Exception], ...] = (confluent_kafka.KafkaException, *failures)
    try:
        main(client)
    except expected as error:
        print(f"{client.name}-{client.incarnation}: {error!r}", file=sys.stderr, flush=True)
        os._exit(FAILED)  # exits without waiting for records in flight
    client.history.close()
