"""Produce, Fetch, ListOffsets and OffsetForLeaderEpoch answer as Apache Kafka's do, field by field.

The same requests go to both brokers; the transcripts of their responses are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.messages import produce_fetch
from protocol.messages.transactions import InitProducerIdRequest
from protocol.primitives import ZERO_UUID
from protocol.records import headers
from tests.conformance.brokers import KAFKA, RECORDED, assert_as_recorded, running
from tests.support.loading import create, fetch_request
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.storage_engine import default_engine
from tests.support.waiting import until

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "safe": {"min.insync.replicas": "2"},
    "synced": {"flush.messages": "1"},
}
UNKNOWN_ID = b"unknown topic id"


class Script:
    """Sends requests to one broker and records its responses."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.client = RawClient(bootstrap)
        self.lines: dict[str, list[str]] = {}
        self.ids: dict[str, bytes] = {}
        self.now_ms = 1_700_000_000_000

    # ------------------------------------------------------------ set-up
    def create_topics(self) -> None:
        """Creates the topics with three partitions each and waits for their leaders."""
        for name, settings in TOPICS.items():
            (self.ids[name],) = create(self.client, name, partitions=3, retention_ms=-1, **settings)
        until(self.are_topics_ready, "topics that are served")

    def are_topics_ready(self) -> bool:
        """Whether every partition has a leader."""
        answer = self.list_offsets({name: {0: -1, 1: -1, 2: -1} for name in TOPICS})
        return not any(part.error_code for topic in answer.topics for part in topic.partitions)

    # ------------------------------------------------------------ requests
    def produce(self, batches: list[tuple[str, int, bytes]], version: int = 9, acks: int = -1, **more: Any) -> Any:
        """An unknown topic has the unknown id."""
        data = [
            {
                "name": name,
                "topic_id": self.ids.get(name, UNKNOWN_ID),
                "partition_data": [{"index": index, "records": records} for _, index, records in group],
            }
            for name, group in groupby(batches, key=itemgetter(0))
        ]
        request = message(produce_fetch.ProduceRequest, acks=acks, timeout_ms=5000, topic_data=data, **more)
        return self.client.ask(request, version)

    def fetch(
        self, positions: dict[tuple[str, int], int], version: int = 12, *, wait: int = 0, minimum: int = 1,
        most: int = 1 << 25, part_most: int = 1 << 20, session: tuple[int, int] = (0, -1), replica: int = -1,
        epoch: int = -1, fetched_epoch: int = -1, isolation: int = 0, forget: list[tuple[str, int]] | None = None,
    ) -> Any:  # fmt: skip
        places = {(name, self.ids.get(name, UNKNOWN_ID), index): offset for (name, index), offset in positions.items()}
        request = fetch_request(
            version, places, replica_id=replica, max_bytes=most, max_wait_ms=wait, min_bytes=minimum,
            isolation_level=isolation, session_id=session[0], session_epoch=session[1],
            partition={
                "partition_max_bytes": part_most, "current_leader_epoch": epoch, "last_fetched_epoch": fetched_epoch,
            },
        )  # fmt: skip
        request.forgotten_topics_data = [
            produce_fetch.FetchTopic(topic=name, topic_id=self.ids.get(name, ZERO_UUID), partitions=[index])
            for name, index in forget or []
        ]
        return self.client.ask(request, version)

    def list_offsets(self, wanted: dict[str, dict[int, int]], version: int = 6, *, epoch: int = -1, **more: Any) -> Any:
        """ListOffsets: topic -> partition -> timestamp."""
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch}
                    for index, timestamp in partitions.items()
                ],
            }
            for name, partitions in wanted.items()
        ]
        return self.client.ask(message(produce_fetch.ListOffsetsRequest, topics=topics, **more), version)

    def end_of_epoch(self, name: str, epoch: int, current: int = -1, index: int = 0, version: int = 4) -> Any:
        part = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
        request = message(
            produce_fetch.OffsetForLeaderEpochRequest, replica_id=-1, topics=[{"topic": name, "partitions": [part]}]
        )
        return self.client.ask(request, version)

    def new_producer_id(self, version: int) -> Any:
        """InitProducerId; None while the broker has no block of ids, as Kafka at first."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        answer = self.client.ask(request, version)
        return None if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else answer

    # ------------------------------------------------------------ the transcript
    def note(self, step: str, *lines: str) -> None:
        """Records a step; the lines are sorted, since Kafka's hash tables have no defined order."""
        assert step not in self.lines, step
        self.lines[step] = sorted(lines)

    def note_produce(self, step: str, answer: Any) -> None:
        """All fields of a Produce response that do not depend on the clock."""
        lines = []
        for topic in answer.responses:
            for part in topic.partition_responses:
                stamped = "stamped" if part.log_append_time_ms > 0 else str(part.log_append_time_ms)
                blamed = [error.batch_index for error in part.record_errors]
                leader = part.current_leader and (part.current_leader.leader_id, part.current_leader.leader_epoch)
                lines.append(
                    f"{self.name_of(topic)}-{part.index} {ErrorCode(part.error_code).name} at {part.base_offset} "
                    f"start {part.log_start_offset} {stamped} {blamed} {leader}"
                )
        self.note(step, *lines)

    def note_fetch(self, step: str, answer: Any) -> None:
        """All fields of a Fetch response; records as base offsets and sizes."""
        has_session = "session" if answer.session_id else "no session"
        lines = [f"{ErrorCode(answer.error_code).name} {has_session} {len(answer.node_endpoints)} endpoints"]
        for topic in answer.responses:
            for part in topic.partitions:
                records = bytes(part.records or b"")
                diverging = part.diverging_epoch and (part.diverging_epoch.epoch, part.diverging_epoch.end_offset)
                lines.append(
                    f"{self.name_of(topic)}-{part.partition_index} {ErrorCode(part.error_code).name} "
                    f"HW {part.high_watermark} LSO {part.last_stable_offset} start {part.log_start_offset} "
                    f"diverging {diverging} leader {part.current_leader and part.current_leader.leader_epoch} "
                    f"aborted {part.aborted_transactions} preferred {part.preferred_read_replica} "
                    f"{[header.base_offset for _, header in headers(records)]} {len(records)} bytes"
                )
        self.note(step, *lines)

    def name_of(self, topic: Any) -> str:
        """A topic's name, by name or id."""
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        return name or next((known for known, topic_id in self.ids.items() if topic_id == topic.topic_id), "unknown")

    def note_offsets(self, step: str, answer: Any) -> None:
        """All fields of a ListOffsets response."""
        self.note(
            step,
            *(
                f"{topic.name}-{part.partition_index} {ErrorCode(part.error_code).name} {part.timestamp} "
                f"{part.offset} epoch {part.leader_epoch}"
                for topic in answer.topics
                for part in topic.partitions
            ),
        )

    def note_end(self, step: str, answer: Any) -> None:
        """All fields of an OffsetForLeaderEpoch response."""
        part = answer.topics[0].partitions[0]
        self.note(step, f"{ErrorCode(part.error_code).name} {part.partition} {part.leader_epoch} {part.end_offset}")

    def note_outcome(self, step: str, ask: Callable[[], Any]) -> None:
        """Whether the broker answers at all; reconnects if it closed the connection."""
        try:
            answer = ask()
            self.note(step, "answered" if answer is not None else "silent")
        except (EOFError, ConnectionError, TimeoutError) as error:
            self.note(step, "hung up" if not isinstance(error, TimeoutError) else "silent")
            self.client.close()
            self.client = RawClient(self.bootstrap)

    def batch(self, *timestamps: int, key: bytes | None = b"k", size: int = 20, **builder: Any) -> bytes:
        """A batch; timestamps are relative to `now_ms`."""
        made = BatchBuilder(**builder)
        for timestamp in timestamps or (0,):
            made.append(self.now_ms + timestamp, key, bytes(size))
        return bytes(made.build())


def write(script: Script) -> None:
    """Produce: valid and invalid batches."""

    def produce(step: str, *batches: tuple[str, int, bytes], version: int = 9, **more: Any) -> None:
        script.note_produce(f"produce {step}", script.produce(list(batches), version, **more))

    one = script.batch()
    for version in range(3, 14):
        produce(f"v{version}", ("plain", 0, one), version=version)
    for acks in (1, -1, 2, -2):
        produce(f"acks={acks}", ("plain", 0, one), acks=acks)
    broken = bytearray(one)
    broken[-1] ^= 1
    for version in (9, 13):
        mixed = [("plain", 1, one), ("plain", 9, one), ("nowhere", 0, one), ("stamped", 0, one)]
        produce(f"mixed v{version}", *mixed, ("plain", 2, bytes(broken)), version=version)
    produce("without key", ("compacted", 0, script.batch(key=None)))
    produce("min isr", ("safe", 0, one))
    produce("synced", ("synced", 0, one))
    for version in (6, 7):
        produce(f"zstd v{version}", ("plain", 0, script.batch(compression=Compression.ZSTD)), version=version)
    produce("to nothing")
    transactional = script.batch(producer_id=1000, producer_epoch=0, base_sequence=0, transactional=True)
    produce("transactional without id", ("plain", 0, transactional))
    idempotent = script.batch(producer_id=4000, producer_epoch=0, base_sequence=0)
    for step in ("first", "again"):
        produce(f"idempotent {step}", ("plain", 2, idempotent))
    produce("idempotent gap", ("plain", 2, script.batch(producer_id=4000, producer_epoch=0, base_sequence=5)))
    produce("idempotent epoch 1", ("plain", 2, script.batch(producer_id=4000, producer_epoch=1, base_sequence=0)))
    produce("idempotent epoch 0", ("plain", 2, idempotent))
    produce("with a transactional id", ("plain", 0, one), transactional_id="tx")
    for step, where in (("produce acks=0", ("plain", 1, one)), ("produce acks=0 to nowhere", ("nowhere", 0, one))):
        script.client.socket.settimeout(1)
        script.note_outcome(step, lambda where=where: script.produce([where], acks=0))  # type: ignore[misc]
    script.client.socket.settimeout(30)


def read(script: Script) -> None:
    """Fetch without sessions: versions, limits, errors."""

    def fetch(step: str, positions: dict[tuple[str, int], int], version: int = 12, **more: Any) -> None:
        script.note_fetch(f"fetch {step}", script.fetch(positions, version, **more))

    start = {("plain", 0): 0}
    for version in range(4, 19):
        fetch(f"v{version}", {("plain", 0): 1, ("stamped", 0): 0}, version)
    for version in (4, 11, 12, 13, 18):
        where = {("plain", 0): 99, ("plain", 9): 0, ("nowhere", 0): 0, ("plain", 1): -1, ("plain", 2): 0}
        fetch(f"errors v{version}", where, version)
    for epoch in (-1, 0, 1, 7):
        fetch(f"epoch {epoch}", start, 16, epoch=epoch)
    for fetched_epoch in (0, 3):
        fetch(f"last fetched {fetched_epoch}", {("plain", 0): 3}, 16, epoch=0, fetched_epoch=fetched_epoch)
    three = {("plain", 0): 0, ("plain", 1): 0, ("plain", 2): 0}
    for limits in ((1, 1 << 20), (1 << 25, 1), (200, 1 << 20), (1 << 25, 200), (0, 0)):
        fetch(f"limits {limits}", three, most=limits[0], part_most=limits[1])
    fetch("at the end", {("synced", 0): 1})
    fetch("committed", start, isolation=1)
    fetch("nothing", {})
    fetch("nothing, waiting", {}, wait=60_000)
    fetch("too much, waiting", start, wait=100, minimum=1 << 20)
    fetch("error, waiting", {("plain", 0): 999}, wait=60_000, minimum=1 << 20)
    for version in (12, 16):
        fetch(f"as debugger v{version}", start, version, replica=-2)
        fetch(f"as stranger v{version}", start, version, replica=7)
        fetch(f"as stranger with epoch v{version}", start, version, replica=7, epoch=0)


def use_sessions(script: Script, version: int) -> None:
    """Fetch sessions: epochs, changes, forgotten partitions, errors."""

    def fetch(step: str, session: tuple[int, int], positions: dict[tuple[str, int], int], **more: Any) -> Any:
        answer = script.fetch(positions, version, session=session, **more)
        script.note_fetch(f"session v{version}: {step}", answer)
        return answer.session_id

    made = fetch("made", (0, 0), {("plain", 0): 0, ("plain", 1): 0, ("compacted", 0): 0})
    fetch("same again", (made, 1), {})
    fetch("moved on", (made, 2), {("plain", 0): 1000, ("plain", 1): 2})
    fetch("out of range stays", (made, 3), {})
    ends = script.list_offsets({"plain": {0: -1, 1: -1}}).topics[0].partitions
    fetch("at the end", (made, 4), {("plain", part.partition_index): part.offset for part in ends})
    fetch("nothing new", (made, 5), {})
    script.produce([("compacted", 0, script.batch())])
    fetch("one has news", (made, 6), {})
    fetch("added and forgotten", (made, 7), {("stamped", 0): 0}, forget=[("compacted", 0), ("plain", 2)])
    fetch("unknown topic added", (made, 8), {("nowhere", 0): 0})
    fetch("unknown topic stays", (made, 9), {})
    fetch("wrong epoch", (made, 9), {})
    fetch("wrong id", (made + 1, 1), {})
    fetch("not found before epoch", (12345, 77), {})
    other = 12 if version >= 13 else 13
    script.note_fetch(f"session v{version}: other kind", script.fetch({}, other, session=(made, 10)))
    fetch("goes on", (made, 10), {})
    fetch(
        "all forgotten", (made, 11), {},
        forget=[("plain", 0), ("plain", 1), ("stamped", 0), *([("nowhere", 0)] if version < 13 else [])],
    )  # fmt: skip
    made = fetch("made anew", (0, 0), {("plain", 0): 0})
    fetch("ended", (made, -1), {("plain", 0): 0})
    fetch("after its end", (made, 1), {})
    empty = fetch("made empty", (0, 0), {})
    if empty:
        fetch("filled later", (empty, 1), {("plain", 0): 0})


def look_up(script: Script) -> None:
    """ListOffsets and OffsetForLeaderEpoch."""

    def offsets(step: str, wanted: dict[str, dict[int, int]], version: int = 7, **more: Any) -> None:
        script.note_offsets(f"offsets {step}", script.list_offsets(wanted, version, **more))

    latest = {"plain": {0: -1}}
    script.produce([("plain", 2, script.batch(100, 300, 200)), ("stamped", 1, script.batch(5, 1))])
    script.produce([("plain", 2, script.batch(250, 500, compression=Compression.GZIP))])
    for version in range(1, 12):
        both = {"plain": {0: -1, 2: -2}, "nowhere": {0: -1}, "compacted": {1: -1, 2: -2, 7: -1}}
        offsets(f"v{version}", both, version)
    for special in (-3, -4, -5, -6, -7):
        for version in (6, 7, 8, 9, 11):
            offsets(f"{special} v{version}", {"plain": {2: special, 1: special}, "compacted": {1: special}}, version)
    for after in (0, 100, 101, 201, 250, 301, 500, 501):
        offsets(f"after {after}", {"plain": {2: script.now_ms + after}})
    offsets("at 0", {"plain": {2: 0, 0: 0}})
    for isolation in (0, 1):
        offsets(f"isolation {isolation}", latest, isolation_level=isolation)
    for replica in (-2, 3):
        offsets(f"replica {replica}", latest, replica_id=replica)
    for epoch in (0, 1, 5):
        offsets(f"epoch {epoch}", latest, epoch=epoch)
    for version in (2, 3, 4):
        for epoch in (-1, 0, 1):
            script.note_end(f"epoch {epoch} v{version}", script.end_of_epoch("plain", epoch, version=version))
    for current in (0, 1):
        script.note_end(f"epoch with current {current}", script.end_of_epoch("plain", 0, current))
    script.note_end("epoch of an unused partition", script.end_of_epoch("compacted", 0, index=2))
    script.note_end("epoch of nothing", script.end_of_epoch("nowhere", 0))


def identify(script: Script) -> None:
    for version in range(6):
        answer = until(partial(script.new_producer_id, version), "a block of producer ids")
        script.note(f"producer id v{version}", f"{answer.error_code} {answer.producer_epoch} {answer.producer_id >= 0}")
    for producer_id, epoch in ((5, 3), (5, -1), (-1, 3)):
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1000, producer_id=producer_id, producer_epoch=epoch
        )
        answer = script.client.ask(request, 4)
        script.note(f"producer id {producer_id} {epoch}", f"{answer.error_code} {answer.producer_epoch}")
    empty = script.client.ask(InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000), 4)
    script.note("producer id with an empty name", f"{empty.error_code} {empty.producer_id} {empty.producer_epoch}")


def transcript(bootstrap: str) -> dict[str, list[str]]:
    script = Script(bootstrap)
    script.create_topics()
    write(script)
    read(script)
    for version in (7, 12, 13, 17):
        use_sessions(script, version)
    look_up(script)
    identify(script)
    script.client.close()
    return script.lines


def without_cut_batches(lines: dict[str, list[str]]) -> dict[str, list[str]]:
    """The record as a commit log answers it: a size limit ends a response after a whole batch, here the second of 89 bytes."""
    return {
        name: [line.replace(" 200 bytes", " 178 bytes") for line in of_step]
        if name.startswith("fetch limits")
        else of_step
        for name, of_step in lines.items()
    }


@pytest.mark.parametrize("kind", RECORDED)
def test_responses_equal_those_of_apache_kafka(kind: str) -> None:
    """Every field of every step that does not depend on the clock or on chance."""
    in_commit_log = kind != KAFKA and default_engine() == "commitlog"
    with running(kind) as broker:
        answers = transcript(broker.bootstrap)
    assert_as_recorded("read_and_write_path", kind, answers, as_ours=without_cut_batches if in_commit_log else None)
