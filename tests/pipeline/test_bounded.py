"""Calls that may not come back, and the one of librdkafka that does not."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.kafka import sender
from barnabas.pipeline.kafka.call_timeout import within
from barnabas.pipeline.kafka.sender import Sending


def refuse() -> None:
    raise ValueError("refused")


def test_an_answer_and_a_failure_come_through_and_a_call_without_end_is_given_up() -> None:
    """bounded.py rule 1."""
    assert within(60, lambda: 7, "too late") == 7
    with pytest.raises(ValueError, match="refused"):
        within(60, refuse, "too late")
    never = threading.Event()
    with pytest.raises(JobError, match="too late"):
        within(0.01, never.wait, "too late")
    never.set()


class StuckClient:
    """A Kafka client whose offsets are taken by nobody."""

    def __init__(self) -> None:
        self.never = threading.Event()
        self.calls: list[str] = []

    def TopicPartition(self, *place: Any) -> Any:  # noqa: N802 - the client's name
        return place

    def Consumer(self, _settings: Any) -> Any:  # noqa: N802 - the client's name
        placed = [SimpleNamespace(offset=-1001)]
        return SimpleNamespace(
            committed=lambda *_, **__: placed,
            consumer_group_metadata=lambda: None,
            close=lambda: self.calls.append("close"),
        )

    def Producer(self, _settings: Any) -> Any:  # noqa: N802 - the client's name
        names = ("init_transactions", "begin_transaction", "produce", "poll", "commit_transaction")
        noted = {name: lambda *_, name=name, **__: self.calls.append(name) for name in names}
        return SimpleNamespace(**noted, send_offsets_to_transaction=lambda *_: self.never.wait())


def test_a_coordinator_that_goes_at_the_wrong_moment_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """sending.py rule 6: nothing is committed, and the next run sends it."""
    client = StuckClient()
    monkeypatch.setattr(sender, "shipped_client", lambda: client)
    monkeypatch.setattr(sender, "LIMIT_S", 0.01)
    row = SimpleNamespace(offset=4, to_topic="to", to_partition=0, key=None, value=b"v", headers=None, ms=1)
    with pytest.raises(JobError, match="did not take the place of from-0"):
        sender._Line(Sending({}, "group"), "from", 0).send([row])
    client.never.set()
    assert client.calls == ["init_transactions", "begin_transaction", "produce", "poll", "close"]
