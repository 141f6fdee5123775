"""The HTTP server of metrics and probes (broker/telemetry/page.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterator

import pytest

from broker.telemetry.families import Dialect, Families, gauge
from broker.telemetry.page import MetricsPage
from replication.completion import Completion


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


async def get(page: MetricsPage, path: str) -> str:
    page.start(asyncio.get_running_loop())
    reader, writer = await asyncio.open_connection(*page.address)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    page.close()
    return answer


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
