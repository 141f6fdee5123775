"""A broker with few descriptors: many used partitions (storage/io/file_handle_cache.py), many connections."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from barnabas.cluster import free_ports
from barnabas.embedded import READY, Broker
from broker.process.resource_limits import MAX_OPEN_FILES, RESERVED_DESCRIPTORS
from protocol.messages.metadata import ApiVersionsRequest
from tests.support.librdkafka import create_topic, produce, read_to_end
from tests.support.raw_client import RawClient
from tests.support.storage_engine import default_engine

MOST_FILES = 100
REOPENED = 2
"""A file that is closed, and opened again with the same number before the next look, counts as open all the time."""
WIDTH = 400
ROUNDS = 3
FEW_DESCRIPTORS = 200


class Watch:
    """The most descriptors that a process was seen to have: of its data, of sockets, of other things.

    Looking at all of them takes a while, in which one is closed and its number taken by another. Those that were the same
    in one look and in the next were open together, between the two.
    """

    def __init__(self, pid: int, data: Path) -> None:
        self._folder, self._data = f"/proc/{pid}/fd", str(data)
        self.most: Counter[str] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self._thread.start()

    def end(self) -> None:
        """Stops watching."""
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        before: set[tuple[str, str]] = set()
        while not self._over.wait(0.001):
            now = set(self._targets())
            self.most |= Counter(self._kind(target) for _, target in before & now)
            before = now

    def _targets(self) -> Iterator[tuple[str, str]]:
        for name in os.listdir(self._folder):
            with suppress(FileNotFoundError):  # closed meanwhile
                yield name, os.readlink(f"{self._folder}/{name}")

    def _kind(self, target: str) -> str:
        """Files beside the partitions, such as checkpoints, are others: the limit is that of the logs."""
        if os.path.dirname(target).startswith(f"{self._data}/"):
            return "data"
        return "sockets" if target.startswith("socket:") else "others"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """With one topic."""
    with Broker(tmp_path / "data", settings={MAX_OPEN_FILES: MOST_FILES}) as running:
        create_topic(running.bootstrap, "t", WIDTH)
        yield running


def read(broker: Broker) -> Counter[tuple[int, bytes]]:
    """The partition and the first byte of each record."""
    return Counter((record.partition(), record.value()[:1]) for record in read_to_end(broker.bootstrap, "t"))


def test_open_files_stay_below_the_limit(broker: Broker) -> None:
    watch = Watch(broker.pid, broker.data_dir)
    try:
        for number in range(ROUNDS):
            produce(broker.bootstrap, "t", [b"%d" % number * 2000] * WIDTH, WIDTH, linger_ms=5)
        founds: list[Counter[tuple[int, bytes]]] = []
        readers = [threading.Thread(target=lambda: founds.append(read(broker))) for _ in range(2)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        watch.end()
    everything = Counter((partition, b"%d" % number) for partition in range(WIDTH) for number in range(ROUNDS))
    assert founds == [everything, everything]
    if default_engine() == "segments":
        assert watch.most["data"] > MOST_FILES // 2, "the limit was reached"
    assert watch.most["data"] <= MOST_FILES + REOPENED
    assert watch.most["sockets"] + watch.most["others"] < RESERVED_DESCRIPTORS


def test_connections_of_one_listener_leave_descriptors_for_log_files_and_other_listeners(tmp_path: Path) -> None:
    clients, controllers = (f"127.0.0.1:{port}" for port in free_ports(2))
    limited = ["sh", "-c", f'ulimit -n {FEW_DESCRIPTORS}; exec "$@"', "sh"]
    serve = [sys.executable, "-m", "barnabas", "serve", "--data-dir", str(tmp_path / "data")]
    listeners = f"listeners=PLAINTEXT://{clients},CONTROLLER://{controllers}"
    daemon = subprocess.Popen([*limited, *serve, "--set", listeners], stdout=subprocess.PIPE, text=True)
    try:
        assert daemon.stdout is not None
        assert READY.match(daemon.stdout.readline())
        host, port = controllers.split(":")
        flood = [socket.create_connection((host, int(port)), timeout=10) for _ in range(FEW_DESCRIPTORS // 2)]
        assert flood[-1].recv(1) == b""
        with RawClient(clients) as client:
            assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        for connection in flood:
            connection.close()
    finally:
        daemon.kill()
        daemon.communicate()
