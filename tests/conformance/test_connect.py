"""Kafka Connect: a distributed worker copies the lines of a file through a topic into another file.

It uses compacted topics whose policy it verifies, a group of its own protocol type ("connect"), transactions of its source,
and committed offsets of its sink, which it resets.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pytest

from barnabas import Broker
from tests.support.kafka import CONNECT_JAR, free_port, kafka_home, needs_kafka, tool_command
from tests.support.waiting import until

pytestmark = [needs_kafka, pytest.mark.long]

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
FILES = "org.apache.kafka.connect.file.FileStream"
PATIENCE_S = 240.0


class Worker:
    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.port = free_port()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "workers",
            "listeners": f"HTTP://127.0.0.1:{self.port}",
            "plugin.path": kafka_home() / "libs" / CONNECT_JAR,
            "plugin.discovery": "service_load",
            "exactly.once.source.support": "enabled",
            "offset.flush.interval.ms": 500,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 2000,
            **dict.fromkeys(("key.converter", "value.converter"), "org.apache.kafka.connect.storage.StringConverter"),
            **{f"{what}.storage.topic": f"connect-{what}" for what in ("offset", "config", "status")},
            **{f"{what}.storage.replication.factor": 1 for what in ("offset", "config", "status")},
        }
        self._file = folder / "worker.properties"
        self._file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._log = folder / "worker.log"

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(tool_command(WORKER, self._file), stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # a graceful stop takes longer
        self._process.wait()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request until the worker accepts it; None for an empty response."""
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)

        def answer() -> bytes | None:
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                    return bytes(response.read()) or b"null"
            except OSError:
                return None

        return json.loads(until(answer, f"{method} {path}", PATIENCE_S, 0.1))

    def make(self, name: str, kind: str, **config: object) -> None:
        self.ask("PUT", f"/connectors/{name}/config", {"connector.class": f"{FILES}{kind}Connector", **config})


def lines(path: Path) -> Counter[str]:
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()


def test_lines_pass_through_workers_that_are_killed(tmp_path: Path) -> None:
    """Each line arrives once although the first worker is killed, and twice after the sink's offsets are reset."""
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_text("".join(f"first {n}\n" for n in range(200)))
    expected = lines(source)
    with Broker(settings={"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "5"}) as broker:
        with Worker(broker.bootstrap, tmp_path) as worker:
            worker.make("reads", "Source", file=str(source), topic="lines")
            worker.make("writes", "Sink", file=str(sink), topics="lines", **{
                "consumer.override.isolation.level": "read_committed"})  # fmt: skip
            until(lambda: lines(sink) == expected, "all lines have come", PATIENCE_S)

            def offset_of_sink() -> list[int]:
                result = worker.ask("GET", "/connectors/writes/offsets")["offsets"]
                return [entry["offset"]["kafka_offset"] for entry in result if entry["offset"]]

            until(lambda: any(offset_of_sink()), "the sink's offset is committed", PATIENCE_S)
        with source.open("a") as more:
            more.writelines(f"second {n}\n" for n in range(100))
        expected = lines(source)
        with Worker(broker.bootstrap, tmp_path) as worker:
            until(lambda: lines(sink) == expected, "the next worker goes on", PATIENCE_S)
            worker.ask("PUT", "/connectors/writes/stop")
            worker.ask("DELETE", "/connectors/writes/offsets")
            worker.ask("PUT", "/connectors/writes/resume")
            until(lambda: lines(sink) == expected + expected, "the sink reads all again", PATIENCE_S)
