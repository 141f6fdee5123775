"""Log lines of the daemon as JSON, and the lines of slow requests."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import confluent_kafka

from barnabas import Broker
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import handshake, plain_token, sasl_node

FIELDS = {"time", "level", "logger", "message"}


def serve(data: Path, *settings: str) -> subprocess.Popen[str]:
    """A broker that accepts clients; its first line on standard output was read."""
    options = [option for setting in settings for option in ("--set", setting)]
    command = [sys.executable, "-m", "barnabas", "serve", "--data-dir", str(data), "--listen", "127.0.0.1:0", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def produce(ready: str) -> None:
    address = ready.split(" on ")[1].split(" ", maxsplit=1)[0]
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "client.id": "sender"})
    producer.produce("t", b"value")
    assert producer.flush(60) == 0


def lines_of(data: Path, *settings: str) -> list[str]:
    """The log of a broker that got a record and was stopped."""
    broker = serve(data, *settings)
    assert broker.stdout is not None
    produce(broker.stdout.readline())
    broker.terminate()
    return broker.communicate(timeout=60)[1].splitlines()


def test_every_line_is_a_json_object_also_those_before_the_settings_are_read(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "barnabas.log.format=json", "barnabas.slow.request.ms=0", "no.such.setting=1")
    logged = [json.loads(line) for line in lines]
    assert all(line.keys() >= FIELDS for line in logged)
    assert any("no.such.setting" in line["message"] for line in logged)
    slow = [line for line in logged if line["logger"] == "barnabas.slow" and line["api"] == "Produce"]
    assert slow[-1]["topics"] == 1
    assert slow[-1]["client"] == "sender"
    assert slow[-1]["total_ms"] >= slow[-1]["phases_ms"]["local"] > 0


def test_slow_requests_are_logged_as_text(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "barnabas.slow.request.ms=0")
    (line, *_) = [line for line in lines if "slow request: Produce" in line]
    assert "User:ANONYMOUS (client sender at 127.0.0.1:" in line
    assert line.endswith("topics: 1")


def test_slow_requests_that_cannot_be_read_again_end_no_node() -> None:
    settings, sasl = sasl_node({"barnabas.slow.request.ms": "0"})
    with Broker(settings=settings) as broker:
        with RawClient(sasl) as client:
            client.send_frame(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 1, 1) + b"c")
            assert client.receive_frame()[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
            handshake(client, "PLAIN", version=0)
            client.send_frame(plain_token("alice", "alice-secret"))
            assert client.receive_frame() == b""
            assert client.ask(message(MetadataRequest, topics=[]), 1).brokers
        with RawClient(sasl) as another:
            assert another.ask(message(ApiVersionsRequest), 0).error_code == ErrorCode.NONE
        lines = [line for line in broker.log().splitlines() if "slow request" in line]
    assert any("ApiVersions version 99" in line and line.endswith("topics: unknown") for line in lines)
    assert not any("alice" in line for line in lines if "Metadata" not in line)


def test_without_the_setting_no_request_is_slow(tmp_path: Path) -> None:
    assert not [line for line in lines_of(tmp_path) if "slow request" in line]


def test_a_start_that_fails_shows_the_lines_before_it(tmp_path: Path) -> None:
    broker = serve(tmp_path, "no.such.setting=1", "num.partitions=0")
    _, errors = broker.communicate(timeout=60)
    assert broker.returncode == 1
    assert "num.partitions" in errors.splitlines()[-1]
