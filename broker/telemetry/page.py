"""A page in Prometheus' text format over HTTP: the metrics of the event loop, and those that clients reported.

RULES    1. It listens on `barnabas.metrics.listener`; without it there is no page. It has no authentication.
         2. One request per connection, with limits on size and time; one metric name per iteration of the loop.
         3. Names become Prometheus names: other characters than letters, digits and colons become "_", and counters end in
            _total.
NOT HERE The numbers (`loop_metrics.py`, `received.py`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from broker.telemetry.received import Sample

_log = logging.getLogger("barnabas.telemetry")

_PATHS: Final = ("/metrics", "/")
_MAX_REQUEST_BYTES: Final = 8 * 1024
_TIMEOUT_S: Final = 10
_MAX_CONNECTIONS: Final = 16
_INVALID: Final = re.compile(r"[^a-zA-Z0-9_:]")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_TYPE: Final = "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"


class MetricsSource(Protocol):
    """Metrics by name."""

    def names(self, now_ms: int, /) -> list[str]:
        """The metric names known now."""

    def numbers(self, name: str, /) -> list[Sample]:
        """The samples of a name."""


class MetricsPage:
    """The HTTP server of the page, which lists the metrics of its sources in order.

    Raises:
        OSError: the address is in use or not local.
    """

    def __init__(self, address: tuple[str, int], sources: Sequence[MetricsSource], mono_ms: Callable[[], int]) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family)
        self._sources = sources
        self._mono_ms = mono_ms
        self._server: asyncio.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._connections = 0

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
        _log.info("metrics are at http://%s:%d/metrics", *self.address)

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _MAX_CONNECTIONS:
                await asyncio.wait_for(self._respond(reader, writer), _TIMEOUT_S)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _log.debug("a request for metrics failed: %r", error)
        finally:
            self._connections -= 1
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0].decode("latin-1")
        if method != b"GET" or path not in _PATHS:
            status = "404 Not Found" if method == b"GET" else "405 Method Not Allowed"
            writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
            return
        writer.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n{_TYPE}\r\n".encode())
        for source in self._sources:
            for name in source.names(self._mono_ms()):
                writer.write(prometheus_lines(name, source.numbers(name)).encode())
                await writer.drain()
                await asyncio.sleep(0)


def prometheus_lines(name: str, numbers: Iterable[Sample]) -> str:
    """All samples of one metric name, as lines."""
    lines: list[str] = []
    for labels, value, is_counter in numbers:
        name_text = _prometheus_name(name)
        name_text += "_total" if is_counter and not name_text.endswith("_total") else ""
        if not lines:
            lines.append(f"# TYPE {name_text} {'counter' if is_counter else 'gauge'}\n")
        label_text = ",".join(f'{_prometheus_name(key)}="{text.translate(_ESCAPES)}"' for key, text in labels)
        lines.append(f"{name_text}{{{label_text}}} {_number(value)}\n")
    return "".join(lines)


def _prometheus_name(name: str) -> str:
    name_text = _INVALID.sub("_", name)
    return f"_{name_text}" if name_text[:1].isdigit() else name_text


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))
