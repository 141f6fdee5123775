"""The same records sent to this broker and to Apache Kafka leave the same offsets and the same segment files.

RULES    1. Every case is a topic with its configs, and batches with their own timestamps, so no test waits for a clock.
         2. The error codes, the log's start and end offsets, and all segments are compared: base offsets, sizes of logs and of
            closed indexes. In a commit log the segments are logical: error codes and offsets are compared.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.records import headers
from tests.conformance.brokers import KAFKA, append, offset_at, running
from tests.support.goldens import as_json, check_golden, golden
from tests.support.kafka import needs_kafka
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.storage_engine import default_engine
from tests.support.waiting import until

SECOND_MS, DAY_MS = 1000, 86_400_000
SETTINGS = {
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "300",
    "log.cleaner.backoff.ms": "300",
}
RECORD = "segments_and_retention"
SMALL = {"internal.segment.bytes": "1000"}


class Sent(NamedTuple):
    at_ms: int = 0
    """Relative to now: the timestamp of the first record."""
    size: int = 200
    """Of each value."""
    records: int = 1
    step_ms: int = 0
    codec: Compression = Compression.NONE
    filling: bytes = b"x"

    def batch(self, now_ms: int) -> bytes:
        builder = BatchBuilder(compression=self.codec)
        for number in range(self.records):
            value = (self.filling * self.size)[: self.size]
            builder.append(now_ms + self.at_ms + number * self.step_ms, b"k%d" % number, value)
        return bytes(builder.build())


class Case(NamedTuple):
    name: str
    settings: dict[str, str]
    batches: list[Sent]
    start_offset: int = 0
    """The log start offset to wait for, if retention deletes segments."""

    @property
    def is_in_segment_files(self) -> bool:
        """Whether Barnabas stores the topic in segment files: compacted topics always are."""
        return default_engine() == "segments" or "compact" in self.settings.get("cleanup.policy", "")


def ages(*days: int) -> list[Sent]:
    """One batch that fills a small segment, for each age."""
    return [Sent(-days_ago * DAY_MS, 700) for days_ago in days]


def times(*seconds: float) -> list[Sent]:
    return [Sent(int(second * SECOND_MS)) for second in seconds]


CASES = [
    Case("size", SMALL, [Sent(size=size) for size in (100, 200, 300, 400, 500, 600, 700, 800, 900)]),
    Case("size-exact", {"internal.segment.bytes": "810"}, [Sent(size=199) for _ in range(9)]),
    Case("size-one-less", {"internal.segment.bytes": "809"}, [Sent(size=199) for _ in range(9)]),
    Case("too-large-for-a-segment", SMALL, [Sent(size=100), Sent(size=1000), Sent(size=100)]),
    Case("time", {"segment.ms": "60000"}, times(-600, -570, -540, -539.999, -480, -479.998, -700, -300)),
    Case("time-backwards", {"segment.ms": "60000"}, times(-100, -600, -39, -39.999, -500, 20)),
    Case(
        "time-within-a-batch",
        {"segment.ms": "60000"},
        [Sent(-600_000, records=3, step_ms=40_000), Sent(-550_000, records=3, step_ms=40_000), Sent(-530_000)],
    ),
    Case("time-of-one-millisecond", {"segment.ms": "1"}, times(-10, -9.999, -9.998, -9.998, -9.996, -8)),
    Case("index-full", {"segment.index.bytes": "48", "index.interval.bytes": "1"}, [Sent() for _ in range(20)]),
    Case("index-full-of-times", {"segment.index.bytes": "48", "index.interval.bytes": "1"}, times(*range(-40, 0, 2))),
    Case("index-tiny", {"segment.index.bytes": "12", "index.interval.bytes": "1"}, times(*range(-20, 0, 2))),
    Case("index-interval", {**SMALL, "index.interval.bytes": "300"}, [Sent(size=size % 90) for size in range(0, 900, 31)]),
    Case("index-every-batch", {**SMALL, "index.interval.bytes": "0"}, times(*range(-30, 0))),
    Case("old-goes", {**SMALL, "retention.ms": str(2 * DAY_MS)}, ages(5, 4, 3, 1, 4, 0), 3),
    Case("newest-of-a-segment-counts", {**SMALL, "retention.ms": str(2 * DAY_MS)}, [
        Sent(-DAY_MS, 300), Sent(-9 * DAY_MS, 300), *ages(8, 7, 0)], 0),
    Case("oldest-first", {**SMALL, "retention.ms": str(2 * DAY_MS)}, ages(1, 9, 9, 9), 0),
    Case("all-go", {**SMALL, "retention.ms": str(2 * DAY_MS)}, ages(5, 4, 3), 3),
    Case("the-only-segment-goes", {"retention.ms": str(2 * DAY_MS)}, ages(5, 4, 3), 3),
    Case("future", {**SMALL, "retention.ms": "1000", "message.timestamp.after.max.ms": str(9 * DAY_MS)},
         ages(5, -3, 5, 5), 1),
    Case("no-limit", {**SMALL, "retention.ms": "-1"}, ages(900, 800, 0)),
    Case("bytes", {**SMALL, "retention.bytes": "2500"}, ages(0, 0, 0, 0, 0, 0), 2),
    Case("bytes-exact", {**SMALL, "retention.bytes": "2316"}, ages(0, 0, 0, 0, 0, 0), 3),
    Case("bytes-none", {**SMALL, "retention.bytes": "0"}, ages(0, 0, 0), 3),
    Case("bytes-and-time", {**SMALL, "retention.bytes": "3200", "retention.ms": str(2 * DAY_MS)}, ages(5, 0, 0, 9, 0, 0), 1),
    Case("compact-only", {**SMALL, "cleanup.policy": "compact", "retention.ms": "1",
                          "min.compaction.lag.ms": str(90 * DAY_MS)}, ages(9, 9)),
    Case("compact-and-delete", {**SMALL, "cleanup.policy": "compact,delete", "retention.ms": str(2 * DAY_MS),
                                "min.compaction.lag.ms": str(90 * DAY_MS)}, ages(9, 8, 0), 2),
    Case("compact-and-bytes", {**SMALL, "cleanup.policy": "delete,compact", "retention.bytes": "1600",
                               "min.compaction.lag.ms": str(90 * DAY_MS)}, ages(0, 0, 0, 0), 1),
    Case("largest", {"max.message.bytes": "1000"}, [Sent(size=size) for size in (927, 928, 929, 930, 931, 932)]),
    Case("packed-is-small-enough", {"max.message.bytes": "1000", "compression.type": "gzip"},
         [Sent(size=5000), Sent(size=900)]),
    Case("unpacked-is-too-large", {"max.message.bytes": "1000", "compression.type": "uncompressed"},
         [Sent(size=5000, codec=Compression.GZIP), Sent(size=500, codec=Compression.GZIP)]),
    *[
        Case(f"stored-as-{text}", {"compression.type": text}, [Sent(size=3000, records=3, codec=one) for one in Compression])
        for text in ("uncompressed", "gzip", "snappy", "producer")
    ],
    *[
        Case(f"gzip-{level}", {"compression.type": "gzip", "compression.gzip.level": level}, [Sent(size=9000)])
        for level in ("-1", "1", "9")
    ],
    Case("before", {"message.timestamp.before.max.ms": str(DAY_MS), "retention.ms": "-1"},
         [Sent(-DAY_MS - 60_000), Sent(-DAY_MS + 60_000), Sent(-DAY_MS + 60_000, records=3, step_ms=-50_000)]),
    Case("after", {"message.timestamp.after.max.ms": str(DAY_MS)},
         [Sent(DAY_MS + 60_000), Sent(DAY_MS - 60_000), Sent(DAY_MS - 60_000, records=3, step_ms=50_000)]),
    Case("append-time", {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "1",
                         "segment.ms": "60000"}, [Sent(-DAY_MS), Sent(DAY_MS), Sent(-99 * DAY_MS)]),
]  # fmt: skip


class Node(NamedTuple):
    """A broker and its log directory."""

    client: RawClient
    directory: Path

    def codes(self, case: Case, now_ms: int) -> list[ErrorCode]:
        """Creates the topic and produces the batches."""
        create(self.client, case.name, partitions=1, **case.settings)
        until(lambda: self.offset(case, -2) >= 0, "it is led")
        return [ErrorCode(append(self.client, case.name, sent.batch(now_ms)).error_code) for sent in case.batches]

    def offset(self, case: Case, at: int) -> int:
        """EARLIEST or LATEST."""
        return int(offset_at(self.client, case.name, at).offset)

    def found(self, case: Case, *, has_files: bool) -> dict[str, object]:
        """The offsets after retention, and the segments."""
        until(lambda: self.offset(case, -2) >= case.start_offset, f"{case.name} begins at {case.start_offset}")
        offsets: dict[str, object] = {"offsets": (self.offset(case, -2), self.offset(case, -1))}
        if not has_files:
            return offsets
        path = self.directory / f"{case.name}-0"
        logs = until(lambda: sorted(path.glob("*.log")), f"{case.name} has files")
        closed = [log.with_suffix(suffix) for log in logs[:-1] for suffix in (".index", ".timeindex")]
        return {
            **offsets,
            "logs": [(int(log.stem), log.stat().st_size) for log in logs],
            "codecs": [header.attributes & 7 for log in logs for _, header in headers(log.read_bytes())],
            "indexes": [(int(index.stem), index.suffix, index.stat().st_size) for index in closed],
        }


def play(kind: str, path: Path) -> dict[str, object]:
    """The codes and the segments of every case, on a broker of this kind."""
    now_ms = int(time.time() * 1000)
    with running(kind, SETTINGS, path) as broker, RawClient(broker.bootstrap) as client:
        node = Node(client, path)
        codes = {case.name: node.codes(case, now_ms) for case in CASES}
        return {
            case.name: (codes[case.name], node.found(case, has_files=kind == KAFKA or case.is_in_segment_files))
            for case in CASES
        }


@needs_kafka
@pytest.mark.golden
def test_the_record_holds_what_apache_kafka_leaves(tmp_path: Path) -> None:
    check_golden(RECORD, play(KAFKA, tmp_path / "data"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return cast("dict[str, Any]", as_json(play("barnabas", tmp_path_factory.mktemp("barnabas") / "data")))


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_same_offsets_and_files_are_left(ours: dict[str, Any], name: str) -> None:
    our_codes, found = ours[name]
    codes, recorded = golden(RECORD)[name]
    assert our_codes == codes
    assert found == {key: recorded[key] for key in found}
