"""What the programs that get killed have in common: how they are called, how they end, and transactions of librdkafka.

RULES    1. SIGTERM asks for the end of what is begun, and nothing more; SIGKILL asks nobody.
         2. An error that the client library calls abortable aborts the transaction, a passing one is tried again; with any
            other the program ends, as if it had been killed, and another life of it goes on.
         3. So it is where the library does not come back from a call, long after the time that it was given.
"""

from __future__ import annotations

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
"""Librdkafka 2.16 may wait for ever, whatever time it was given, for a group's coordinator that has left the metadata:
its issues 5456 and 5511."""
QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "metadata.recovery.strategy": "none",
    "socket.timeout.ms": 6000,
    "socket.connection.setup.timeout.ms": 3000,
    "topic.metadata.refresh.interval.ms": 3000,
}
"""Librdkafka 2.16 that begins again with its bootstrap servers, which it does when its only broker is away, may wait for a
connection of before for ever: with any broker, so also when Apache Kafka is killed."""


class Client:
    """One life of a program: called with BOOTSTRAP FOLDER NAME LIFE and what else it wants."""

    def __init__(self) -> None:
        self.bootstrap, folder, self.name, self.life, *self.arguments = sys.argv[1:]
        self.history = History(Path(folder), f"{self.name}-{self.life}")
        self.over = threading.Event()
        self._transactions = 0
        signal.signal(signal.SIGTERM, self._ask_to_end)

    def _ask_to_end(self, _signal: int, _frame: FrameType | None) -> None:
        self.over.set()

    def next_transaction(self) -> str:
        """A name for it that nobody else gives."""
        self._transactions += 1
        return f"{self.name}-{self.life}-{self._transactions}"


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
        """The one that is open, or was open last."""
        self._again(lambda: self._producer.init_transactions(CALL_S))

    def begin(self) -> None:
        """The next transaction."""
        self.transaction = self._client.next_transaction()
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: str) -> None:
        """A record."""
        transaction = self.transaction

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self._note("sent", transaction, topic, partition, message.offset(), value)

        self._note("sends", transaction, topic, partition, -1, value)
        self._producer.produce(topic, value, partition=partition, on_delivery=delivered)

    def commit(self, offsets: list[Any] | None = None, group: Any = None, *, regrets: bool = False) -> bool:
        """Commit, with the offsets of a group; whether it came to that, or was aborted.

        Who `regrets` aborts when all is ready to be committed.
        """
        try:
            if offsets is not None:
                self._again(lambda: self._producer.send_offsets_to_transaction(offsets, group, CALL_S))
            if regrets:
                self.abort()
                return False
            self._note("commits", self.transaction)
            self._again(lambda: self._producer.commit_transaction(CALL_S))
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.abort()
            return False
        self._note("committed", self.transaction)
        return True

    def abort(self) -> None:
        """Abort, when no record is on its way any more; else this life ends.

        Librdkafka gives the sequence numbers of records that it will not send again to the next ones. If the first are there,
        these are out of order, or taken for the same, with any broker.
        """
        if left := self._producer.flush(CALL_S):
            print(f"{self.transaction}: {left} records are on their way, so it cannot be aborted", file=sys.stderr)
            sys.exit(FAILED)
        self._again(lambda: self._producer.abort_transaction(CALL_S))
        self._note("aborted", self.transaction)

    @staticmethod
    def _again(call: Callable[[], None]) -> None:
        while True:
            signal.alarm(STALLED_S)  # whom nobody stops it ends
            try:
                return call()
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
            finally:
                signal.alarm(0)


def run(main: Callable[[Client], None]) -> None:
    """Live once."""
    client = Client()
    try:
        main(client)
    except confluent_kafka.KafkaException as error:
        print(f"{client.name}-{client.life}: {error}", file=sys.stderr)
        sys.exit(FAILED)
    client.history.close()
