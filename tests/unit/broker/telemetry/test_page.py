"""The HTTP server of metrics and probes (broker/telemetry/page.py)."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Generator, Iterator

import pytest

from broker.process.event_loop import new_loop
from broker.telemetry import page as module
from broker.telemetry.families import Dialect, Families, Source, gauge
from broker.telemetry.page import MAX_CONNECTIONS, MetricsPage
from replication.completion import Completion, completed
from replication.partition.key_search import MAX_SEARCHES


class Answering:
    """A source with a value that is looked up before the page."""

    def __init__(self) -> None:
        self.looked_up: Completion[None] = Completion()
        self.value = 0

    def prepare(self) -> Iterator[Completion[None] | None]:
        yield None
        yield self.looked_up
        self.value = 1

    def families(self) -> Families:
        yield gauge("g", "Help.", self.value)


class Failing:
    """A source with a bug."""

    def families(self) -> Families:
        yield gauge("g", "Help.", 1)
        raise ZeroDivisionError


async def ask(page: MetricsPage, request: str) -> str:
    """The response to these bytes, until the page closes the connection."""
    page.start(asyncio.get_running_loop())
    reader, writer = await asyncio.open_connection(*page.address)
    writer.write(request.encode())
    answer = (await reader.read()).decode()
    writer.close()
    page.close()
    return answer


async def get(page: MetricsPage, path: str, accept: str = "") -> str:
    """As a client of HTTP/1.0: without chunks."""
    return await ask(page, f"GET {path} HTTP/1.0\r\nAccept: {accept}\r\n\r\n")


def shown(source: Source) -> MetricsPage:
    """A page with one source."""
    page = MetricsPage(("127.0.0.1", 0))
    page.sources = {Dialect.JMX: [source]}
    return page


def dechunked(body: str) -> str:
    """The text of a chunked body; asserts that it is whole."""
    text = ""
    while True:
        size, _, body = body.partition("\r\n")
        length = int(size, 16)
        text, body = text + body[:length], body[length:]
        assert body.startswith("\r\n")
        body = body.removeprefix("\r\n")
        if length == 0:
            assert body == ""
            return text


async def test_a_page_waits_for_what_is_looked_up() -> None:
    page, source = MetricsPage(("127.0.0.1", 0)), Answering()
    page.sources, page.prepare = {Dialect.JMX: [source]}, source.prepare
    asyncio.get_running_loop().call_later(0.05, source.looked_up.complete, None)
    assert (await get(page, "/metrics")).endswith("\ng 1\n")


async def test_a_page_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.telemetry.page.PREPARE_S", 0.01)
    page, source = MetricsPage(("127.0.0.1", 0)), Answering()
    page.sources, page.prepare = {Dialect.JMX: [source]}, source.prepare
    assert (await get(page, "/metrics")).endswith("\ng 1\n")
    assert not source.looked_up.is_done


async def test_a_bug_in_a_source_ends_the_request_only(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    page = MetricsPage(("127.0.0.1", 0))
    page.sources = {Dialect.JMX: [Failing()]}
    with caplog.at_level(logging.ERROR):
        await get(page, "/metrics")
    assert "ZeroDivisionError" in caplog.text
    assert failures == []


@pytest.mark.parametrize("path", ["//[", "/metrics?names=%ff", "/metrics?" + "names=a&" * 500])
async def test_a_strange_path_does_no_harm(path: str, caplog: pytest.LogCaptureFixture) -> None:
    page = MetricsPage(("127.0.0.1", 0))
    assert (await get(page, path)).split(" ")[1] in {"200", "400", "404"}
    assert caplog.text == ""


async def test_a_probe_answers_with_its_status() -> None:
    def probe() -> Generator[None, None, tuple[int, str]]:
        yield
        return 503, '{"status": "not ready"}\n'

    page = MetricsPage(("127.0.0.1", 0))
    page.probes = {"/readyz": probe}
    answer = await get(page, "/readyz")
    assert answer.startswith("HTTP/1.1 503 Service Unavailable\r\n")
    assert answer.endswith('\r\n\r\n{"status": "not ready"}\n')


async def test_a_page_is_sent_in_chunks_to_clients_of_http_1_1() -> None:
    answer = await ask(shown(Answering()), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = answer.partition("\r\n\r\n")
    assert "Transfer-Encoding: chunked" in head
    assert dechunked(body) == "# HELP g Help.\n# TYPE g gauge\ng 0\n"


async def test_a_page_that_is_broken_off_is_not_taken_for_whole() -> None:
    answer = await ask(shown(Failing()), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert "\ng 1\n" in answer
    assert not answer.endswith("\r\n0\r\n\r\n")


async def test_a_head_request_gets_the_head_of_the_page() -> None:
    source = Answering()
    page = shown(source)
    page.prepare = source.prepare
    answer = await ask(page, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith("HTTP/1.1 200 OK\r\n")
    assert answer.endswith("\r\n\r\n")
    assert source.value == 0


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("POST /metrics HTTP/1.1\r\n\r\n", 405),
        ("POST /nowhere HTTP/1.1\r\n\r\n", 404),
        ("GET /nowhere HTTP/1.1\r\n\r\n", 404),
        ("HEAD /nowhere HTTP/1.1\r\n\r\n", 404),
        ("GET /metrics?names=none HTTP/1.1\r\n\r\n", 400),
        ("HEAD /metrics?names=none HTTP/1.1\r\n\r\n", 400),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 500000\r\n\r\n" + "x" * 500_000, 405),
        ("POST /v1/metrics HTTP/1.1\r\nContent-Length: 500000\r\n\r\n" + "x" * 500_000, 404),
        ("hello\r\n\r\n", 400),
        ("\r\n\r\n", 400),
        ("GET /metrics SMTP\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nCookie: " + "x" * 100_000 + "\r\n\r\n", 431),
    ],
)
async def test_a_wrong_request_gets_a_status_and_a_sentence(request_text: str, status: int) -> None:
    answer = await ask(MetricsPage(("127.0.0.1", 0)), request_text)
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert ("Allow: GET, HEAD" in head) == (status == 405)
    assert f"Content-Length: {len(body)}" in head or request_text.startswith("HEAD")
    assert bool(body) != request_text.startswith("HEAD")


async def test_silent_clients_do_not_keep_others_out() -> None:
    page = shown(Answering())
    page.start(asyncio.get_running_loop())
    silent = [await asyncio.open_connection(*page.address) for _ in range(MAX_CONNECTIONS + 4)]
    reader, writer = await asyncio.open_connection(*page.address)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert (await reader.read()).endswith(b"\ng 0\n")
    assert await silent[0][0].read() == b""
    for _, one in silent:
        one.close()
    writer.close()
    page.close()


class Large:
    """A source with more than the kernel takes for a client that does not read."""

    def families(self) -> Families:
        for number in range(64):
            yield gauge(f"g{number}", "x" * 200_000, 1)


async def test_clients_that_do_not_read_keep_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.2)
    page, ended = shown(Large()), asyncio.Event()
    page.start(asyncio.get_running_loop())
    lost = asyncio.StreamReaderProtocol.connection_lost

    def connection_lost(self: asyncio.StreamReaderProtocol, error: Exception | None) -> None:
        lost(self, error)
        ended.set()

    with socket.create_connection(page.address) as client:
        monkeypatch.setattr(asyncio.StreamReaderProtocol, "connection_lost", connection_lost)
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        await asyncio.wait_for(ended.wait(), 5)
    page.close()


async def test_a_burst_of_connections_ends_as_many_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 60)
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 4)
    page = shown(Answering())
    clients = [socket.create_connection(page.address) for _ in range(12)]
    page.start(asyncio.get_running_loop())
    readers = [await asyncio.open_connection(sock=client) for client in clients]
    async with asyncio.timeout(5):
        assert [await reader.read() for reader, _ in readers[:8]] == [b""] * 8
    for _, writer in readers:
        writer.close()
    page.close()


async def test_many_searches_at_a_time_are_all_answered() -> None:
    page = MetricsPage(("127.0.0.1", 0))
    waiting: list[Completion[tuple[int, Iterator[str]]]] = []
    all_wait = asyncio.Event()

    def search(_query: str, _host: str) -> Completion[tuple[int, Iterator[str]]]:
        waiting.append(Completion())
        if len(waiting) == 4 * MAX_SEARCHES:
            all_wait.set()
        return waiting[-1]

    page.search = search
    page.start(asyncio.get_running_loop())
    clients = [await asyncio.open_connection(*page.address) for _ in range(4 * MAX_SEARCHES)]
    for _, writer in clients:
        writer.write(b"GET /search?topic=t&key=k HTTP/1.0\r\n\r\n")
    await asyncio.wait_for(all_wait.wait(), 10)
    for one in waiting:
        one.complete((200, iter(["fo", "und"])))
    assert [(await reader.read()).endswith(b"found") for reader, _ in clients] == [True] * len(clients)
    for _, writer in clients:
        writer.close()
    page.close()


async def test_a_search_may_end_while_its_connection_is_ended() -> None:
    page = MetricsPage(("127.0.0.1", 0))
    waiting: list[Completion[tuple[int, Iterator[str]]]] = []
    is_waiting = asyncio.Event()

    def search(_query: str, _host: str) -> Completion[tuple[int, Iterator[str]]]:
        waiting.append(Completion())
        is_waiting.set()
        return waiting[-1]

    page.search = search
    page.start(asyncio.get_running_loop())
    reader, writer = await asyncio.open_connection(*page.address)
    writer.write(b"GET /search?topic=t&key=k HTTP/1.0\r\n\r\n")
    await asyncio.wait_for(is_waiting.wait(), 10)
    (task,) = [one for one in asyncio.all_tasks() if "_respond" in repr(one)]
    task.cancel()
    waiting[0].complete((200, iter(["fo", "und"])))
    assert await reader.read() == b""
    writer.close()
    page.close()


async def test_other_work_runs_between_the_parts_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0)
    page = MetricsPage(("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    done: list[int] = []

    def parts() -> Iterator[str]:
        for number in range(5):
            loop.call_soon(done.append, number)
            yield f"{len(done)} "

    page.search = lambda _query, _host: completed((200, parts()))
    assert (await get(page, "/search?topic=t&key=k")).endswith("0 1 2 3 4 ")
    page = MetricsPage(("127.0.0.1", 0))
    page.search = lambda _query, _host: completed((200, iter(["ab", "cde"])))
    answer = await ask(page, "GET /search HTTP/1.1\r\n\r\n")
    assert "Transfer-Encoding: chunked\r\n" in answer
    assert answer.endswith("\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n")


async def test_a_client_that_is_gone_gets_no_search(caplog: pytest.LogCaptureFixture) -> None:
    page = MetricsPage(("127.0.0.1", 0))
    page.search = lambda _query, _host: completed((200, iter(["found"])))
    with socket.create_connection(page.address) as client:
        client.sendall(b"GET /search?topic=t&key=k HTTP/1.0\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the close is a reset
    assert (await get(page, "/search?topic=t&key=k")).endswith("found")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_client_that_is_gone_before_its_page_costs_no_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    """With the daemon's loop: it raises an error of its own for what is written to a closed connection."""

    async def play() -> None:
        is_prepared, looked_up = asyncio.Event(), Completion[None]()

        def prepare() -> Iterator[Completion[None]]:
            is_prepared.set()
            yield looked_up

        page = MetricsPage(("127.0.0.1", 0))
        page.prepare = prepare
        with socket.create_connection(page.address) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the close is a reset
            page.start(asyncio.get_running_loop())
            await is_prepared.wait()
        reader, writer = await asyncio.open_connection(*page.address)
        writer.write(b"GET /nothing HTTP/1.0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 404")
        writer.close()
        looked_up.complete(None)
        await asyncio.wait([*page._requests])
        page.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(play())
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


OPENMETRICS, TEXT = "application/openmetrics-text", "text/plain"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        (f"{OPENMETRICS};version=1.0.0", OPENMETRICS),
        (f"{OPENMETRICS}; version=1.0.0; charset=utf-8", OPENMETRICS),
        (f"{OPENMETRICS};version=1.0.0;q=0.5,{TEXT};version=0.0.4;q=0.3,*/*;q=0.1", OPENMETRICS),
        (f"{TEXT};version=0.0.4;q=0.6,{OPENMETRICS};version=1.0.0;q=0.5", TEXT),
        (f"{OPENMETRICS};q=0", TEXT),
        (f"{OPENMETRICS};version=0.0.1", TEXT),
        (f"{OPENMETRICS};q=x", TEXT),
        (f"{OPENMETRICS};version=1.0.0;escaping=allow-utf-8;q=0.6,{TEXT};version=1.0.0;q=0.4", OPENMETRICS),
    ],
)
async def test_the_format_is_the_one_that_the_client_prefers(accept: str, kind: str) -> None:
    answer = await get(shown(Answering()), "/metrics", accept)
    assert f"Content-Type: {kind}; version=" in answer
    assert answer.endswith("# EOF\n") == (kind == OPENMETRICS)
