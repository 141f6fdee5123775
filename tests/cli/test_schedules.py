"""`barnabas schedules`: what is pending in schedule topics, and its cancellation."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import barnabas
from tests.cli.running import Verbs
from tests.cli.running import barnabas as run_verb
from tests.support.librdkafka import read_to_end
from tests.support.waiting import until

_HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    with barnabas.Broker(settings={"offsets.topic.num.partitions": 4}) as broker:
        made = Verbs(broker.bootstrap)
        made.rows("topics create target")
        made.rows("topics create later -p 2 -c barnabas.deliver.to=target")
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        due_ms = int(time.time() * 1000) + _HOUR_MS
        for number in range(6):
            headers: list[tuple[str, str | bytes | None]] = [("deliver-at", b"%d" % (due_ms + number))]
            producer.produce("later", b"value", key=b"k%d" % (number % 3), partition=number % 2, headers=headers)
        producer.produce("later", b"value", key=b"k0", partition=0)  # at once
        assert producer.flush(30) == 0
        until(lambda: read_to_end(broker.bootstrap, "target", "read_committed"), "one is delivered")
        yield made


def test_list_counts_what_is_pending_in_each_schedule_topic(verbs: Verbs) -> None:
    [row] = verbs.rows("schedules list")
    assert (row["topic"], row["target"], row["pending"], row["overdue"]) == ("later", "target", 6, 0)
    assert "is no schedule topic" in verbs.refused("schedules list target")


def test_list_says_that_the_first_record_is_due_at_once(verbs: Verbs) -> None:
    verbs.rows("topics create gone")
    verbs.rows("topics create waiting -c barnabas.deliver.to=gone")
    verbs.rows("topics delete gone --yes")  # so nothing is delivered
    assert verbs.rows("schedules list waiting")[0]["first_due"] is None
    producer = Producer({"bootstrap.servers": verbs.bootstrap})
    producer.produce("waiting", b"value")
    assert producer.flush(30) == 0
    [row] = verbs.rows("schedules list waiting")
    assert (row["pending"], row["overdue"], row["first_due"]) == (1, 1, "now")
    verbs.rows("topics delete waiting --yes")


def test_a_refused_record_of_a_schedule_topic_is_told_from_one_of_a_compacted_topic(verbs: Verbs) -> None:
    words = ["later", "-b", verbs.bootstrap, "-H", "deliver-after=soon"]
    done = run_verb("produce", *words, stdin=b'{"value":"v"}\n')
    assert done.returncode == 1
    assert b"for a schedule topic" in done.stderr
    assert b"deliver-after is wrong" in done.stderr


def test_pending_shows_the_records_in_the_order_in_which_they_are_due(verbs: Verbs) -> None:
    rows = verbs.rows("schedules pending later -n 4")
    assert [row["key"] for row in rows] == ["k0", "k1", "k2", "k0"]
    assert [row["partition"] for row in rows] == [0, 1, 0, 1]
    assert [row["bytes"] for row in rows] == [5] * 4
    assert len(verbs.rows("schedules pending later --key k1 --key k2")) == 4


def test_cancel_shows_first_and_cancels_then(verbs: Verbs) -> None:
    shown = verbs.run("schedules cancel later --key k2")
    assert "repeat it with --execute" in shown.err
    assert len(verbs.rows("schedules pending later")) == 6
    assert len(verbs.rows("schedules cancel later --key k2 --execute")) == 2
    assert {row["key"] for row in verbs.rows("schedules pending later")} == {"k0", "k1"}


def test_a_group_of_deliverers_is_reset_while_nothing_is_delivered(verbs: Verbs) -> None:
    """As docs/delayed-delivery.md says."""
    verbs.rows("topics create again-target")
    verbs.rows("topics create again -c barnabas.deliver.to=again-target -c barnabas.deliver.max.ms=9223372036854775807")
    producer = Producer({"bootstrap.servers": verbs.bootstrap})
    for number in range(4):
        producer.produce("again", b"%d" % number)
    producer.produce("again", b"far", headers=[("deliver-at", b"9" * 18)])
    assert producer.flush(30) == 0

    def delivered() -> list[bytes | None]:
        return sorted(one.value() or b"" for one in read_to_end(verbs.bootstrap, "again-target", "read_committed"))

    until(lambda: len(delivered()) == 4, "all are delivered")
    reset = "groups reset schedule-again --to-offset 2 --execute"
    deletions = "groups delete schedule-again --yes", "groups delete-offsets schedule-again --topic again --execute"
    for change in (reset, *deletions):
        assert "the deliveries of its schedule topic, use it: end them first" in verbs.refused(change)
    [row] = verbs.rows("schedules list again")
    assert (row["pending"], row["first_due"]) == (1, "9" * 18)
    verbs.rows("configs delete topic again barnabas.deliver.to")
    verbs.rows(reset)
    verbs.rows("configs set topic again barnabas.deliver.to=again-target")
    until(lambda: len(delivered()) == 6, "two are delivered again")
    assert delivered() == [b"0", b"1", b"2", b"2", b"3", b"3"]
