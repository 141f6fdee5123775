"""Consumers that request much and read little: their memory, and their effect on others."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from barnabas.embedded import Broker
from protocol.messages.admin import DeleteTopicsRequest
from protocol.messages.produce_fetch import FetchRequest
from tests.support.loading import ask_for, create, fetch_request, load, one_record
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.storage_engine import default_engine
from tests.support.system_calls import SENDS, needs_strace, parse, watched
from tests.support.waiting import until

pytestmark = [
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the kernel's sockets are counted in /proc"),
    pytest.mark.long,
]

MIB = 1024 * 1024
READERS = 1000
ASKED_BYTES = 50 * MIB
SEND_BUFFER_BYTES = 102_400
"""socket.send.buffer.bytes; the kernel doubles it for its own bookkeeping and lets one packet go beyond."""

LARGEST_PACKET_BYTES = 65_536
DESCRIPTORS_BESIDE = 300


@contextlib.contextmanager
def holding_much(data_dir: Path, **settings: object) -> Iterator[Broker]:
    """A broker with a topic `t` of 52 MiB, and `small` with one batch."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    names["barnabas.commitlog.file.bytes"] = 100 * MIB  # as segments: the records are in one file
    names["socket.listen.backlog.size"] = READERS  # else some of them wait a second for a place in the queue
    with Broker(data_dir, settings=names) as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "t", "small", segment_bytes=100 * MIB)
            load(client, "t", [one_record(bytes(MIB - 200))] * 52)
            load(client, "small", [one_record(bytes(10_000))])
        yield broker


def much(max_bytes: int = ASKED_BYTES) -> FetchRequest:
    """A request for nearly all of it."""
    return fetch_request(11, {("t", b"", 0): 0}, max_bytes=max_bytes)


@pytest.fixture
def readers() -> Iterator[int]:
    """The number of connections that the descriptor limit allows; the daemon inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = READERS + DESCRIPTORS_BESIDE
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))
    yield min(READERS, hard - DESCRIPTORS_BESIDE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def unsent(port: int) -> list[int]:
    """Bytes in the kernel's send buffers of a local port, per connection."""
    found = []
    with open("/proc/net/tcp") as table:
        next(table)
        for line in table:
            _, local, _, state, queues, *_ = line.split()
            if int(local.split(":")[1], 16) == port and state != "0A":
                found.append(int(queues.split(":")[0], 16))
    return found


def test_stalled_readers_cost_one_file_reference_and_no_memory(tmp_path: Path, readers: int) -> None:
    with holding_much(tmp_path / "data") as broker, contextlib.ExitStack() as stack:
        daemon = psutil.Process(broker.pid)
        clients = [stack.enter_context(RawClient(broker.bootstrap, receive_buffer_bytes=4096)) for _ in range(readers)]
        for client in clients:
            ask_for(client, fetch_request(11, {("t", b"", 0): 52}), 11)
        resident, descriptors = daemon.memory_info().rss, daemon.num_fds()
        request = much()
        for client in clients:
            client.send(request, 11)
        until(lambda: sum(1 for count in unsent(broker.port) if count) >= readers, "every answer has begun")
        grown, held = daemon.memory_info().rss - resident, unsent(broker.port)
        print(
            f"{readers} readers: the process grew by {grown / 1024:.0f} KiB, "
            f"the kernel holds {sum(held) / MIB:.1f} MiB, {max(held)} bytes at most for one"
        )
        until(
            lambda: daemon.num_fds() <= descriptors,
            "no file is open for them, but what a checkpoint needs for a moment",
        )
        most = 1024 if default_engine() == "segments" else 52 * 160  # a region for each append in a commit log
        assert grown <= readers * most + 2 * MIB
        assert max(held) <= 2 * SEND_BUFFER_BYTES + LARGEST_PACKET_BYTES
        with RawClient(broker.bootstrap) as other:
            answer, size = ask_for(other, much(), 11)
            assert size > ASKED_BYTES - MIB
            assert answer.responses[0].partitions[0].error_code == 0


def test_stalled_readers_are_closed_by_the_idle_limit(tmp_path: Path, readers: int) -> None:
    with holding_much(tmp_path / "data", connections_max_idle_ms=1000) as broker, contextlib.ExitStack() as stack:
        daemon = psutil.Process(broker.pid)
        until(lambda: not daemon.net_connections("tcp")[1:], "the connection that loaded the topic is gone")
        descriptors = daemon.num_fds()
        for _ in range(readers):
            stack.enter_context(RawClient(broker.bootstrap, receive_buffer_bytes=4096)).send(much(), 11)
        until(lambda: daemon.num_fds() > descriptors, "they are there")
        until(lambda: daemon.num_fds() <= descriptors, "they were closed")
        until(lambda: not sum(unsent(broker.port)), "nothing is held for them")
        with RawClient(broker.bootstrap) as other:
            ask_for(other, much(), 11)


def complete(client: RawClient, requests: int, between: Callable[[], object]) -> None:
    """Completes many fetches in sequence."""
    request = fetch_request(11, {("small", b"", 0): 0})
    for _ in range(requests):
        between()
        answer, _ = ask_for(client, request, 11)
        assert len(answer.responses[0].partitions[0].records) > 10_000


@needs_strace
def test_slow_readers_do_not_slow_other_consumers(tmp_path: Path) -> None:
    requests, slow_readers, answer_bytes = 200, 20, 4 * MIB
    with holding_much(tmp_path / "data") as broker, contextlib.ExitStack() as stack:
        fast = stack.enter_context(RawClient(broker.bootstrap))
        with watched(broker.pid, (*SENDS, "recvfrom"), tmp_path / "alone") as alone:
            complete(fast, requests, lambda: None)
        slow = [
            stack.enter_context(RawClient(broker.bootstrap, receive_buffer_bytes=4096)) for _ in range(slow_readers)
        ]
        for client in slow:
            client.send(much(answer_bytes), 11)
        until(lambda: sum(1 for count in unsent(broker.port) if count) >= slow_readers, "every answer has begun")
        with watched(broker.pid, (*SENDS, "recvfrom"), tmp_path / "beside") as beside:
            complete(fast, requests, lambda: [client.socket.recv(1) for client in slow])
        print(f"{len(alone)} calls alone, {len(beside)} beside {slow_readers} slow readers")
        assert len(beside) <= len(alone) + 2 * slow_readers


def descriptor_of_deleted(pid: int) -> str | None:
    """The descriptor of a log file that is open and deleted."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if descriptor.readlink().name.endswith(".log (deleted)"):
                return descriptor.name
    return None


def closing_threads(output: Path, descriptor: str) -> list[int]:
    """The threads that have closed a descriptor, by the output of strace: the call returns after the descriptor is gone."""
    return [call.thread for call in parse(output.read_text()) if call.arguments.startswith(f"{descriptor}<")]


@needs_strace
def test_the_event_loop_does_not_close_a_deleted_file_that_a_reader_held(tmp_path: Path) -> None:
    """That frees the blocks of the file: 0.3 s for 256 MiB."""
    settings = {"barnabas_log_storage_engine": "segments", "log_segment_delete_delay_ms": 0}
    with (
        holding_much(tmp_path / "data", **settings) as broker,
        RawClient(broker.bootstrap, receive_buffer_bytes=4096) as reader,
    ):
        reader.send(much(), 11)
        until(lambda: any(unsent(broker.port)), "the answer has begun")
        with RawClient(broker.bootstrap) as client:
            client.ask(message(DeleteTopicsRequest, topic_names=["t"], timeout_ms=30_000), 5)
        log_file = until(lambda: descriptor_of_deleted(broker.pid), "the file is deleted")
        closes = tmp_path / "closes"
        with watched(broker.pid, ("close",), closes):
            reader.close()
            threads = until(lambda: closing_threads(closes, log_file), "it is closed")
        assert broker.pid not in threads
