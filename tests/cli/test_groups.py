"""`consume --group`: what was printed is committed, and the members share the partitions."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from kafka import KafkaConsumer

from barnabas import Broker
from barnabas.cli import group_member
from tests.cli.running import TIMEOUT_S, Verbs, barnabas, running, values
from tests.support.loading import create
from tests.support.raw_client import RawClient


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as running_broker:
        yield running_broker


def write(broker: Broker, topic: str, *words: str, partition: int = 0) -> None:
    lines = "".join(f"{word}\n" for word in words).encode()
    done = barnabas("produce", "-b", broker.bootstrap, topic, "-l", "-p", str(partition), stdin=lines)
    assert done.returncode == 0, done.stderr


def test_a_group_continues_after_what_was_printed(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "continued")
    write(broker, "continued", "a", "b", "c")
    assert values(broker.bootstrap, "continued", "-g", "g", "-n", "2") == ["a", "b"]
    assert values(broker.bootstrap, "continued", "-g", "g") == ["c"]
    assert values(broker.bootstrap, "continued", "-g", "g") == []
    write(broker, "continued", "d")
    assert values(broker.bootstrap, "continued", "-g", "g") == ["d"]
    assert values(broker.bootstrap, "continued", "-g", "other", "-o", "-1") == ["d"]


def test_a_signal_commits_and_another_member_takes_over(broker: Broker) -> None:
    """The second member has no partition until the first one leaves."""
    with RawClient(broker.bootstrap) as client:
        create(client, "shared")
    with running(broker.bootstrap, "consume", "shared", "-g", "s", "-F") as first:
        assert first.stdout is not None
        write(broker, "shared", "one")
        assert json.loads(first.stdout.readline())["value"] == "one"
        with running(broker.bootstrap, "consume", "shared", "-g", "s", "-F") as second:
            assert second.stdout is not None
            first.send_signal(signal.SIGTERM)
            assert first.wait(TIMEOUT_S) == 143
            write(broker, "shared", "two")
            assert json.loads(second.stdout.readline())["value"] == "two"
            second.send_signal(signal.SIGINT)
            assert second.wait(TIMEOUT_S) == 130
            assert second.stdout.read() == b""


def test_a_member_that_follows_gets_new_partitions(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "grown")
    with running(broker.bootstrap, "consume", "grown", "-g", "f", "-F") as member:
        assert member.stdout is not None
        write(broker, "grown", "one")
        assert json.loads(member.stdout.readline())["value"] == "one"
        assert barnabas("topics", "alter", "grown", "-p", "2", "-b", broker.bootstrap).returncode == 0
        write(broker, "grown", "two", partition=1)
        assert json.loads(member.stdout.readline())["value"] == "two"
        member.send_signal(signal.SIGINT)
        assert member.wait(TIMEOUT_S) == 130


def test_a_group_that_does_not_admit_the_member_is_a_failure(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member is busy with its records, and does not take part in the rebalance."""
    monkeypatch.setattr(group_member, "REBALANCE_MS", 300)
    monkeypatch.setattr(group_member, "JOIN_S", 0.1)
    monkeypatch.setattr(group_member, "LEAVE_MS", 100)
    with RawClient(broker.bootstrap) as client:
        create(client, "busy")
    write(broker, "busy", "one")
    member = KafkaConsumer("busy", group_id="b", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    try:
        # One poll: kafka-python 3.0.12 never gets out of a rebalance that a timeout has interrupted.
        assert member.poll(TIMEOUT_S * 1000), "the member has partitions"
        assert Verbs(broker.bootstrap).refused("consume busy -g b") == (
            "Group b has not finished its rebalance after 0.3 s: a member may be busy, or the coordinator may not answer."
        )
    finally:
        member.close()
