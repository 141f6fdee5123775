"""A page of numbers over HTTP, in Prometheus' text format: what clients have reported of themselves.

RULES    1. It is there where `barnabas.metrics.address` says so, and nowhere by default: whoever reaches it may read it.
         2. One question a connection, of a few kilobytes, asked within seconds; one turn of the loop for each name.
         3. Names become Prometheus' own: what is no letter, digit or colon becomes "_", and a counter ends in _total.
NOT HERE The numbers (`received.py`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Iterable
from typing import Final

from broker.telemetry.received import Number, ReceivedMetrics

_log = logging.getLogger("barnabas.telemetry")

_PATHS: Final = ("/metrics", "/")
_MOST_BYTES: Final = 8 * 1024
_PATIENCE_S: Final = 10
_MOST_READERS: Final = 16
_ODD: Final = re.compile(r"[^a-zA-Z0-9_:]")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_TYPE: Final = "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"


class MetricsPage:
    """Answers whoever asks at one address.

    Args:
        address: host and port.
        received: the numbers.
        mono_ms: the clock.

    Raises:
        OSError: the address is taken or not ours.
    """

    def __init__(self, address: tuple[str, int], received: ReceivedMetrics, mono_ms: Callable[[], int]) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family)
        self._received = received
        self._mono_ms = mono_ms
        self._server: asyncio.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._readers = 0

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port, *_ = self._socket.getsockname()
        return host, port

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer from now on."""
        self._serving = loop.create_task(self._serve())

    async def _serve(self) -> None:
        self._server = await asyncio.start_server(self._answer, sock=self._socket, limit=_MOST_BYTES)
        _log.info("metrics are shown at http://%s:%d/metrics", *self.address)

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._readers += 1
        try:
            if self._readers <= _MOST_READERS:
                await asyncio.wait_for(self._tell(reader, writer), _PATIENCE_S)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _log.debug("somebody who asked for metrics went away: %r", error)
        finally:
            self._readers -= 1
            writer.close()

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = question.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0].decode("latin-1")
        if method != b"GET" or path not in _PATHS:
            status = "404 Not Found" if method == b"GET" else "405 Method Not Allowed"
            writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
            return
        writer.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n{_TYPE}\r\n".encode())
        for name in self._received.names(self._mono_ms()):
            writer.write(shown(name, self._received.numbers(name)).encode())
            await writer.drain()
            await asyncio.sleep(0)


def shown(name: str, numbers: Iterable[Number]) -> str:
    """All numbers of one name, as lines."""
    lines: list[str] = []
    for labels, value, is_counter in numbers:
        plain = _plain(name)
        plain += "_total" if is_counter and not plain.endswith("_total") else ""
        if not lines:
            lines.append(f"# TYPE {plain} {'counter' if is_counter else 'gauge'}\n")
        told = ",".join(f'{_plain(key)}="{text.translate(_ESCAPES)}"' for key, text in labels)
        lines.append(f"{plain}{{{told}}} {_number(value)}\n")
    return "".join(lines)


def _plain(name: str) -> str:
    plain = _ODD.sub("_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))
