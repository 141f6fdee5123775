"""Producer state as in Apache Kafka: responses to sequences of batches, and snapshot files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from barnabas import Broker
from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.records import parse_header, patch
from storage.log.producer_state import EndTransactionMarker, ProducerState, snapshot_name
from tests.conformance.brokers import append_when_ready
from tests.support.kafka import ApacheKafka, needs_kafka, run_tool
from tests.support.loading import create
from tests.support.producer_steps import STEPS, Step
from tests.support.raw_client import RawClient
from tests.support.storage_engine import default_engine


def batch_of(step: Step, now_ms: int) -> bytearray:
    builder = BatchBuilder(producer_id=step.producer_id, producer_epoch=step.epoch, base_sequence=step.sequence)
    for _ in range(step.count):
        builder.append(now_ms, b"k", b"v")
    return builder.build()


@pytest.fixture(scope="module")
def now_ms() -> int:
    return int(time.time() * 1000)


def wrong_answers(bootstrap: str, now_ms: int) -> list[str]:
    """Produces all steps; the responses that differ from the table."""
    wrong: list[str] = []
    with RawClient(bootstrap) as client:
        create(client, "steps")
        end = 0
        for step in STEPS:
            expected = end if step.repeats is None else step.repeats
            row = append_when_ready(client, "steps", bytes(batch_of(step, now_ms)))
            answer = ErrorCode(row.error_code), row.base_offset
            if answer != (step.code, -1 if step.code else expected):
                wrong.append(f"{step}: {answer}")
            if not step.code and step.repeats is None:
                end += step.count
    return wrong


@pytest.fixture(scope="module")
def data_dir(now_ms: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory in which Kafka has stored all steps, after a clean shutdown; its responses are verified."""
    directory = tmp_path_factory.mktemp("producers")
    with ApacheKafka(data_dir=directory) as node:
        wrong = wrong_answers(node.bootstrap, now_ms)
    assert not wrong, "\n".join(wrong)
    return directory


def entries(snapshot: bytes) -> list[bytes]:
    return sorted(snapshot[at : at + 46] for at in range(10, len(snapshot), 46))


def our_state(now_ms: int) -> tuple[ProducerState, int]:
    """Our producer state after the same steps, and the end offset."""
    state, end = ProducerState("steps-0"), 0
    for step in STEPS:
        if not step.code and step.repeats is None:
            data = batch_of(step, now_ms)
            patch(data, 0, end, 0)
            state.update(parse_header(data))
            end += step.count
    return state, end


@needs_kafka
def test_kafka_gives_the_expected_answers_and_snapshot(data_dir: Path, now_ms: int) -> None:
    """The snapshots of a clean shutdown have the same entries; Kafka's order is that of a hash map."""
    state, end = our_state(now_ms)
    theirs = ProducerState("steps-0")
    data = (data_dir / "steps-0" / snapshot_name(end)).read_bytes()
    theirs.restore(data, now_ms)
    assert theirs.snapshot() == data  # every byte is understood
    assert entries(state.snapshot()) == entries(data)


def test_our_broker_answers_the_steps_and_leaves_the_same_snapshot(now_ms: int, tmp_path: Path) -> None:
    """Through a clean shutdown."""
    with Broker(data_dir=tmp_path) as broker:
        wrong = wrong_answers(broker.bootstrap, now_ms)
    assert not wrong, "\n".join(wrong)
    if default_engine() != "segments":
        return  # a commit log has its snapshots in frames
    state, end = our_state(now_ms)
    assert entries((tmp_path / "steps-0" / snapshot_name(end)).read_bytes()) == entries(state.snapshot())


@needs_kafka
def test_dump_log_segments_reads_our_snapshot(tmp_path: Path, now_ms: int) -> None:
    """Kafka's tool verifies version and CRC and prints our entries, an open transaction among them."""
    state, end = our_state(now_ms)
    builder = BatchBuilder(end, producer_id=6000, producer_epoch=4, base_sequence=0, transactional=True)
    builder.append(now_ms, b"k", b"v")
    state.update(parse_header(builder.build()))
    marker = EndTransactionMarker(is_commit=False, coordinator_epoch=11, timestamp_ms=now_ms)
    ended = BatchBuilder(end + 1, producer_id=6001, producer_epoch=1, control=True, transactional=True)
    ended.append(now_ms, b"\0\0\0\0", b"\0" * 6)
    state.update(parse_header(ended.build()), marker)
    path = tmp_path / snapshot_name(end + 2)
    path.write_bytes(state.snapshot())
    done = run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("producerId:")]
    assert len(lines) == len(state.producers)
    open_one = next(line for line in lines if line.startswith("producerId: 6000 "))
    assert f"producerEpoch: 4 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[{end}]" in open_one
    assert f"lastTimestamp: {now_ms}" in open_one
    assert "firstSequence: 0 lastSequence: 0" in open_one
    assert "coordinatorEpoch: 11 currentTxnFirstOffset: OptionalLong.empty" in next(
        line for line in lines if line.startswith("producerId: 6001 ")
    )
