"""`barnabas top`: once for programs, live on a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterable, Iterator
from unittest import mock

import pytest

import barnabas
from barnabas.admin import activity, offsets
from barnabas.admin.client import Client
from barnabas.admin.metrics_page import PageSample
from barnabas.cli import top
from barnabas.client.topic_partition import TopicPartition
from barnabas.cluster import free_ports
from tests.cli.running import COMMAND, Verbs
from tests.support.librdkafka import create_topic, produce


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    with barnabas.Broker() as broker:
        create_topic(broker.bootstrap, "flights", partitions=2)
        produce(broker.bootstrap, "flights", [b"12345"] * 10, partitions=2)
        found = Verbs(broker.bootstrap)
        found.rows("groups reset counters --topic flights:0 --to-offset 2 --execute")
        yield found


def test_once_prints_one_view_as_json(verbs: Verbs) -> None:
    [view] = verbs.rows("top --once --interval 100ms")
    assert [(row["topic"], row["partitions"], row["records_per_s"]) for row in view["topics"]] == [("flights", 2, 0)]
    assert view["topics"][0]["bytes"] > 50
    assert [(row["group"], row["lag"], row["catch_up_s"]) for row in view["groups"]] == [("counters", 3, None)]
    assert [(row["node"], row["leaders"]) for row in view["nodes"]] == [(1, 2)]
    [view] = verbs.rows("top --once --interval 100ms --internal")
    assert "__consumer_offsets" in {row["topic"] for row in view["topics"]}


def test_once_prints_one_view_as_tables(verbs: Verbs) -> None:
    ended = verbs.run("top --once --interval 100ms")
    assert ended.code == 0
    assert {"TOPIC", "GROUP", "NODE"} <= set(ended.out.split())
    assert "lag 3" in ended.out
    assert "no metrics page at 127.0.0.1:1" in verbs.refused("top --once --metrics 127.0.0.1:1")


def test_a_topic_that_is_deleted_meanwhile_is_left_out(verbs: Verbs) -> None:
    verbs.rows("topics create short")
    deleted: list[object] = []

    def high_watermarks(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        deleted.extend(verbs.rows("topics delete short") if not deleted else [])
        return offsets.high_watermarks(client, partitions)

    with mock.patch.object(activity, "high_watermarks", high_watermarks):
        [view] = verbs.rows("top --once --interval 100ms")
    assert [row["topic"] for row in view["topics"]] == ["flights"]
    assert deleted


def test_top_shows_requests_and_connections_of_a_metrics_page() -> None:
    [port] = free_ports(1)
    with barnabas.Broker(settings={"barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}"}) as broker:
        [view] = Verbs(broker.bootstrap).rows(f"top --once --interval 100ms --metrics 127.0.0.1:{port}")
        assert view["connections"] != 0  # at least this verb's, or unknown
        assert view["requests_per_s"]["Metadata"] > 0
        assert "Metadata" in Verbs(broker.bootstrap).run(f"top --once --metrics http://127.0.0.1:{port}/metrics").out


def test_bytes_of_a_node_that_was_restarted_are_no_negative_rate() -> None:
    before, after = PageSample(0.0, {}, None, 1000.0, 0.0), PageSample(2.0, {}, None, 10.0, 8.0)
    fields = top._page_fields(before, after)
    assert (fields["bytes_in_per_s"], fields["bytes_out_per_s"]) == (0, 4)


def test_top_runs_on_a_terminal_until_it_is_interrupted(verbs: Verbs) -> None:
    """Clients choose the names of groups: they are no markup, and a terminal does not obey them."""
    verbs.rows("groups reset [/x]\x1b[5m --topic flights:0 --to-offset 2 --execute")
    ours, theirs = pty.openpty()
    command = [*COMMAND, "top", "-b", verbs.bootstrap, "--interval", "100ms"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            shown = b""
            while b"counters" not in shown or b"[/x]" not in shown:
                shown += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            while chunk := _read(ours):
                shown += chunk
            assert process.wait() == 130
        finally:
            process.kill()
            os.close(ours)
    assert b"RECORDS-PER-S" in shown
    assert b"[/x]\\x1b[5m" in shown
    assert b"\x1b[5m" not in shown
    assert b"Traceback" not in shown


def test_a_dumb_terminal_gets_one_view_after_the_other(verbs: Verbs) -> None:
    """It stayed empty: rich draws no live view there."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, "top", "-b", verbs.bootstrap, "--interval", "100ms"]
    environment = {**os.environ, "TERM": "dumb"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            shown = b""
            while shown.count(b"RECORDS-PER-S") < 2:
                assert select.select([ours], [], [], 20)[0], "it shows nothing more"
                shown += _read(ours)
        finally:
            process.kill()
            os.close(ours)


def _read(terminal: int) -> bytes:
    """What the process wrote; empty at its end, which Linux reports as an error."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""
