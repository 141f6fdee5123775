"""Consumers of data that is not in the page cache, on a real disk.

Eviction is posix_fadvise DONTNEED from another process; residency is what the kernel reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas.embedded import Broker
from protocol.messages.produce_fetch import FetchRequest
from protocol.records import headers
from tests.support.evicted_files import evict
from tests.support.loading import create, fetch_request, load, one_record
from tests.support.raw_client import RawClient
from tests.support.storage_engine import default_engine
from tests.support.timestamps import RECENT_MS

MIB = 1 << 20
VERSION = 11
BATCHES = 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with 40 MiB in segments of 8 MiB, or in files of a commit log."""
    with Broker(tmp_path_factory.mktemp("cold") / "data") as running:
        with RawClient(running.bootstrap) as client:
            create(client, "t", segment_bytes=8 * MIB)
            load(client, "t", [one_record(bytes([n]) * (MIB - 200), RECENT_MS + n) for n in range(BATCHES)])
        yield running


def files(broker: Broker) -> list[Path]:
    """Logs and indexes of the topic."""
    folder = broker.data_dir / ("t-0" if default_engine() == "segments" else "commitlog")
    return sorted(
        path for path in folder.iterdir() if path.suffix in {".log", ".index", ".timeindex", ".clog", ".queue"}
    )


def scan(broker: Broker, before_each: Callable[[], None], max_bytes: int) -> bytes:
    """All records from offset 0 on, response by response."""
    found, offset = b"", 0
    with RawClient(broker.bootstrap) as client:
        while offset < BATCHES:
            before_each()
            request: FetchRequest = fetch_request(VERSION, {("t", b"", 0): offset}, max_bytes=max_bytes)
            data = bytes(client.ask(request, VERSION).responses[0].partitions[0].records)
            whole = headers(data)
            assert whole, "every answer has a batch"
            offset = whole[-1][1].next_offset
            found += data[: whole[-1][0] + whole[-1][1].size]
    return found


@pytest.mark.parametrize("max_bytes", [MIB // 2, 3 * MIB, 50 * MIB])
def test_a_scan_of_evicted_files_gets_every_byte(broker: Broker, max_bytes: int) -> None:
    stored = scan(broker, lambda: None, max_bytes)
    assert len(headers(stored)) == BATCHES
    evict(files(broker))
    assert scan(broker, lambda: None, max_bytes) == stored
    assert scan(broker, lambda: evict(files(broker)), max_bytes) == stored
