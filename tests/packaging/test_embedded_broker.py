"""The embedded broker with the real daemon: startup errors, a crash, an orphaned process."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from barnabas import Broker
from barnabas.embedded import BrokerError

STARTER = """
import sys, barnabas
broker = barnabas.Broker(sys.argv[1]).start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


def test_a_port_in_use_is_one_line() -> None:
    """embedded.py rule 2: the daemon's error message, without its log."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError) as refusal:
            Broker(port=port).start()
    words = str(refusal.value)
    assert "\n" not in words
    assert str(port) in words


def test_a_directory_in_use_is_one_line(tmp_path: Path) -> None:
    """embedded.py rule 2; the first broker continues."""
    with Broker(tmp_path / "data") as first:
        with pytest.raises(BrokerError) as refusal:
            Broker(tmp_path / "data").start()
        assert "\n" not in str(refusal.value)
        assert str(tmp_path / "data") in str(refusal.value)
        assert first.is_running
    assert first.bootstrap


def test_an_invalid_setting_is_one_line() -> None:
    """embedded.py rule 2."""
    with pytest.raises(BrokerError, match=r"num\.partitions") as refusal:
        Broker(settings={"num.partitions": "many"}).start()
    assert "\n" not in str(refusal.value)


def test_a_crash_loses_nothing_acknowledged() -> None:
    """embedded.py rule 5: the same port and the same data after SIGKILL."""
    with Broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        sent = [producer.send("t", value=str(number).encode(), partition=0) for number in range(100)]
        offsets = [future.get(timeout=60).offset for future in sent]
        producer.close()
        address = broker.bootstrap
        broker.kill()
        broker.restart()
        assert broker.bootstrap == address
        consumer = KafkaConsumer(
            "t", bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=60_000
        )
        received = [(record.offset, record.value) for _, record in zip(range(100), consumer, strict=False)]
        consumer.close()
    assert received == [(offset, str(number).encode()) for number, offset in enumerate(offsets)]


def test_an_orphaned_daemon_stops_cleanly(tmp_path: Path) -> None:
    """embedded.py rule 3: its parent process is killed, and it stops cleanly."""
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, tmp_path / "data"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert starter.stdin is not None
    assert starter.stdout is not None
    with starter, starter.stdin, starter.stdout:
        gone = os.pidfd_open(int(starter.stdout.readline()))
        starter.send_signal(signal.SIGKILL)
        assert select.select([gone], [], [], 10)[0], "the daemon is still there"
        os.close(gone)
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
