"""Transactions of version 2 over raw sockets: records to some partitions, a group's offset, the end; repeatedly.

RULES    1. Every frame is encoded before the clock starts, since epochs are known: each end increments them.
         2. Of a response only the error codes are read. On CONCURRENT_TRANSACTIONS, which is possible while markers
            are written, the request is repeated a millisecond later.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.metadata import FindCoordinatorRequest
from protocol.messages.produce_fetch import ProduceRequest
from protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest
from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.raw import Peer, frame
from tests.benchmark.load.running_broker import RunningBroker
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

_PRODUCE, _OFFSETS, _END = 12, 5, 5
_I16: Final = Struct(">h")
_HEAD: Final = 9
"""Length, correlation id and tags of a response."""
_AGAIN_S = 0.001
_VALUE = b"x" * 100


class _Step(NamedTuple):
    """A request, and the positions of the error codes in its response: from `first` on, at equal distances."""

    frame: bytes
    first: int
    codes: int = 1
    tail: int = 0

    def error(self, answer: memoryview) -> int:
        """The first error in a response; 0 if there is none."""
        each = (len(answer) - self.first - self.tail) // self.codes
        for number in range(self.codes):
            (code,) = _I16.unpack_from(answer, self.first + number * each)
            if code:
                return int(code)
        return 0


class Transactor:
    """One transactional id and its connection."""

    def __init__(self, bootstrap: str, name: str, topic: str, partitions: int, count: int) -> None:
        self.peer = Peer(bootstrap)
        self._name, self._topic, self._partitions = name, topic, partitions
        producer_id, epoch = _init_producer(bootstrap, name)
        self._steps = [step for number in range(count) for step in self._transaction(producer_id, epoch + number)]
        self._at = 0
        self.began_s = 0.0
        self.took_s: list[float] = []

    def _transaction(self, producer_id: int, epoch: int) -> Iterator[_Step]:
        topic, partitions = self._topic, self._partitions
        builder = BatchBuilder(producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
        builder.append(time.time_ns() // 1_000_000, None, _VALUE)
        batch = memoryview(builder.build())
        data = {"name": topic, "partition_data": [{"index": index, "records": batch} for index in range(partitions)]}
        produce = message(ProduceRequest, transactional_id=self._name, acks=-1, timeout_ms=30_000, topic_data=[data])
        producer = {"transactional_id": self._name, "producer_id": producer_id, "producer_epoch": epoch}
        partition = {"partition_index": 0, "committed_offset": epoch, "committed_metadata": ""}
        commit = {"group_id": f"group of {self._name}", "topics": [{"name": topic, "partitions": [partition]}]}
        offsets = message(TxnOffsetCommitRequest, **producer, **commit)
        end = message(EndTxnRequest, **producer, committed=True)
        to_partitions = _HEAD + 1 + 1 + len(topic) + 1 + 4
        yield _Step(frame(produce, _PRODUCE), to_partitions, partitions, tail=6 - 4)
        yield _Step(frame(offsets, _OFFSETS), _HEAD + 4 + 1 + 1 + len(topic) + 1 + 4)
        yield _Step(frame(end, _END), _HEAD + 4)

    @property
    def is_done(self) -> bool:
        return self._at == len(self._steps)

    def send(self) -> None:
        if self._at % 3 == 0:
            self.began_s = time.perf_counter()
        self.peer.send(self._steps[self._at].frame)

    def receive(self) -> None:
        length = self.peer.answer()
        error = self._steps[self._at].error(self.peer.buffer[:length])
        if error:
            assert error == ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode(error)
            time.sleep(_AGAIN_S)
            return
        self._at += 1
        if self._at % 3 == 0:
            self.took_s.append(time.perf_counter() - self.began_s)


def _init_producer(bootstrap: str, name: str) -> tuple[int, int]:
    with RawClient(bootstrap) as client:
        for key_type, key in ((1, name), (0, f"group of {name}")):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            until(lambda request=request: not client.ask(request, 4).coordinators[0].error_code, "a coordinator", 120)  # type: ignore[misc]
        begin = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)

        def ask() -> Any:
            answer = client.ask(begin, 5)
            return None if answer.error_code else answer

        answer = until(ask, "a producer id", 120)
    return answer.producer_id, answer.producer_epoch


def transactions(broker: RunningBroker, topic: str, partitions: int, count: int, at_a_time: int = 1) -> Outcome:
    """Transactions of each of some transactional ids: a record to each partition, an offset, the end."""
    names = [f"{topic}-{number}" for number in range(at_a_time)]
    _run([Transactor(broker.bootstrap, name, topic, partitions, count // 10) for name in names])
    working = [Transactor(broker.bootstrap, name, topic, partitions, count) for name in names]
    with Meter(broker.pid) as meter:
        _run(working)
    took_s = sorted(elapsed for one in working for elapsed in one.took_s)
    made = len(took_s)
    return Outcome(
        {
            "transactions/s": made / meter.wall_s,
            "p50 ms": took_s[made // 2] * 1e3,
            "p99 ms": took_s[made * 99 // 100] * 1e3,
            "CPU us": meter.cpu_s * 1e6 / made,
        }
    )


def _run(working: list[Transactor]) -> None:
    by_socket = {one.peer.fileno(): one for one in working}
    poll = select.poll()
    for number, one in by_socket.items():
        poll.register(number, select.POLLIN)
        one.send()
    while by_socket:
        for number, _ in poll.poll():
            one = by_socket[number]
            one.receive()
            if one.is_done:
                poll.unregister(number)
                del by_socket[number]
                one.peer.close()
            else:
                one.send()
