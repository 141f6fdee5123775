"""The HTTP server for operators: metrics, probes of health, searches by key.

RULES    1. It listens on `barnabas.metrics.listener`; without it there is none. An empty host is IPv4 and IPv6. It has no
            authentication.
         2. One request per connection, GET or HEAD, with limits on size and time, until the client has the whole answer. A
            connection above the limit ends the oldest one: clients that are slow or silent do not keep probes out.
         3. A page is written in slices: after `SLICE_S` other work of the loop runs.
         4. Before a page is written, sources may prepare it: look things up on disk, and ask other nodes. They get
            `PREPARE_S` together; what is not known by then is missing.
         5. `/metrics?names=b` has the names of another dialect (`families.py`).
         6. An unexpected exception of a source is logged and ends the request, not the node: sources change nothing.
         7. With HTTP/1.1 a page is sent in chunks; one that is broken off lacks the last chunk, so that no client takes it
            for whole.
NOT HERE The formats (`exposition.py`), the probes (`health_probes.py`), searches (`broker/handlers/records/search_page.py`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs

from broker.telemetry.exposition import Format
from broker.telemetry.families import Dialect, Source
from broker.telemetry.health_probes import Probe
from replication.completion import Completion

T = TypeVar("T")

_log = logging.getLogger("barnabas.telemetry")

_METRICS: Final = ("/metrics", "/")
_METHODS: Final = ("GET", "HEAD")
_SEARCH: Final = "/search"
_MAX_REQUEST_BYTES: Final = 8 * 1024
_MAX_IGNORED_BYTES: Final = 1024 * 1024
_TIMEOUT_S: Final = 10
_IGNORE_S: Final = 1
MAX_CONNECTIONS: Final = 128
"""Far more than searches at a time, so that clients of these get an answer, if only that there are too many."""
SLICE_S: Final = 0.002
PREPARE_S: Final = 2.0
_STATUS: Final = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    429: "Too Many Requests",
    503: "Service Unavailable",
}


Prepare = Callable[[], Iterator["Completion[None] | None"]]
"""The steps before a page: pauses, and completions to wait for (rule 4)."""
Search = Callable[[str, str], "Completion[tuple[int, Iterator[str]]]"]
"""Status and the parts of the body for a query string and the client's address."""


class MetricsPage:
    """The HTTP server.

    Raises:
        OSError: the address is in use or not local.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        is_dual = not address[0] and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual or ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, dualstack_ipv6=is_dual)
        self.sources: Mapping[Dialect, Sequence[Source]] = {}
        """What `/metrics` shows in a dialect, in order."""
        self.probes: Mapping[str, Probe] = {}
        """By path."""
        self.prepare: Prepare = lambda: iter(())
        self.search: Search | None = None
        """Answers `/search`; None on a node without partitions."""
        self._server: asyncio.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._requests: dict[asyncio.Task[None], None] = {}
        """The tasks of the connections, the oldest one first."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on."""
        host, port, *_ = self._socket.getsockname()
        return host, port

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts to answer requests."""
        self._serving = loop.create_task(self._serve())

    async def _serve(self) -> None:
        self._server = await asyncio.start_server(self._answer, sock=self._socket, limit=_MAX_REQUEST_BYTES)
        host, port = self.address
        _log.info("metrics are at http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._requests) >= MAX_CONNECTIONS:
            oldest = next(iter(self._requests))
            del self._requests[oldest]  # it ends later, and others may arrive before
            oldest.cancel()
        self._requests[task] = None
        try:
            await asyncio.wait_for(self._respond_and_close(reader, writer), _TIMEOUT_S)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            _log.debug("a request for metrics failed: %r", error)
        except asyncio.CancelledError:  # ended: asyncio 3.11 logs an error for a cancelled task
            _log.debug("a request for metrics was ended")
        except Exception:  # noqa: BLE001  # rule 6
            _log.exception("a request for metrics failed")
        finally:
            self._requests.pop(task, None)
            writer.transport.abort()

    async def _respond_and_close(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._respond(reader, writer)
        writer.close()
        await writer.wait_closed()  # a client that does not read keeps what the kernel did not take

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = _parse(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            await _write(writer, 431, f"a request has at most {_MAX_REQUEST_BYTES} bytes\n")
            await _ignore(reader, writer)
            return
        if request is None:
            await _write(writer, 400, "this is no HTTP request\n")
            return
        path, _, query = request.target.partition("?")
        searches = () if self.search is None else (_SEARCH,)
        if path not in (*_METRICS, *self.probes, *searches):
            known = ", ".join(["/metrics", *self.probes, *searches])
            await _write(writer, 404, f"there is nothing at this path; there are {known}\n", is_head=request.is_head)
        elif request.method not in _METHODS:
            await _write(writer, 405, "only GET and HEAD are allowed\n", headers="Allow: GET, HEAD\r\n")
        elif path in self.probes:
            status, body = await _finished(self.probes[path])
            await _write(writer, status, body, "application/json", is_head=request.is_head)
        elif path == _SEARCH:
            peername = writer.get_extra_info("peername")
            if peername is not None:  # else the client is gone
                await self._search(writer, request, query, str(peername[0]))
        else:
            await self._metrics(writer, request, parse_qs(query).get("names", [Dialect.JMX.value])[0])
        if request.method not in _METHODS:  # it may have a body
            await _ignore(reader, writer)

    async def _search(self, writer: asyncio.StreamWriter, request: _Request, query: str, peer_host: str) -> None:
        assert self.search is not None
        status, parts = await _result(self.search(query, peer_host))
        _send(writer, _head(status, "application/json", request.transfer))
        if not request.is_head:
            await _write_parts(writer, parts, has_chunks=request.has_chunks)

    async def _metrics(self, writer: asyncio.StreamWriter, request: _Request, names: str) -> None:
        if names not in {dialect.value for dialect in Dialect}:
            known = ", ".join(dialect.value for dialect in Dialect)
            await _write(writer, 400, f"there are no names {names!r}; there are {known}\n", is_head=request.is_head)
            return
        dialect = Dialect(names)
        form = Format(request.accept, dialect)
        if not request.is_head:
            await _prepared(self.prepare())
        _send(writer, _head(200, form.content_type, f"Vary: Accept\r\n{request.transfer}"))
        if not request.is_head:
            texts = form.slices(self.sources.get(dialect, ()))
            await _write_parts(writer, texts, has_chunks=request.has_chunks)


class _Request(NamedTuple):
    """What a client asks for."""

    method: str
    target: str
    has_chunks: bool
    """Whether the client understands chunks: HTTP/1.1."""
    accept: str

    @property
    def is_head(self) -> bool:
        return self.method == "HEAD"

    @property
    def transfer(self) -> str:
        """The header of a response that is sent in chunks."""
        return "Transfer-Encoding: chunked\r\n" if self.has_chunks else ""


def _parse(data: bytes) -> _Request | None:
    """The request of these bytes; None if they are none."""
    line, *headers = data.decode("latin-1").split("\r\n")
    match line.split(" "):
        case [method, target, version] if version.startswith("HTTP/1."):
            return _Request(method, target, version != "HTTP/1.0", _accept(headers))
        case _:
            return None


async def _prepared(steps: Iterator[Completion[None] | None]) -> None:
    """Runs all steps, and waits for those that say so."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + PREPARE_S
    for step in steps:
        if step is None:
            await asyncio.sleep(0)
        elif not step.is_done:
            done = asyncio.Event()
            step.then(partial(_set, done))
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), max(ends_s - loop.time(), 0.0))


def _set(event: asyncio.Event, _: Completion[Any]) -> None:
    event.set()


async def _result(completion: Completion[T]) -> T:
    """The result of a completion, which is cancelled if the client goes away or the time is over."""
    done = asyncio.Event()
    completion.then(partial(_set, done))
    try:
        await done.wait()
    except asyncio.CancelledError:
        completion.cancel()
        raise
    return completion.result()


async def _finished(probe: Probe) -> tuple[int, str]:
    """Status and body of a probe, whose steps other work of the loop runs between."""
    steps = probe()
    while True:
        try:
            next(steps)
        except StopIteration as result:
            status, body = result.value
            return status, body
        await asyncio.sleep(0)


def _accept(headers: Sequence[str]) -> str:
    found = (value for name, _, value in (header.partition(":") for header in headers) if name.lower() == "accept")
    return ",".join(found)


def _head(status: int, content_type: str, headers: str) -> bytes:
    return (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\nConnection: close\r\nContent-Type: {content_type}\r\n{headers}\r\n"
    ).encode()


def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Writes to a client. Raises ConnectionResetError: it is gone."""
    _check_open(writer)
    writer.write(data)


def _check_open(writer: asyncio.StreamWriter) -> None:
    """Raises ConnectionResetError if the client is gone; the loop has another error for that."""
    if writer.is_closing():
        raise ConnectionResetError("the client is gone")


async def _write(
    writer: asyncio.StreamWriter,
    status: int,
    body: str,
    content_type: str = "text/plain; charset=utf-8",
    *,
    headers: str = "",
    is_head: bool = False,
) -> None:
    data = body.encode()
    head = _head(status, content_type, f"{headers}Content-Length: {len(data)}\r\n")
    _send(writer, head if is_head else head + data)
    await writer.drain()


async def _write_parts(writer: asyncio.StreamWriter, texts: Iterator[str], *, has_chunks: bool) -> None:
    """Writes a page in slices (rule 3), each when the client has taken most of those before."""
    began_s = time.monotonic()
    for text in texts:
        if text:
            data = text.encode()
            _send(writer, b"%x\r\n%b\r\n" % (len(data), data) if has_chunks else data)
            await writer.drain()
        if time.monotonic() - began_s >= SLICE_S:
            await asyncio.sleep(0)
            began_s = time.monotonic()
    if has_chunks:
        _send(writer, b"0\r\n\r\n")
    await writer.drain()


async def _ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads the rest of a request: closing a socket with unread bytes would make the client lose the response."""
    _check_open(writer)
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(_IGNORE_S):
            left = _MAX_IGNORED_BYTES
            while left > 0 and (data := await reader.read(left)):
                left -= len(data)
