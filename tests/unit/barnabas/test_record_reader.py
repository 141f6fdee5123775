"""Reading partitions of one leader: the log of one begins later than expected, or not all fit in a response."""

from __future__ import annotations

import struct
import threading
from collections.abc import Collection, Mapping

import pytest

from barnabas.client import record_reader
from barnabas.client.cluster import Cluster, Node
from barnabas.client.error_codes import OFFSET_OUT_OF_RANGE
from barnabas.client.errors import ClientError
from barnabas.client.record_batches import encode_batch, encode_record
from barnabas.client.record_reader import RecordReader
from barnabas.client.topic_partition import TopicPartition
from barnabas.client.wire import Api, Fields, array, text

_TRIMMED, _OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
_START = 100


class TrimmedLeader(Node):
    """A leader that answers each Fetch at once: partition 0 begins at `_START`, partition 1 at 0; both have one record."""

    def __init__(self, fetches: threading.Semaphore) -> None:
        self._fetches = fetches

    def ask(self, api: Api, body: bytes) -> Fields:
        assert api is Api.FETCH
        self._fetches.release()
        answers = []
        at = 25 + 4 + 2 + len(_TRIMMED.topic) + 4
        for _ in range(*struct.unpack_from(">i", body, at - 4)):
            number, _, offset = struct.unpack_from(">iiq", body, at)
            at += 28
            first = _START if number == _TRIMMED.partition else 0
            error = OFFSET_OUT_OF_RANGE if offset < first else 0
            records = _batch(first) if offset == first else b""
            data = struct.pack(">i", len(records)) + records
            answers.append(struct.pack(">ihqqqi", number, error, first + 1, first + 1, first, 0) + data)
        topic = text(_TRIMMED.topic) + array(answers)
        return Fields(struct.pack(">ihi", 0, 0, 0) + array([topic]))

    def close(self) -> None:
        pass


class TrimmedCluster(Cluster):
    """A cluster with one leader; `fetches` is released for each Fetch."""

    def __init__(self) -> None:
        self.fetches = threading.Semaphore(0)

    def leaders_of(
        self, topics: Mapping[str, Collection[int] | None], *, may_create: bool = False
    ) -> dict[str, dict[int, int]]:
        return {topic: {0: 1, 1: 1} for topic in topics}

    def connect(self, node_id: int) -> Node:
        return TrimmedLeader(self.fetches)

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(timestamps, _START)


def _batch(offset: int) -> bytes:
    return struct.pack(">q", offset) + encode_batch([encode_record(0, 0, None, b"value", ())], 0, 0)[8:]


def test_a_partition_that_is_trimmed_is_read_on_beside_others_of_its_leader() -> None:
    cluster, gaps = TrimmedCluster(), []
    reader = RecordReader(cluster, {_TRIMMED: (0, _START + 1), _OTHER: (0, 2)}, on_gap=lambda *gap: gaps.append(gap))
    pages = reader.pages()
    found = []
    for page in pages:
        assert page is not None
        found += [(record.partition, record.offset) for record in page.records]
        if len(found) == 1:
            for _ in range(4):  # the responses to the second and the third Fetch wait, with the error of the first
                assert cluster.fetches.acquire(timeout=10)
        if len(found) == 2:
            break
    reader.close()
    assert sorted(found) == [(0, _START), (1, 0)]
    assert gaps == [(_TRIMMED, 0, _START)]


def test_a_partition_that_the_topic_has_no_longer_is_one_sentence() -> None:
    """The topic was deleted, and created again with fewer partitions."""
    reader = RecordReader(TrimmedCluster(), {TopicPartition("orders", 2): (0, None)})
    with pytest.raises(ClientError, match=r"The topic orders has no partition 2, only 0 to 1\."):
        next(reader.pages())


class CrowdedLeader(Node):
    """A leader of partitions with a record at each offset; a response has room for one record of the first that is asked."""

    def __init__(self) -> None:
        pass

    def ask(self, api: Api, body: bytes) -> Fields:
        at = 25 + 4 + 2 + len(_OTHER.topic) + 4
        answers: list[bytes] = []
        for _ in range(*struct.unpack_from(">i", body, at - 4)):
            number, _, offset = struct.unpack_from(">iiq", body, at)
            at += 28
            records = b"" if answers else _batch(offset)
            answers.append(struct.pack(">ihqqqii", number, 0, 100, 100, 0, 0, len(records)) + records)
        return Fields(struct.pack(">ihi", 0, 0, 0) + array([text(_OTHER.topic) + array(answers)]))

    def close(self) -> None:
        pass


class CrowdedCluster(TrimmedCluster):
    """A cluster with this leader."""

    def connect(self, node_id: int) -> Node:
        return CrowdedLeader()


def test_partitions_that_do_not_fit_in_a_response_are_read_in_turn_and_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More than eight partitions of 2 MiB do not fit: the reader took those that were left out for logs without records."""
    monkeypatch.setattr(record_reader, "PATIENCE_S", -1.0)
    reader = RecordReader(CrowdedCluster(), {TopicPartition("orders", number): (0, 3) for number in range(2)})
    found = [(record.partition, record.offset) for page in reader.pages() if page for record in page.records]
    first = found[0][0]
    assert found == [(number, offset) for offset in range(3) for number in (first, 1 - first)]
