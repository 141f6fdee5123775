"""The fast path of OffsetCommit responds and writes as the handler does, byte for byte, for random frames."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.security.authorizer import Operation, Resource
from protocol.errors import ErrorCode
from protocol.messages.groups import OffsetCommitRequest
from protocol.messages.transactions import TxnOffsetCommitResponse
from protocol.schema import Message
from tests.property.test_fast_paths import DispatcherUnderTest, frame_of
from tests.simulation.coordinators.journal import durable_state
from tests.support.deny import Deny
from tests.support.group_harness import LocalGroupHarness
from tests.support.group_requests import consumer_heartbeat, txn_commit_request
from tests.support.messages import message
from tests.support.seeds import seed_of
from tests.unit.broker.coordinators.runtime.test_coordinator_runtime import stable_group

_FORBIDDEN = "forbidden"
_DENIED = Deny((Operation.READ, Resource.TOPIC, _FORBIDDEN), (Operation.READ, Resource.GROUP, _FORBIDDEN))
_TOPICS = {"t": 3, "many": 300, "Größe": 2, "n" * 200: 2, _FORBIDDEN: 3}


class _Harness(LocalGroupHarness):
    """With a group of each kind, and what `DispatcherUnderTest` needs."""

    def __init__(self) -> None:
        super().__init__(offsets_partitions=1)
        for topic, partitions in {OFFSETS_TOPIC: 1, "__transaction_state": 5, **_TOPICS}.items():
            self.create_topic(topic, partitions)
        self.member_id = stable_group(self, "classic")
        subscription = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 60_000}
        self.ask(consumer_heartbeat("m", 0, "consumer", owned={}, **subscription), 1)
        self.authorize_by(_DENIED)

    def context(self, *_: int) -> Any:
        return SimpleNamespace(connection=self.connection)

    @property
    def mono_ms(self) -> int:
        return self.clock.now_mono_ms

    def commit_in_transaction(self) -> None:
        """Commit an offset of the group "simple" in a transaction that stays open."""
        commit = txn_commit_request("x", (5, 0), 3, "simple")
        topic_ids, wall_ms = {"t": self.topic_id("t")}, self.clock.wall_ms()
        self.runtime.write(
            "simple",
            lambda it: it.commit_transactional(commit, topic_ids, wall_ms),
            lambda _: TxnOffsetCommitResponse(topics=[]),
        )

    @property
    def log(self) -> Any:
        return self.logs[0]


def _request(harness: _Harness, chance: random.Random, version: int) -> Message:
    def partition(index: int) -> dict[str, Any]:
        is_usual = chance.random() < 0.99
        return {
            "partition_index": index,
            "committed_offset": chance.choice((0, 5, -1, 2**62)),
            "committed_leader_epoch": chance.choice((-1, 0, 2**31 - 1)) if version >= 6 else -1,
            "committed_metadata": chance.choice(("", None)) if is_usual else "note",
        }

    topics = []
    for _ in range(chance.choice((0, 1, 1, 1, 1, 1, 1, 2, 3))):
        name = chance.choice((*_TOPICS, *["t", "many"] * 6, "unknown"))
        known = harness.image.topics_by_name.get(name)
        count = chance.choice((0, 1, 2, 64, 65, 129)) if name == "many" else chance.choice((1, 1, 1, 2))
        topic = {"name": name, "topic_id": bytes(16) if known is None else known.topic_id}
        topics.append({**topic, "partitions": [partition(index + (chance.random() < 0.02)) for index in range(count)]})
    group = chance.choice((*["simple", "classic", "consumer"] * 5, _FORBIDDEN, "g" * 130))
    member = {"classic": (harness.member_id, 1), "consumer": ("m", 1)}.get(group, ("", -1))
    if chance.random() < 0.1:
        member = chance.choice((("", -1), ("other", 1), (member[0], 7)))
    request = message(
        OffsetCommitRequest,
        group_id=group,
        member_id=member[0],
        generation_id_or_member_epoch=member[1],
        group_instance_id="i" if version >= 7 and chance.random() < 0.05 else None,
        retention_time_ms=1000 if version <= 4 and chance.random() < 0.2 else -1,
        topics=topics,
    )
    if version >= 8 and chance.random() < 0.05:
        request.unknown_tagged_fields = {99: b"new"}
    return request


def test_fast_path_and_handler_answer_offset_commit_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    harnesses = [_Harness(), _Harness()]
    monkeypatch.setattr(time, "time_ns", lambda: harnesses[0].clock.wall_ms() * 1_000_000)
    short, long = (
        DispatcherUnderTest(harness, harness.offset_handlers.routes()[:1], has_fast_path=is_short)  # type: ignore[arg-type]
        for harness, is_short in zip(harnesses, (True, False), strict=True)
    )
    exchanges: list[tuple[list[Any], list[Any], bytes]] = []
    for turn in range(1500):
        version = chance.choice((2, 5, 7, 8, 8, 9, 9, 10, 10, 10))
        frame = frame_of(_request(harnesses[0], chance, version), version, chance)
        refusal = chance.choice((None,) * 20 + (ErrorCode.NOT_ENOUGH_REPLICAS,))
        is_held, outcome = chance.random() < 0.3, chance.choice((ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        for harness in harnesses:
            harness.log.refusal, harness.log.is_holding = refusal, is_held
            harness.log.max_batch_bytes = 3000 if turn % 5 == 0 else 1_000_000
        exchanges.append((short.ask(frame), long.ask(frame), frame))
        wait_ms, is_transaction = chance.choice((0, 0, 1, 10)), chance.random() < 0.05
        for harness in harnesses:
            if turn % 3 == 0:
                harness.log.release(outcome)
            if is_transaction:
                harness.commit_in_transaction()
            harness.advance(wait_ms)
        if turn % 10 == 0:
            assert durable_state(harnesses[0]) == durable_state(harnesses[1]), f"seed {seed}, turn {turn}"
    for harness in harnesses:
        harness.log.release()
    for turn, (answers, expected, frame) in enumerate(exchanges):
        assert answers == expected, f"seed {seed}, turn {turn}, {frame.hex()}"
    assert harnesses[0].log.batches == harnesses[1].log.batches, f"seed {seed}"
    assert sum(short.answered.values()) > 100, f"seed {seed}: too few requests took the fast path: {short.answered}"
