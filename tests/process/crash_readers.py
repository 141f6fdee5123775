"""Readers of a broker's records after a crash: a client, and Apache Kafka's tool on the files.

RULES    1. All partitions are read at once, up to their end offsets at the start, since clients continue to write.
         2. A file that has not changed since the tool read it is not read again.
NOT HERE The expected records (`acknowledged_state.py`), the schedule (`killing.py`).
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import NamedTuple

import confluent_kafka

from tests.process.acknowledged_state import ReadRecord
from tests.process.killed_clients import QUICK
from tests.support.kafka import run_tool
from tests.support.waiting import until

_DUMP = "org.apache.kafka.tools.DumpLogSegments"
_COMPLAINTS = re.compile(r"(?i)mismatch|isvalid: false|not valid|exception|non-consecutive|invalid bytes|corrupt")
_AT_A_TIME = 250  # files that fit into one argument
_WAIT_S = 20
_NOT_YET = {"OFFSET_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE", "_TRANSPORT"}

TopicPartition = tuple[str, int]


class ReadBack(NamedTuple):
    """The records of a partition."""

    start: int
    """Where it began, asked afterwards."""
    end: int
    """Where it ended before it was read."""
    found: list[ReadRecord]


def read_back(where: str, begins: dict[TopicPartition, int]) -> dict[TopicPartition, ReadBack]:
    """The records of partitions from these offsets on."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": where, "group.id": "none", "enable.auto.commit": False, "check.crcs": True,
            "enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10, **QUICK,
        }
    )  # fmt: skip
    try:
        ends = {place: _bounds(reader, place)[1] for place in begins}
        found = _read(reader, {place: (begin, ends[place]) for place, begin in begins.items()})
        return {place: ReadBack(_bounds(reader, place)[0], ends[place], found[place]) for place in begins}
    finally:
        reader.close()


def _read(
    reader: confluent_kafka.Consumer, ranges: dict[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, list[ReadRecord]]:
    found: dict[TopicPartition, list[ReadRecord]] = {place: [] for place in ranges}
    left = {place: end - begin for place, (begin, end) in ranges.items() if begin < end}
    reader.assign([confluent_kafka.TopicPartition(*place, ranges[place][0]) for place in left])
    deadline = time.monotonic() + _WAIT_S
    while left:
        messages = reader.consume(min(sum(left.values()), 2000), 0.1)
        over = set()
        for message in messages:
            place = (str(message.topic()), int(message.partition() or 0))
            if (error := message.error()) is not None:
                assert error.name() == "_PARTITION_EOF", error
                over.add(place)
            elif place in left:
                offset = message.offset()
                assert offset is not None
                found[place].append(ReadRecord(offset, message.key(), message.value()))
                left[place] = ranges[place][1] - offset - 1
        over |= {place for place, count in left.items() if count <= 0}
        reader.incremental_unassign([confluent_kafka.TopicPartition(*place) for place in over & left.keys()])
        left = {place: count for place, count in left.items() if place not in over}
        deadline = time.monotonic() + _WAIT_S if messages else deadline
        behind = {place: found[place][-1:] for place in left}
        assert time.monotonic() < deadline, f"nothing comes behind {behind} of {ranges}"
    reader.unassign()
    return found


def _bounds(reader: confluent_kafka.Consumer, place: TopicPartition) -> tuple[int, int]:
    """Start and end offset of a partition, once its leader answers."""

    def ask() -> tuple[int, int] | None:
        try:
            start, end = reader.get_watermark_offsets(confluent_kafka.TopicPartition(*place), timeout=_WAIT_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].name() not in _NOT_YET:
                raise
            return None
        return start, end

    return until(ask, f"the start and end offsets of {place}")


class KafkaDumpLog:
    """DumpLogSegments on logs with their records, and on indexes."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._read: dict[Path, tuple[int, int, int]] = {}

    def __call__(self) -> None:
        """Reads all files of a stopped broker; fails on any complaint."""
        files = {file: _state(file) for path in self._paths for file in Path(path).glob("*-*/*") if _is_read(file)}
        assert files
        new = [file for file, state in files.items() if self._read.get(file) != state]
        for at in range(0, len(new), _AT_A_TIME):
            names = ",".join(str(file) for file in new[at : at + _AT_A_TIME])
            done = run_tool(_DUMP, "--deep-iteration", "--skip-record-metadata", "--files", names, timeout_s=300)
            assert done.returncode == 0, done.stderr[-3000:]
            wrong = [line for line in done.stdout.splitlines() if _COMPLAINTS.search(line)]
            assert not wrong, "\n".join(wrong[:10])
        self._read = files


def _is_read(file: Path) -> bool:
    """Whether it is a file of a partition that is not being moved or deleted."""
    suffixes = {".log", ".index", ".timeindex"}
    return "." not in file.parent.name and file.suffix in suffixes and file.stat().st_size > 0


def _state(file: Path) -> tuple[int, int, int]:
    stat = file.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
