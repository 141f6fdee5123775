"""Record batches: round trips, three other libraries, and random damage."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
from kio.records import readers as kio_readers
from kio.records import schema as kio_schema_module
from kio.records import writers as kio_writers

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.control_records import ControlType as Control
from protocol.control_records import end_txn_marker
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import varint
from protocol.record_codec import check_first, encode_record, is_usual_record, scan, timestamp_deltas
from protocol.records import BATCH_OVERHEAD, Record, crc_is_valid, headers, parse_header, records
from storage.config.log_config import LogConfig
from storage.log.log_validator import BatchRules, validate
from tests.support.captured_batches import CAPTURED

SEED = 20261121
kio_schema: Any = kio_schema_module  # its integers are distinct types
MUTATIONS = 200_000
MAX = 1 << 22
NOW_MS = 1_763_000_000_000

fields = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=70), st.just(b"z" * 9000))
pairs = st.lists(st.tuples(st.text(max_size=6), st.one_of(st.none(), st.binary(max_size=6))), max_size=3)
times = st.integers(0, 2**42)
contents = st.lists(st.tuples(times, fields, fields, pairs.map(tuple)), min_size=1, max_size=40)
codecs = st.sampled_from(list(Compression))
producers = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))

Content = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def build(content: list[Content], codec: int = Compression.NONE, base_offset: int = 0) -> bytearray:
    """A batch with the content, built by our code."""
    builder = BatchBuilder(base_offset, compression=codec)
    for record in content:
        builder.append(*record)
    return builder.build()


def read(data: bytes | bytearray) -> list[Record]:
    """The records of one batch, read by our code."""
    ((position, header),) = headers(data)
    assert crc_is_valid(data, position, header)
    return records(data, position, header, max_bytes=MAX)


@seed(SEED)
@given(contents, codecs, st.integers(0, 2**62), producers)
def test_built_batches_survive_a_round_trip(
    content: list[Content], codec: Compression, base_offset: int, producer: tuple[int, int, int]
) -> None:
    """Every field of every record in every codec, and the header."""
    builder = BatchBuilder(
        base_offset,
        compression=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=True,
    )
    for record in content:
        builder.append(*record)
    assert (builder.count, builder.next_offset) == (len(content), base_offset + len(content))
    uncompressed_size = builder.size
    data = builder.build()
    assert codec or len(data) == uncompressed_size
    assert read(data) == [Record(base_offset + index, *record) for index, record in enumerate(content)]
    header = parse_header(data)
    assert (header.size, header.record_count, header.next_offset) == (
        len(data),
        len(content),
        base_offset + len(content),
    )
    assert (header.base_timestamp, header.max_timestamp) == (content[0][0], max(record[0] for record in content))
    assert header[9:12] == producer
    assert header.is_transactional
    if not codec:
        body = data[BATCH_OVERHEAD:]
        keyless = [index for index, record in enumerate(content) if record[1] is None]
        deltas = [record[0] - content[0][0] for record in content]
        assert scan(body, len(content)) == (min(deltas), max(deltas), keyless)
        assert list(timestamp_deltas(body, len(content))) == deltas
        check_first(memoryview(body), len(content), 5)


@seed(SEED)
@settings(max_examples=600)
@given(st.data())
def test_a_record_of_the_usual_form_is_valid_also_after_damage(data: st.DataObject) -> None:
    key = data.draw(st.none() | st.integers(0, 70).map(bytes))
    value = bytes(data.draw(st.sampled_from((63, 64, 100, 1024, 8000, 8191 - 8, 8191))))
    record = encode_record(0, 0, key, value, data.draw(st.sampled_from(((), (("h", b"v"),)))))
    body = bytearray(varint(len(record)) + record)
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.sampled_from((0, 1, 3, 4, 5, 6, 7, 8, -1)))] = data.draw(st.integers(0, 255))
    if is_usual_record(body):
        assert scan(body, 1) == (0, 0, [0] if body[5] & 1 else [])


@pytest.mark.parametrize("key", [None, b"", b"k" * 63])
@pytest.mark.parametrize("size", [64, 1024, 8100])
def test_a_record_of_usual_sizes_has_the_usual_form(key: bytes | None, size: int) -> None:
    record = encode_record(0, 0, key, bytes(size))
    body = bytearray(varint(len(record)) + record)
    assert is_usual_record(body)
    for at in (0, 6 + len(key or b"")):
        shorter = bytearray(body)
        shorter[at] -= 0x80  # the length has one byte now
        shorter[at + 1] += 1
        assert not is_usual_record(shorter)


class Library(NamedTuple):
    """Another implementation of record batches, and the codecs that it supports without further libraries."""

    records: Any
    builder: Callable[[int], Any]
    codecs: list[Compression]


LIBRARIES = {
    "aiokafka": Library(
        AiokafkaRecords, lambda codec: AiokafkaBuilder(2, codec, 0, -1, -1, -1, 10**7), list(Compression)
    ),
    "kafka-python": Library(
        KafkaPythonRecords,
        lambda codec: KafkaPythonBuilder(2, codec, False, -1, -1, -1, 10**7),
        [Compression.NONE, Compression.GZIP],
    ),
}


@pytest.mark.parametrize("name", LIBRARIES)
@seed(SEED)
@given(content=contents, data=st.data())
def test_python_libraries_read_and_build_the_same(name: str, content: list[Content], data: st.DataObject) -> None:
    """Uncompressed bytes are equal; compressed ones are readable by both."""
    library = LIBRARIES[name]
    codec = data.draw(st.sampled_from(library.codecs))
    ours = build(content, codec)
    batch = library.records(bytes(ours)).next_batch()
    assert batch.validate_crc()
    assert [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == content
    builder = library.builder(int(codec))
    for index, (time_ms, key, value, pairs_) in enumerate(content):
        assert builder.append(index, time_ms, key, value, list(pairs_)) is not None
    theirs = bytes(builder.build())
    assert [record[1:] for record in read(theirs)] == content
    if not codec:
        assert without_leader_epoch(theirs) == ours


@seed(SEED)
@given(contents)
def test_kio_reads_and_builds_the_same(content: list[Content]) -> None:
    """kio supports whole seconds only, and no codec."""
    content = [(record[0] // 1000 % 2**31 * 1000, *record[1:]) for record in content]
    data = build(content)
    batch, size = kio_readers.read_batch(bytes(data), 0)
    assert size == len(data)
    found = [
        (
            int(r.timestamp.timestamp()) * 1000,
            r.key,
            r.value,
            tuple(((h.key or b"").decode(), h.value) for h in r.headers),
        )
        for r in batch.records
    ]
    assert found == content
    theirs = kio_schema.NewRecordBatch(
        producer_id=-1,
        producer_epoch=-1,
        partition_leader_epoch=-1,
        base_sequence=-1,
        attributes=0,
        records=tuple(
            kio_schema.Record(
                attributes=0,
                timestamp=datetime.fromtimestamp(time_ms / 1000, UTC),
                offset=index,
                key=key,
                value=value,
                headers=tuple(kio_schema.RecordHeader(key=k.encode(), value=v) for k, v in pairs_),
            )
            for index, (time_ms, key, value, pairs_) in enumerate(content)
        ),
    )
    written = io.BytesIO()
    kio_writers.write_new_batch(written, theirs)
    assert written.getvalue() == data


def without_leader_epoch(data: bytes) -> bytes:
    """The batch with leader epoch -1; some libraries write 0, and the CRC does not cover it."""
    return data[:12] + b"\xff\xff\xff\xff" + data[16:]


@seed(SEED)
@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_raise_only_kafka_errors(data: bytes) -> None:
    for work in all_readers(bytearray(data)):
        assert_raises_only_kafka_errors(work)


def all_readers(data: bytearray) -> list[Callable[[], object]]:
    """All functions that read untrusted bytes."""
    rules = BatchRules(LogConfig(), "t-0")
    return [
        lambda: headers(data),
        lambda: parse_header(data),
        lambda: [records(data, at, header, max_bytes=MAX) for at, header in headers(data)],
        lambda: scan(data, len(data) // 7),
        lambda: check_first(memoryview(data), 3, 32),
        lambda: is_usual_record(data),
        lambda: validate(data, rules, wall_ms=NOW_MS),
    ]


def assert_raises_only_kafka_errors(work: Callable[[], object]) -> None:
    """Fails on any exception other than KafkaError."""
    try:
        work()
    except KafkaError as error:
        if not isinstance(error.code, ErrorCode) or not error.message:
            raise AssertionError("a refusal has a code and a sentence") from error


def valid_batches() -> list[bytes]:
    """Valid batches of all kinds, small so that damage is effective."""
    found = [bytes(data) for data in CAPTURED.values()]
    for codec in Compression:
        found.append(bytes(build([(NOW_MS, b"key", b"value", (("h", b"x"), ("i", None)))], codec)))
        found.append(bytes(build([(NOW_MS + n, None, b"v" * n, ()) for n in range(40)], codec)))
    found.append(
        bytes(end_txn_marker(Control.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1))
    )
    return found


def damaged(dice: random.Random, good: bytes) -> bytearray:
    """Damages a batch: overwrites, truncates, inserts or deletes bytes; sometimes with a corrected length."""
    data = bytearray(good)
    kind = dice.random()
    if kind < 0.6:
        for _ in range(1 + dice.randrange(3)):
            data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    elif kind < 0.75:
        del data[dice.randrange(len(data)) :]
    elif kind < 0.9:
        at = dice.randrange(len(data))
        data[at:at] = dice.randbytes(1 + dice.randrange(6))
    else:
        at = dice.randrange(len(data))
        del data[at : at + 1 + dice.randrange(6)]
    if dice.random() < 0.7 and len(data) >= BATCH_OVERHEAD:
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
    return data


@pytest.mark.parametrize("share", range(4))
def test_damaged_batches_raise_only_kafka_errors(share: int) -> None:
    """Half of the batches have a valid CRC. Batches that pass the complete validation must be readable."""
    import crc32c

    print(f"seed {SEED + share}")
    dice = random.Random(SEED + share)
    good = valid_batches()
    rules = BatchRules(LogConfig(), "t-0")
    everything = BatchRules(LogConfig(), "t-0", checks_all_records=True)
    started = time.perf_counter()
    refused = 0
    for turn in range(MUTATIONS // 4):
        data = damaged(dice, good[turn % len(good)])
        if turn & 2 and len(data) >= BATCH_OVERHEAD:
            data[17:21] = crc32c.crc32c(bytes(data[21:])).to_bytes(4, "big")
        try:
            if turn & 4:
                found = validate(data, everything, wall_ms=NOW_MS)
                assert records(found.records, 0, found.batches[0][1], max_bytes=MAX), "let in, but not to be read"
            elif turn & 1:
                validate(data, rules, wall_ms=NOW_MS)
            else:
                for at, header in headers(data):
                    records(data, at, header, max_bytes=MAX)
        except KafkaError:
            refused += 1
    print(f"{refused} refused in {time.perf_counter() - started:.1f} s")
    assert MUTATIONS // 8 < refused < MUTATIONS // 4
