"""Malicious peers beside working clients, a short run of `make fuzz`.

FUZZ_SECONDS makes it longer, FUZZ_SEED repeats the peers' acts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.embedded import Broker
from protocol.api import ApiKey
from protocol.codec import encode
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.produce_fetch import ProduceRequest
from tests.process.crash_readers import KafkaDumpLog
from tests.process.fuzzing_peer import look_at, run, secured_broker
from tests.process.malicious_peer import MaliciousPeer, framed, reset
from tests.support.kafka import needs_kafka
from tests.support.loading import create, fetch_request, one_record, produce_request
from tests.support.raw_client import RawClient
from tests.support.seeds import seed_of
from tests.support.waiting import until

SECONDS = float(os.environ.get("FUZZ_SECONDS", "5"))
SEED = seed_of("FUZZ_SEED")
RESETS = 50

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is looked up in /proc"),
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker after a run, stopped and with recovered logs."""
    print(f"replay with FUZZ_SEED={SEED} FUZZ_SECONDS={SECONDS:g}")
    folder = tmp_path_factory.mktemp("fuzzed")
    broker, secured = secured_broker(folder / "certs", folder / "data")
    with broker:
        print(run(broker, secured, SEED, SECONDS))
        yield broker


def test_clients_work_and_nothing_leaks_beside_malicious_peers(survivor: Broker) -> None:
    assert not survivor.is_running


@needs_kafka
def test_kafkas_dump_tool_reads_the_logs_after_malicious_peers(survivor: Broker) -> None:
    KafkaDumpLog([str(survivor.data_dir)])()


def unanswered(peer: MaliciousPeer) -> dict[str, bytes]:
    """Requests without a response for at least a minute."""
    no_answer = ProduceRequest(acks=0, timeout_ms=0, topic_data=[])
    appended = produce_request({"t": [one_record(b"value")]}, acks=0)
    waits = fetch_request(12, {("t", b"", 0): 0}, max_wait_ms=60_000)
    return {
        "half a frame": framed(b"x" * 100)[:10],
        "a request without an answer": framed(peer.header(ApiKey.PRODUCE, 9) + encode(no_answer, 9)),
        "records without an answer": framed(peer.header(ApiKey.PRODUCE, 9) + encode(appended, 9)),
        "a request that waits": framed(peer.header(ApiKey.FETCH, 12) + encode(waits, 12)),
    }


@pytest.mark.parametrize(
    "silence", ["half a frame", "a request without an answer", "records without an answer", "a request that waits"]
)
def test_a_reset_behind_an_unanswered_request_frees_the_descriptor(silence: str) -> None:
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        create(client, "t")
        peer = MaliciousPeer(broker.bootstrap, [], 1)
        before = look_at(broker.pid, 0).sockets
        for _ in range(RESETS):
            connection = peer.connect()
            connection.sendall(unanswered(peer)[silence])
            reset(connection)
        with RawClient(broker.bootstrap) as last:
            last.ask(ApiVersionsRequest(), 0)  # it was accepted behind them
            until(lambda: look_at(broker.pid, 0).sockets <= before + 1, "only the last connection is open")


def test_a_peers_name_cannot_add_log_lines() -> None:
    with Broker() as broker:
        request = produce_request({"a\n2026 ERROR forged\x1b[2J": [b""]}, acks=0)
        with RawClient(broker.bootstrap) as client, pytest.raises(EOFError):
            client.ask(request, 9)
        assert [line for line in broker.log().splitlines() if "a\\x0a2026 ERROR forged\\x1b[2J" in line]
