"""Simulation of a transactional producer whose broker is killed.

RULES    1. All randomness comes from one generator; `kills` lists the file operations before which the broker is killed.
         2. After a kill, the producer retries, or ends and a new instance starts. An ended producer may send one more request,
            which must be rejected.
         3. At the end no transaction is open, the history has no anomaly (`tests/exactly_once/anomalies.py`), and the group
            offset is that of the last committed transaction.
"""

from __future__ import annotations

import logging
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from broker.coordinators.transactions.transaction import LAST_EPOCH
from protocol.errors import ErrorCode
from protocol.schema import Message
from tests.exactly_once.anomalies import Event, anomalies
from tests.simulation.runner import Failure, log_level
from tests.simulation.transactions.node import PARTITIONS, TOPIC, Node
from tests.simulation.transactions.producer import GROUP, NAME, TIMEOUT_MS, Producer, RequestRejected
from tests.support.crashing_disk import PowerLoss
from tests.support.group_requests import fetch_request

TRANSACTION_COUNT = 4
MAX_KILLS = 4
FILE_OPERATIONS = 40
"""The approximate number of file operations of one simulation."""
TIMEOUT_WAIT_MS = TIMEOUT_MS + 2000
NEVER = 1 << 40


class ProducerKilled(Exception):
    """The producer ended with its broker."""


class Simulation:
    """One simulation."""

    def __init__(self, path: Path, random: Random, kills: list[int], *, has_version_2: bool) -> None:
        self.node = Node(path, 2 if has_version_2 else 0)
        self.history: list[Event] = []
        self.file_operations = 0
        """The number of file operations so far."""
        self._random = random
        self._remaining_kills = list(kills)
        self._has_version_2 = has_version_2
        self._producer_count = 0
        self._timed_out = False
        self._offsets: dict[str, int] = {}
        self._arm()

    def _arm(self) -> None:
        self._fuse_at_arm = self._remaining_kills.pop(0) if self._remaining_kills else NEVER
        self.node.disk.fuse = self._fuse_at_arm

    def _disarm(self) -> None:
        fuse, self.node.disk.fuse = self.node.disk.fuse, None
        assert fuse is not None
        self.file_operations += self._fuse_at_arm - max(fuse, 0)

    def _ask(self, make: Callable[[], Message], version: int) -> Any:
        """Send a request; after a kill, retry it or end the producer."""
        try:
            return self.node.ask(make(), version)
        except PowerLoss:
            self._disarm()
            self.node.start()
            self._arm()
            if self._random.random() < 0.3:
                raise ProducerKilled from None
        return self._ask(make, version)

    # ---- steps

    def run(self) -> None:
        producer = self._new_producer()
        if self._random.random() < 0.3:
            producer = self._exhaust_epoch()
        for number in range(TRANSACTION_COUNT):
            before = producer
            try:
                self._transact(producer, number)
            except RequestRejected:
                if not self._timed_out:
                    raise
                producer = self._new_producer()
            except ProducerKilled:
                producer = self._new_producer()
            self._timed_out = False
            if producer is not before and self._random.random() < 0.5:
                self._resume_old_producer(before)
        if self._random.random() < 0.5:
            self._new_producer()
        self._disarm()
        self.node.pass_time(TIMEOUT_WAIT_MS)
        self._check_result()

    def _new_producer(self) -> Producer:
        while True:
            self._producer_count += 1
            try:
                return Producer(self._ask, self.history, self._producer_count, has_version_2=self._has_version_2)
            except ProducerKilled:
                continue

    def _exhaust_epoch(self) -> Producer:
        """Set the producer epoch close to its maximum: the next ones need a new producer id."""
        fuse, self.node.disk.fuse = self.node.disk.fuse, None
        self.node.set_epoch(NAME, LAST_EPOCH - self._random.randint(1, 3))
        self.node.disk.fuse = fuse
        return self._new_producer()

    def _transact(self, producer: Producer, number: int) -> None:
        random = self._random
        for record in range(random.randint(1, 3)):
            producer.send(random.randrange(PARTITIONS), f"{producer.transaction}-{record}")
        if random.random() < 0.8:
            self._offsets[producer.transaction] = number
            producer.commit_offset(number)
        outcome = random.random()
        if outcome < 0.1:
            raise ProducerKilled
        if outcome < 0.2:
            self._timed_out = True
            fuse, self.node.disk.fuse = self.node.disk.fuse, None
            self.node.pass_time(TIMEOUT_WAIT_MS)
            self.node.disk.fuse = fuse
        producer.end(commit=random.random() < 0.7)

    def _resume_old_producer(self, producer: Producer) -> None:
        """A fenced producer sends another request."""
        try:
            if self._random.random() < 0.5:
                producer.start_next_transaction()
                producer.send(0, f"{producer.transaction}-late")
            else:
                producer.end(commit=True)
        except (RequestRejected, ProducerKilled):
            return
        raise AssertionError(f"{producer.transaction} has come back and was let in")

    # ---- result

    def _check_result(self) -> None:
        assert not self.node.incomplete_transactions()
        for partition in range(PARTITIONS):
            for offset, value in self.node.committed(partition):
                self.history.append(Event("reader", "polled", "", TOPIC, partition, offset, value))
        found = anomalies(self.history)
        assert not found, found
        seen = {event.value for event in self.history if event.kind == "polled"}
        last = -1
        for transaction, offset in self._offsets.items():
            values = {
                event.value for event in self.history if event.kind == "sends" and event.transaction == transaction
            }
            if values & seen:
                last = offset
        assert self._committed_offset() == last, (self._offsets, last)

    def _committed_offset(self) -> int:
        requested = fetch_request(GROUP, topic=TOPIC, is_stable=True)
        (one,) = self.node.ask(requested, 8).groups[0].topics[0].partitions
        assert one.error_code == 0, ErrorCode(one.error_code)
        offset: int = one.committed_offset
        return offset


def run_simulation(path: Path, seed: int, kills: list[int], *, has_version_2: bool) -> Simulation:
    """Run a simulation in a directory; an error names its seed."""
    simulation = Simulation(path, Random(seed), kills, has_version_2=has_version_2)
    try:
        simulation.run()
    except (AssertionError, RequestRejected) as error:
        error.add_note(f"seed {seed}, kills {kills}, version {2 if has_version_2 else 0}")
        raise
    return simulation


def simulate(seed: int) -> Failure | None:
    """Run the simulation of a seed, with several kills; None if all invariants hold."""
    random = Random(seed)
    kills = [random.randrange(FILE_OPERATIONS) for _ in range(random.randint(1, MAX_KILLS))]
    try:
        with tempfile.TemporaryDirectory() as directory, log_level(logging.CRITICAL):
            run_simulation(Path(directory), seed, kills, has_version_2=bool(seed % 2))
    except (AssertionError, RequestRejected) as error:
        rerun = f"python -m tests.simulation transactions --seed {seed}"
        return Failure(
            rerun, f"seed {seed}: {type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        )
    return None
