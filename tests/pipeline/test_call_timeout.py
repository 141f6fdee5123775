"""Calls with a timeout, and the call of librdkafka that needs it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

pytest.importorskip("pyspark")

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.kafka import sender
from barnabas.pipeline.kafka.sender import SendOptions, call_with_timeout


def refuse() -> None:
    raise ValueError("refused")


def test_a_call_returns_raises_or_times_out() -> None:
    assert call_with_timeout(60, lambda: 7, "too late") == 7
    with pytest.raises(ValueError, match="refused"):
        call_with_timeout(60, refuse, "too late")
    never = threading.Event()
    with pytest.raises(JobError, match="too late"):
        call_with_timeout(0.01, never.wait, "too late")
    never.set()


class StuckClient:
    """A Kafka client whose send_offsets_to_transaction never returns."""

    KafkaException = KafkaException

    def __init__(self) -> None:
        self.never = threading.Event()
        self.calls: list[str] = []

    def TopicPartition(self, *position: Any) -> Any:  # noqa: N802 - the client's name
        return position

    def Consumer(self, _settings: Any) -> Any:  # noqa: N802 - the client's name
        placed = [SimpleNamespace(offset=-1001)]
        return SimpleNamespace(
            committed=lambda *_, **__: placed,
            consumer_group_metadata=lambda: None,
            close=lambda: self.calls.append("close"),
        )

    def Producer(self, _settings: Any) -> Any:  # noqa: N802 - the client's name
        names = ("init_transactions", "begin_transaction", "produce", "poll", "flush", "commit_transaction")
        noted = {name: lambda *_, name=name, **__: self.calls.append(name) for name in names}
        return SimpleNamespace(**noted, send_offsets_to_transaction=lambda *_: self.never.wait())


def test_a_lost_coordinator_fails_the_task_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    client = StuckClient()
    monkeypatch.setattr(sender, "import_shipped", lambda _: client)
    monkeypatch.setattr(sender, "TIMEOUT_S", 0.01)
    row = SimpleNamespace(offset=4, to_topic="to", to_partition=0, key=None, value=b"v", headers=None, ms=1)
    with pytest.raises(JobError, match="did not accept the offset of from-0"):
        sender._PartitionSender(SendOptions({}, "group"), "from", 0).send([row])
    client.never.set()
    assert client.calls == ["init_transactions", "begin_transaction", "produce", "poll", "flush", "close"]
