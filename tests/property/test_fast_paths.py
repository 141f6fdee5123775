"""The fast paths of Fetch and Produce answer as the handlers do, byte for byte, for random frames."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.handlers.records.fetch import FetchHandler
from broker.handlers.request_dispatcher import Dispatcher
from broker.handlers.router import FastPath, Route, Router
from broker.network.exchange import CloseConnection
from broker.security.authorizer import Operation, Resource
from protocol.api import request_header_version
from protocol.codec import encode
from protocol.control_records import ControlType, end_txn_marker
from protocol.errors import MalformedRequest
from protocol.file_region import FileRegion, ScatteredRegion
from protocol.messages.headers import RequestHeader
from protocol.messages.produce_fetch import FetchRequest, FetchTopic
from protocol.schema import Message
from storage.io.disk_lookup import wait_for_disk
from storage.log.log_validator import AppendOrigin
from tests.support.deny import Deny
from tests.support.logs import append_records
from tests.support.replica_harness import HeldIoExecutor, ReplicaHarness, batch, read_regions
from tests.support.seeds import seed_of

_PRODUCE, _FETCH = 0, 1
_FORBIDDEN = "forbidden"
_DENIED = Deny((Operation.READ, Resource.TOPIC, _FORBIDDEN), (Operation.WRITE, Resource.TOPIC, _FORBIDDEN))


class FailOnFault(logging.Handler):
    """Fails if a handler fails: the dispatcher logs that."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())


@pytest.fixture(autouse=True, scope="module")
def _fail_on_fault() -> Iterator[None]:
    log, handler = logging.getLogger("barnabas.dispatch"), FailOnFault()
    log.addHandler(handler)
    yield
    log.removeHandler(handler)


class DispatcherUnderTest:
    """A dispatcher with or without fast paths; counts the fast path's responses."""

    def __init__(self, harness: ReplicaHarness, routes: list[Route], *, has_fast_path: bool) -> None:
        self.harness = harness
        self.answered: Counter[int] = Counter()
        self.dispatcher = Dispatcher()
        (route,) = routes
        self.dispatcher.serve(Router([route._replace(fast_path=self._counted(route) if has_fast_path else None)]))

    def _counted(self, route: Route) -> Callable[[int], FastPath | None]:
        def counted(version: int) -> Any:
            assert route.fast_path is not None
            fast_path: Any = route.fast_path(version)

            def counting(*request: Any) -> Any:
                answer = fast_path(*request)
                self.answered[version] += answer is not None
                return answer

            return None if fast_path is None else counting

        return counted

    def ask(self, frame: bytes) -> list[Any]:
        """The response, as a list that may be filled later."""
        answers: list[Any] = []
        connection = self.harness.context(0, 0).connection
        try:
            answer = self.dispatcher.dispatch(bytearray(frame), connection, self.harness.mono_ms)
        except (MalformedRequest, CloseConnection) as error:
            return [repr(error)]
        if answer is None or isinstance(answer, list):
            answers.append(joined(answer))
        else:
            answer.then(
                lambda late: answers.append(joined(late.value) if late.error is None else f"closed: {late.error}")
            )
        return answers


def joined(parts: Any) -> bytes | None:
    """The bytes that a client receives."""
    if parts is None:
        return None
    whole = b"".join(
        read_regions((part,)) if isinstance(part, FileRegion | ScatteredRegion) else bytes(part) for part in parts
    )
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    return whole


def frame_of(request: Message, version: int, chance: random.Random) -> bytes:
    """A frame, sometimes a damaged one."""
    key = request.API_KEY
    assert key is not None
    header = RequestHeader(
        request_api_key=key,
        request_api_version=version,
        correlation_id=chance.randrange(2**31),
        client_id=chance.choice((None, "", "client", "clïent")),
    )
    frame = encode(header, request_header_version(key, version)) + encode(request, version)
    damage = chance.random()
    if damage < 0.05:
        return frame[: chance.randrange(8, len(frame))]
    if damage < 0.08:
        return frame + b"more"
    if damage < 0.14:
        at = chance.randrange(8, len(frame))
        return frame[:at] + bytes([chance.choice((0, 1, 2, 127, 128, 255))]) + frame[at + 1 :]
    return frame


# ---------------------------------------------------------------- Fetch
class Fetches:
    """Random Fetches of one client in one version."""

    def __init__(self, harness: ReplicaHarness, chance: random.Random) -> None:
        self.harness, self.chance = harness, chance
        self.version = chance.randrange(4, 19)
        self.session = (0, chance.choice((0, -1)))
        self.places = [(chance.choice((*_TOPICS, "t", "t", "t", "t")), chance.randrange(3))]
        if chance.random() < 0.3:
            self.places += [(chance.choice(("t", "quiet")), chance.randrange(3)) for _ in range(chance.randrange(1, 4))]

    def next(self) -> FetchRequest:
        chance, version = self.chance, self.version
        places = {place: chance.randrange(5) for place in self.places}
        if chance.random() < 0.1:
            places |= {(chance.choice(_TOPICS), chance.randrange(3)): chance.randrange(9) for _ in range(3)}
        elif chance.random() < 0.1:
            places = {}
        usual = chance.random() < 0.8
        request = self.harness.fetch_request(
            places,
            version=version,
            max_wait_ms=chance.choice((0, 100)),
            min_bytes=chance.choice((0, 1, 1, 1, 150, 10**6)),
            max_bytes=chance.choice((0, 1, 300, 10**6, 2**31 - 1)),
            partition_max_bytes=chance.choice((1, 200, 10**6)),
            isolation=chance.choice((0, 1)),
            replica=-1 if usual or version >= 15 else chance.choice((-1, -2, -3, 2)),
            leader_epoch=-1 if usual else chance.choice((-1, 0, 7)),
            last_fetched_epoch=-1 if version < 12 else chance.choice((-1, -1, 0, 0, 0, 5)),
            session=self.session,
            rack="" if usual else chance.choice(("", "rack2")),
        )
        if usual:
            request.replica_state = None
        if not usual and version >= 7 and chance.random() < 0.2:
            request.forgotten_topics_data = [FetchTopic(topic="t", topic_id=bytes(16), partitions=[0])]
        if not usual and version >= 12 and chance.random() < 0.2:
            request.unknown_tagged_fields = {99: b"new"}
        return request

    def take(self, answers: list[Any]) -> None:
        """Continue the session of the response or start another one; sometimes without waiting for the response."""
        header = 4 if self.version < 12 else 5
        if not answers and self.session[0]:
            self.session = (self.session[0], self.session[1] + 1)
            return
        answer = answers[0] if answers else None
        if self.version < 7 or not isinstance(answer, bytes) or len(answer) < header + 14 or self.chance.random() < 0.1:
            self.session = (0, self.chance.choice((0, -1)))
            return
        session_id = int.from_bytes(answer[header + 10 : header + 14], "big")
        self.session = (session_id, self.session[1] + 1) if session_id else (0, self.chance.choice((0, -1, -1)))


class SessionFetches(Fetches):
    """Random Fetches of a session of several partitions, which usually name all of them."""

    def __init__(self, harness: ReplicaHarness, chance: random.Random) -> None:
        super().__init__(harness, chance)
        self.version = chance.randrange(9, 19)
        self.session = (0, 0)
        self.leader_epoch = 0
        self.places = chance.sample([(topic, index) for topic in ("t", "quiet") for index in range(3)], 4)

    def next(self) -> FetchRequest:
        harness, chance = self.harness, self.chance
        ends = {place: harness.partition(*place).log.log_end_offset for place in self.places}
        if chance.random() < 0.03:
            self.leader_epoch = -1 - self.leader_epoch
        request = harness.fetch_request(
            {place: max(0, end - chance.randrange(4)) for place, end in ends.items() if chance.random() < 0.97},
            version=self.version,
            max_wait_ms=chance.choice((0, 100)),
            min_bytes=chance.choice((0, 1, 1, 150)),
            max_bytes=chance.choice((300, 10**6, 10**6)),
            partition_max_bytes=chance.choice((1, 200, 10**6)),
            isolation=chance.choice((0, 1)),
            leader_epoch=self.leader_epoch,
            session=self.session,
        )
        request.replica_state = None
        return request

    def take(self, answers: list[Any]) -> None:
        super().take(answers)
        if not self.session[0]:
            self.session = (0, 0)


_TOPICS = ("t", "t", "t", "t", "quiet", "elsewhere", "unknown", _FORBIDDEN, "n" * 200, "aborted")


def fetching_world(path: Any) -> ReplicaHarness:
    harness = ReplicaHarness(path, authorizer=_DENIED)
    harness.create("t", partitions=3)
    harness.create("quiet", partitions=3)
    harness.create("n" * 200, partitions=3)
    harness.create(_FORBIDDEN, partitions=3)
    harness.create("elsewhere", partitions=3, replicas=(2, 3), leader=2)
    harness.create("aborted", partitions=1)
    for index in range(3):
        harness.load("t", index, batches=index + 2, size=100)
        harness.load("n" * 200, index, batches=2, size=100)
    log = harness.partition("aborted").log
    for records in (
        batch(2, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True),
        end_txn_marker(ControlType.ABORT, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0),
        batch(),
    ):
        append_records(log, records, wall_ms=harness.wall_ms, origin=AppendOrigin.COORDINATOR)
    for name, index in list(harness.replicas.partitions):
        harness.fetch(name, index, max_wait_ms=0)  # from here on looking moves nothing
    return harness


def sessions_of(handler: FetchHandler) -> list[Any]:
    """The state of all sessions, in order."""
    return [
        (
            session.session_id, session.epoch, session.last_used_mono_ms,
            [(fetched.topic, fetched.index) for fetched in session.dirty],
            [
                (
                    name, fetched.topic, fetched.offset, fetched.max_bytes, fetched.leader_epoch, fetched.last_fetched_epoch,
                    fetched.sent_high_watermark, fetched.sent_log_start_offset,
                )
                for name, fetched in session.partitions.items()
            ],
        )
        for session in handler.services.sessions._by_id.values()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "clients", "turns", "fewest"), [(Fetches, 60, 2500, 25), (SessionFetches, 5, 2000, 100)]
)
def test_fast_path_and_handler_answer_fetch_alike(
    tmp_path: Path, kind: type[Fetches], clients: int, turns: int, fewest: int
) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    harnesses = [fetching_world(tmp_path / dispatcher) for dispatcher in ("short", "long")]
    handlers = [harness.fetching for harness in harnesses]
    for handler in handlers:
        handler.services.max_bytes, handler.services.sessions.slots = 2000, 15
    short = DispatcherUnderTest(harnesses[0], handlers[0].routes(), has_fast_path=True)
    long = DispatcherUnderTest(harnesses[1], handlers[1].routes(), has_fast_path=False)
    everyone = [kind(harnesses[0], chance) for _ in range(clients)]
    exchanges: list[tuple[list[Any], list[Any]]] = []
    for turn in range(turns):
        if not exchanges or exchanges[-1][1] or chance.random() < 0.5:  # else repeat the request while it waits
            client = chance.choice(everyone)
        frame = frame_of(client.next(), client.version, chance)
        answers, expected = short.ask(frame), long.ask(frame)
        exchanges.append((answers, expected))
        load, index, wait_ms = chance.random() < 0.2, chance.randrange(3), chance.choice((0, 0, 1, 100, 10_000))
        for harness in harnesses:
            if load:
                harness.load("t", index, size=100)
            harness.pass_time(wait_ms)
            harness.drain_purgatory()
        assert answers == expected, f"seed {seed}, turn {turn}, version {client.version}, {frame.hex()}"
        assert sessions_of(handlers[0]) == sessions_of(handlers[1]), f"seed {seed}, turn {turn}, {frame.hex()}"
        client.take(expected)
        selects_replica = handlers[0].services.select_replica is not None
        if chance.random() < (0.05 if selects_replica else 0.002):
            for handler in handlers:
                handler.services.select_replica = None if selects_replica else lambda *_: 2
    assert [answers for answers, _ in exchanges] == [expected for _, expected in exchanges], f"seed {seed}"
    # 130 to 280 and 300 to 450 with most seeds; while a replica is selected, none.
    assert short.answered.total() > fewest, f"seed {seed}: too few requests took the fast path: {short.answered}"


# ---------------------------------------------------------------- Produce
_PLACES = ("t", "t", "t", "stamped", "replicated", "durable", "elsewhere", "unknown", "__consumer_offsets", _FORBIDDEN)


def producing_world(path: Any, *, is_held: bool) -> ReplicaHarness:
    harness = ReplicaHarness(path, authorizer=_DENIED, worker=HeldIoExecutor() if is_held else None)
    harness.create("t", partitions=2)
    harness.create("stamped", partitions=2, message_timestamp_type="LogAppendTime")
    harness.create("replicated", partitions=2, replicas=(1, 2))
    harness.create("durable", partitions=2, flush_messages=1)
    harness.create("elsewhere", partitions=2, replicas=(2, 3), leader=2)
    harness.create("__consumer_offsets", partitions=2)
    harness.create(_FORBIDDEN, partitions=2)
    return harness


def random_records(chance: random.Random, sequences: Counter[int]) -> bytearray | None:
    """A batch, sometimes corrupt, duplicate or unauthorized."""
    kind = chance.random()
    if kind < 0.03:
        return None
    if kind < 0.5:
        producer = chance.randrange(3)
        count = chance.choice((1, 3))
        sequence = sequences[producer] if chance.random() < 0.8 else chance.randrange(5)
        sequences[producer] = sequence + count
        return batch(count, producer_id=producer, producer_epoch=0, base_sequence=sequence)
    records = batch(
        chance.choice((1, 9, 40)), chance.choice((0, 10, 500)), compression=chance.choice((0, 0, 1, 2, 3, 4))
    )
    if kind < 0.6:
        records[chance.randrange(len(records))] ^= 1 << chance.randrange(8)
    elif kind < 0.65:
        del records[chance.randrange(len(records)) :]
    elif kind < 0.7:
        return batch(transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    return records


@pytest.mark.parametrize("is_held", [False, True])
def test_fast_path_and_handler_answer_produce_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_held: bool
) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    harnesses = [producing_world(tmp_path / dispatcher, is_held=is_held) for dispatcher in ("short", "long")]
    monkeypatch.setattr(time, "time_ns", lambda: harnesses[0].wall_ms * 1_000_000)
    short = DispatcherUnderTest(harnesses[0], harnesses[0].producing.routes(), has_fast_path=True)
    long = DispatcherUnderTest(harnesses[1], harnesses[1].producing.routes(), has_fast_path=False)
    sequences: Counter[int] = Counter()
    exchanges: list[tuple[list[Any], list[Any], bytes]] = []
    for _ in range(1000):
        version = chance.randrange(3, 14)
        batches = [(chance.choice(_PLACES), chance.randrange(3), random_records(chance, sequences))]
        if chance.random() < 0.3:
            usual = chance.random() < 0.5
            batches[not usual :] = [
                ("t" if usual else chance.choice(_PLACES), chance.randrange(2), batch(size=chance.choice((10, 200))))
                for _ in range(chance.randrange(1, 5))
            ]
        request = harnesses[0].produce_request(
            batches,
            version=version,
            acks=chance.choice((1, 1, -1, -1, 0, 5)),
            timeout_ms=chance.choice((-1, 0, 50)),
            transactional_id=chance.choice((None, None, None, None, "id")),
        )
        frame = frame_of(request, version, chance)
        exchanges.append((short.ask(frame), long.ask(frame), frame))
        happen(harnesses, chance)
    for turn, (answers, expected, frame) in enumerate(exchanges):
        assert answers == expected, f"seed {seed}, turn {turn}, {frame.hex()}"
    assert contents(harnesses[0]) == contents(harnesses[1]), f"seed {seed}"
    assert sum(short.answered.values()) > 100, f"seed {seed}: too few requests took the fast path: {short.answered}"


def happen(harnesses: list[ReplicaHarness], chance: random.Random) -> None:
    """Apply the same events to both worlds: held work runs, a follower fetches, time passes."""
    event = chance.random()
    for harness in harnesses:
        worker = harness.worker
        if isinstance(worker, HeldIoExecutor):
            if event < 0.6:
                while worker.writes:
                    worker.let_write()
            if event < 0.3:
                while worker.syncs:
                    worker.let_sync()
        if event < 0.2:
            for index in range(2):
                end = harness.partition("replicated", index).log.log_end_offset
                harness.fetch("replicated", index, end, replica=2, max_wait_ms=0)
        elif event > 0.8:
            harness.pass_time(30)


def contents(harness: ReplicaHarness) -> dict[Any, bytes]:
    """All bytes of all logs."""
    logs = {}
    for key, partition in harness.replicas.partitions.items():
        logs[key] = (
            bytes(wait_for_disk(partition.log.open().reader.read_records, 0, 1 << 30))
            if partition.log.log_end_offset
            else b""
        )
    return logs
