"""What people trip over, each tried: addresses, IPv6, open files, clocks, old clients, other protocols.

NOT HERE Ports in use and directories (test_start.py), full disks (test_full_disk.py), permissions
         (tests/packaging/test_image.py); the page for users (docs/troubleshooting.md).
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

import barnabas
from barnabas import health
from barnabas.cluster import free_ports
from barnabas.embedded import MAIN, BrokerError
from broker.network.closing_log import ClosingLog
from broker.network.repeated_lines import INTERVAL_S, MOST
from tests.faults import preload
from tests.support.byte_relay import ByteRelay
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.waiting import until

PRODUCE, FETCH, METADATA = 0, 1, 3
INVALID_RECORD = 87
TWO_HOURS_S = 7200


def addresses(bootstrap: str) -> list[tuple[str, int]]:
    """The brokers that a client is sent to."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers.values()
    return [(str(broker.host), broker.port) for broker in found]


def request(key: int, version: int, body: bytes) -> bytes:
    """A request of an old client, which this project's codec does not encode."""
    header = struct.pack(">hhih3s", key, version, 7, 3, b"old")
    return struct.pack(">i", len(header) + len(body)) + header + body


def ask(broker: barnabas.Broker, data: bytes) -> bytes:
    """The answer to raw bytes; empty if the connection is closed."""
    with socket.create_connection((broker.host, broker.port), 30) as connection:
        connection.sendall(data)
        return connection.recv(4096)


def lines(broker: barnabas.Broker, words: str) -> list[str]:
    """The log lines with these words, when there is one."""
    return until(lambda: [line for line in broker.log().splitlines() if words in line], f"the log says {words!r}")


def members_of(member: Consumer, admin: AdminClient, group: str) -> list[Any]:
    """The members of a group, after a poll of one of them."""
    member.poll(0.1)
    return list(admin.describe_consumer_groups([group])[group].result(30).members)


# ---- addresses ----------------------------------------------------------------------------------------------------


def test_a_node_on_all_addresses_sends_each_client_to_the_address_that_it_used() -> None:
    """IPv4, IPv6, and another address of this machine, at the same time."""
    (port,) = free_ports(1)
    with barnabas.Broker(port=port, settings={"listeners": f"PLAINTEXT://:{port}"}):
        assert addresses(f"127.0.0.1:{port}") == [("127.0.0.1", port)]
        assert addresses(f"127.0.0.2:{port}") == [("127.0.0.2", port)]
        if socket.has_dualstack_ipv6():
            assert addresses(f"[::1]:{port}") == [("::1", port)]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_addresses_of_clients_are_written_as_java_writes_them() -> None:
    """On a socket for IPv4 and IPv6 too, in groups and in the log."""
    (port,) = free_ports(1)
    settings = {"listeners": f"PLAINTEXT://:{port}", "group.initial.rebalance.delay.ms": "0"}
    with barnabas.Broker(port=port, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "t")
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        for address, written in (("127.0.0.1", "/127.0.0.1"), ("[::1]", "/0:0:0:0:0:0:0:1")):
            member = Consumer({"bootstrap.servers": f"{address}:{port}", "group.id": address})
            member.subscribe(["t"])
            (joined,) = until(partial(members_of, member, admin, address), "the member has joined")
            assert joined.host == written
            member.close()
        assert ask(broker, b"GET / HTTP/1.1\r\n\r\n") == b""
        assert lines(broker, "closing 127.0.0.1:")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_node_serves_on_an_ipv6_address_alone() -> None:
    with barnabas.Broker(host="::1") as broker:
        assert addresses(broker.bootstrap) == [("::1", broker.port)]
        assert health.main([broker.bootstrap]) == 0


def test_a_forwarded_port_works_when_it_is_advertised(capsys: pytest.CaptureFixture[str]) -> None:
    """A client is sent to an address that only the node's network has; the check says which setting is wrong."""
    wrong, port = free_ports(2)
    with ByteRelay(port) as forwarded:
        own = {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        outside = f"127.0.0.1:{forwarded.port}"
        with barnabas.Broker(port=port, settings={**own, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{wrong}"}):
            assert health.main([outside]) == 0
            assert health.main(["--advertised", outside]) == 1
        assert capsys.readouterr().err == (
            f"barnabas: clients are sent to node 1 at 127.0.0.1:{wrong}, which this machine does not reach (Connection "
            "refused): set advertised.listeners of node 1 to an address that it reaches\n"
        )
        with barnabas.Broker(port=port, settings={**own, "advertised.listeners": f"PLAINTEXT://{outside}"}):
            assert health.main(["--advertised", outside]) == 0
            assert addresses(outside) == [("127.0.0.1", forwarded.port)]


def test_the_addresses_of_a_closed_node_need_a_login(capsys: pytest.CaptureFixture[str]) -> None:
    with barnabas.Broker(security=barnabas.Security()) as broker:
        assert health.main(["--advertised", broker.bootstrap]) == 1
    assert "does not say its addresses to a client without a login" in capsys.readouterr().err


# ---- open files ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="there is no prlimit (util-linux)")
def test_a_low_limit_of_open_files_is_a_log_line(tmp_path: Path) -> None:
    command = ["prlimit", "--nofile=256:256", sys.executable, str(MAIN), "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--data-dir", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        assert node.stderr is not None
        assert node.stdout.readline().startswith("barnabas ready on ")
        node.terminate()
        log = node.stderr.read()
    assert "the limit of open files is 256: at most 96 connections, and 96 log files are kept open; raise it" in log


# ---- clocks -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_clock_that_is_set_back_refuses_records_of_the_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By more than message.timestamp.after.max.ms, an hour; sessions, timeouts and older records are not affected."""
    built = preload.libraries(tmp_path)
    if not built:
        pytest.skip("there is no C compiler")
    for word in preload.environment(built, tmp_path)[1:]:
        monkeypatch.setenv(*word.split("=", 1))
    with barnabas.Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

        def send() -> str | None:
            errors: list[str | None] = []
            producer.produce(
                "t", b"x", on_delivery=lambda error, _: errors.append(None if error is None else error.name())
            )
            assert producer.flush(60) == 0
            return errors[0]

        assert send() is None
        preload.shift_clock(tmp_path, -TWO_HOURS_S)
        assert send() == "INVALID_TIMESTAMP"
        now_ms = int(time.time() * 1000)
        producer.produce("t", b"old", timestamp=now_ms - (TWO_HOURS_S + 60) * 1000)
        assert producer.flush(60) == 0
        preload.restore_clock(tmp_path)
        assert send() is None


# ---- old clients and other protocols ------------------------------------------------------------------------------


def old_batch(magic: int) -> bytes:
    """A message set of format 0 or 1 with one message."""
    rest = struct.pack(">bb", magic, 0) + bytes(8 * magic) + struct.pack(">ii", -1, 1) + b"x"
    return struct.pack(">qiI", 0, len(rest) + 4, zlib.crc32(rest)) + rest


def test_old_clients_are_named_in_the_log_once() -> None:
    """Versions before those of Apache Kafka 2.1, as its release 4.0 (KIP-896)."""
    with barnabas.Broker() as broker:
        for _ in range(3):
            assert ask(broker, request(FETCH, 3, struct.pack(">iiiii", -1, 100, 1, 1000, 0))) == b""
        (line,) = lines(broker, "of FETCH")
        assert "the client is older than Apache Kafka 2.1 (KIP-896): it uses version 3 of FETCH, and 4 to " in line
        assert ask(broker, request(METADATA, 99, b"")) == b""
        (line,) = lines(broker, "of METADATA")
        assert "the client is newer than this broker: it uses version 99 of METADATA, and 0 to " in line


def test_old_record_formats_are_refused() -> None:
    with barnabas.Broker() as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "t")
        for magic in (0, 1):
            batch = old_batch(magic)
            header = struct.pack(">hhiih1sii", -1, 1, 1000, 1, 1, b"t", 1, 0)
            answer = ask(broker, request(PRODUCE, 3, header + struct.pack(">i", len(batch)) + batch))
            (code,) = struct.unpack_from(">h", answer, 23)
            assert code == INVALID_RECORD


def test_other_protocols_on_a_listener_are_named() -> None:
    hello = bytes.fromhex("1603010200010001fc0303") + bytes(600)
    with barnabas.Broker() as broker:
        assert ask(broker, b"GET / HTTP/1.1\r\n\r\n") == b""
        assert lines(broker, "the client uses HTTP; this is a listener of Kafka's protocol")
        assert ask(broker, hello) == b""
        assert lines(broker, "the client uses TLS, but this listener does not (listener.security.protocol.map)")


def test_a_reason_is_logged_once_a_minute_for_a_host(caplog: pytest.LogCaptureFixture) -> None:
    log = ClosingLog()
    for second in (0.0, 1.0, 2.0, INTERVAL_S):
        log.add("10.0.0.1", 5, "old", second)
    log.add("10.0.0.2", 5, "old", 3.0)
    assert [record.getMessage() for record in caplog.records] == [
        "closing 10.0.0.1:5: old",
        "closing 10.0.0.1:5: old (2 other connections of this host since the last line)",
        "closing 10.0.0.2:5: old",
    ]
    for number in range(2 * MOST):
        log.add(f"host {number}", 5, "old", 4.0)
    assert len(log._lines) <= MOST


# ---- directories --------------------------------------------------------------------------------------------------


def test_another_cluster_id_is_one_sentence(tmp_path: Path) -> None:
    with barnabas.Broker(tmp_path / "data", arguments=["--cluster-id", "AAAAAAAAAAAAAAAAAAAAAQ"]):
        pass
    other = barnabas.Broker(tmp_path / "data", arguments=["--cluster-id", "AAAAAAAAAAAAAAAAAAAAAg"])
    with pytest.raises(BrokerError, match="belongs to cluster AAAAAAAAAAAAAAAAAAAAAQ, but --cluster-id says"):
        other.start()
    other.close()


def test_a_file_system_root_can_be_a_log_directory(tmp_path: Path) -> None:
    """`lost+found` of ext4 is left alone."""
    (tmp_path / "data" / "lost+found").mkdir(parents=True)
    with barnabas.Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        create(client, "t")
    assert (tmp_path / "data" / "lost+found").is_dir()
