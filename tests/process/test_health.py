"""`barnabas health` of nodes with and without TLS."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

import barnabas
from barnabas import health, safe_to_stop
from barnabas.advertised import find_unreachable
from barnabas.client.plain_requests import METADATA
from barnabas.cluster import free_ports
from barnabas.security import PROTOCOLS
from tests.support.librdkafka import create_topic
from tests.support.one_answer import answering
from tests.support.waiting import until


def test_a_plaintext_node_is_healthy_until_it_stops(capsys: pytest.CaptureFixture[str]) -> None:
    with barnabas.Broker() as broker:
        assert health.main([broker.bootstrap]) == 0
    assert health.main([broker.bootstrap]) == 1
    assert capsys.readouterr().err == f"barnabas: no answer from {broker.bootstrap}: Connection refused\n"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_closed_node_is_healthy_for_a_check_without_an_account(protocol: str) -> None:
    """SSL wants a certificate of the client."""
    with barnabas.Broker(security=barnabas.Security(protocol=protocol)) as broker:
        assert health.main([broker.bootstrap]) == 0


def test_a_check_that_knows_the_listener_costs_no_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with barnabas.Broker(security=barnabas.Security()) as broker:
        monkeypatch.setenv("KAFKA_LISTENERS", f"SASL_SSL://{broker.bootstrap}")
        before = broker.log()
        assert health.main([]) == 0
        assert broker.log() == before


def test_a_port_that_answers_nothing_is_not_healthy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert health.main([f"127.0.0.1:{silent.getsockname()[1]}"]) == 1
    assert "timed out" in capsys.readouterr().err


def test_the_metrics_listener_is_found_in_the_containers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single node is safe to stop until it has a topic; the listener accepts IPv4 and IPv6."""
    (port,) = free_ports(1)
    listener = f"HTTP://:{port}"
    with barnabas.Broker(settings={"barnabas.metrics.listener": listener}) as broker:
        monkeypatch.setenv("KAFKA_BARNABAS_METRICS_LISTENER", listener)
        assert health.main(["--safe-to-stop"]) == 0
        if socket.has_dualstack_ipv6():
            assert health.main(["--safe-to-stop", f"[::1]:{port}"]) == 0
        monkeypatch.delenv("KAFKA_BARNABAS_METRICS_LISTENER")
        mounted = tmp_path / "server.properties"
        mounted.write_text(f"barnabas.metrics.listener = {listener}\n")
        assert safe_to_stop.main([], {}, mounted) == 0
        create_topic(broker.bootstrap, "alone")
        until(lambda: safe_to_stop.main(["--wait", "1"], {}, mounted) == 1, "the node has a topic")
    assert capsys.readouterr().err == (
        "barnabas: 1 partition would have fewer in-sync replicas than min.insync.replicas without this node, or none: "
        "alone-0\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--wait"],
        ["--wait", "soon"],
        ["--wait", "\u00b2"],
        ["nonsense"],
        ["a:0"],
        ["a:65536"],
        [f"a:{'9' * 5000}"],
        ["127.0.0.1:1", "more"],
    ],
)
def test_wrong_arguments_of_safe_to_stop_are_a_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(["--safe-to-stop", *arguments]) == 2
    assert capsys.readouterr().err == "usage: barnabas health --safe-to-stop [--wait SECONDS] [HOST:PORT]\n"


def _answered(answer: bytes) -> str:
    """Runs --safe-to-stop against a server that sends these bytes, with exit status 1; returns the server's address."""
    with answering(answer) as address:
        assert health.main(["--safe-to-stop", address]) == 1
    return address


def test_a_proxy_in_front_of_the_metrics_listener_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    address = _answered(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 19\r\n\r\nno healthy upstream")
    assert f"{address} answers 503 without the reason of a node" in capsys.readouterr().err


def test_a_broker_is_not_a_metrics_listener(capsys: pytest.CaptureFixture[str]) -> None:
    with barnabas.Broker() as broker:
        assert health.main(["--safe-to-stop", broker.bootstrap]) == 1
    assert "no answer from the metrics listener" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["\u00b2", "\u0663", "0", "65536", "9" * 5000])
@pytest.mark.parametrize("options", [[], ["--advertised"]])
def test_a_port_that_is_none_is_named(options: list[str], port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main([*options, f"127.0.0.1:{port}"]) == 2
    assert capsys.readouterr().err == (
        f"barnabas: 127.0.0.1:{port} is not of the form HOST:PORT, such as 127.0.0.1:9092\n"
    )


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "a b"])
@pytest.mark.parametrize("options", [[], ["--advertised"], ["--safe-to-stop"]])
def test_a_name_that_no_host_has_is_a_reason(options: list[str], host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main([*options, f"{host}:9092"]) == 1
    assert capsys.readouterr().err.startswith("barnabas: no answer from ")


def test_an_advertised_name_that_no_host_has_is_unreachable() -> None:
    host = b"a" * 70
    answer = METADATA[4:8] + struct.pack(">iih", 1, 7, len(host)) + host + struct.pack(">ihiI", 9092, -1, 7, 0)
    near, far = socket.socketpair()
    with near, far:
        far.sendall(struct.pack(">i", len(answer)) + answer)
        (sentence,) = find_unreachable(near)
    assert sentence.startswith(f"clients are sent to node 7 at {host.decode()}:9092, which this machine does not reach")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"It works!"),
        (200, b"{}"),
        (503, b'{"count": "x", "partitions": [1]}'),
        (503, b'{"count": 1, "partitions": 1}'),
    ],
)
def test_only_a_nodes_own_answer_says_whether_it_is_safe_to_stop(
    status: int, body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    address = _answered(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
    assert f"{address} answers {status} without the reason of a node" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["PLAINTEXT-HOST", "INTERNAL.1", "SASL_SSL"])
def test_the_listener_of_the_environment_may_have_any_name(name: str, tmp_path: Path) -> None:
    listeners = f"{name}://kafka:29092,CONTROLLER://:9093"
    assert health.address([], {"KAFKA_LISTENERS": listeners}, tmp_path / "none") == ("kafka", 29092)


@pytest.mark.parametrize("content", [None, b"\xff", b"\xef\xbb\xbflisteners=\n#advertised\nx=PLAINTEXT://:1"])
def test_settings_that_cannot_be_read_have_no_address(content: bytes | None, tmp_path: Path) -> None:
    """An engine makes a folder of a mounted file that does not exist."""
    mounted = tmp_path / "server.properties"
    mounted.mkdir() if content is None else mounted.write_bytes(content)
    assert health.address([], {}, mounted) == ("127.0.0.1", 9092)
    assert safe_to_stop._own_address({}, mounted) == "127.0.0.1:9464"


@pytest.mark.parametrize(
    "lines",
    [
        "listeners=A://:1\nlisteners=B://:19092",
        "# a comment \\\nlisteners = \\\n   B://:19092,\\\n   C://:2\n",
        "listeners:B\\://\\:19092",
        "listeners=B://:19092\nother=\\\nlisteners=A://:1",
        "listeners=B://:19092,\\",
    ],
)
def test_mounted_settings_are_read_as_the_node_reads_them(lines: str, tmp_path: Path) -> None:
    mounted = tmp_path / "server.properties"
    mounted.write_text(lines)
    assert health.address([], {}, mounted) == ("127.0.0.1", 19092)


@pytest.mark.parametrize("options", [[], ["--advertised"], ["--safe-to-stop"]])
def test_help_is_no_wrong_argument(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("-h", "--help"):
        assert health.main([*options, option]) == 0
    assert capsys.readouterr().err == ""
