"""Producer state as Apache Kafka has it: answers to sequences of batches, its and ours, and snapshot files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest
from protocol.messages.produce_fetch import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import BatchBuilder, parse_header, patch
from storage.log.producer_state import EndTxn, ProducerState, snapshot_name
from tests.support.kafka import ApacheKafka, needs_kafka, run_tool
from tests.support.producer_steps import STEPS, Step
from tests.support.raw_client import RawClient

PRODUCE_VERSION = 9
NOT_YET = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}


def batch_of(step: Step, now_ms: int) -> bytearray:
    """Its bytes."""
    builder = BatchBuilder(producer_id=step.producer_id, producer_epoch=step.epoch, base_sequence=step.sequence)
    for _ in range(step.count):
        builder.append(now_ms, b"k", b"v")
    return builder.build()


def produce(client: RawClient, data: bytearray) -> tuple[ErrorCode, int]:
    """Kafka's code and offset."""
    partitions = [PartitionProduceData(index=0, records=data)]
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name="steps", partition_data=partitions)]
    )
    deadline = time.monotonic() + 10
    while True:
        answer = client.ask(request, PRODUCE_VERSION).responses[0].partition_responses[0]
        if answer.error_code not in NOT_YET:
            return ErrorCode(answer.error_code), answer.base_offset
        assert time.monotonic() < deadline, "the topic does not get ready"


@pytest.fixture(scope="module")
def now_ms() -> int:
    """One time for all batches."""
    return int(time.time() * 1000)


def wrong_answers(bootstrap: str, now_ms: int) -> list[str]:
    """Send all steps to a broker; what it answers otherwise than the table says."""
    wrong: list[str] = []
    with RawClient(bootstrap) as client:
        topic = CreatableTopic(name="steps", num_partitions=1, replication_factor=1)
        client.ask(CreateTopicsRequest(topics=[topic]), 5)
        end = 0
        for step in STEPS:
            expected = end if step.repeats is None else step.repeats
            answer = produce(client, batch_of(step, now_ms))
            if answer != (step.code, -1 if step.code else expected):
                wrong.append(f"{step}: {answer}")
            if not step.code and step.repeats is None:
                end += step.count
    return wrong


@pytest.fixture(scope="module")
def data_dir(now_ms: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory to which Kafka has written all steps, and has then closed it; its answers are checked."""
    directory = tmp_path_factory.mktemp("producers")
    with ApacheKafka(data_dir=directory) as node:
        wrong = wrong_answers(node.bootstrap, now_ms)
    assert not wrong, "\n".join(wrong)
    return directory


def entries(snapshot: bytes) -> list[bytes]:
    """In order of producers."""
    return sorted(snapshot[at : at + 46] for at in range(10, len(snapshot), 46))


def our_state(now_ms: int) -> tuple[ProducerState, int]:
    """What we know after the same steps, and the end offset."""
    state, end = ProducerState("steps-0"), 0
    for step in STEPS:
        if not step.code and step.repeats is None:
            data = batch_of(step, now_ms)
            patch(data, 0, end, 0)
            state.update(parse_header(data))
            end += step.count
    return state, end


@needs_kafka
def test_kafka_answers_the_steps_as_the_table_says_and_leaves_our_snapshot(data_dir: Path, now_ms: int) -> None:
    """The snapshot of a clean shutdown is the same, entry by entry; the order is that of a hash map."""
    state, end = our_state(now_ms)
    theirs = ProducerState("steps-0")
    data = (data_dir / "steps-0" / snapshot_name(end)).read_bytes()
    theirs.restore(data, now_ms)
    assert theirs.snapshot() == data  # every byte is understood
    assert entries(state.snapshot()) == entries(data)


def test_our_broker_answers_the_steps_and_leaves_the_same_snapshot(now_ms: int, tmp_path: Path) -> None:
    """Over a socket, through a clean stop, to the file."""
    with Broker(data_dir=tmp_path) as broker:
        wrong = wrong_answers(broker.bootstrap, now_ms)
    assert not wrong, "\n".join(wrong)
    state, end = our_state(now_ms)
    assert entries((tmp_path / "steps-0" / snapshot_name(end)).read_bytes()) == entries(state.snapshot())


@needs_kafka
def test_dump_log_segments_reads_our_snapshot(tmp_path: Path, now_ms: int) -> None:
    """Kafka's own tool checks version and CRC, and shows what we wrote, an open transaction too."""
    state, end = our_state(now_ms)
    builder = BatchBuilder(end, producer_id=6000, producer_epoch=4, base_sequence=0, transactional=True)
    builder.append(now_ms, b"k", b"v")
    state.update(parse_header(builder.build()))
    marker = EndTxn(is_commit=False, coordinator_epoch=11, timestamp_ms=now_ms)
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
