"""Groups compared with Apache Kafka: the same scenarios, those of transactions too, the same records, and each other's files.

Two scenarios take half a minute of real time: `python -m tests.scenarios --kafka` runs those too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from broker.coordinators.classic.group_records import (
    GROUP_METADATA,
    OFFSET_COMMIT,
    is_plain_commit,
    read_commit_key,
    read_commit_value,
    read_group_key,
    to_offset_and_metadata,
)
from broker.coordinators.runtime.java_compat import abs_hash
from protocol.codec import decode
from protocol.messages.groups import DescribeGroupsRequest, OffsetFetchRequest, OffsetFetchRequestGroup
from protocol.messages.metadata import FindCoordinatorRequest
from protocol.messages.stored_records import GroupMetadataValue
from protocol.records import headers, records
from protocol.schema import Message
from tests.scenarios.compare_with_kafka import differences, play, with_topics
from tests.scenarios.kafka_brokers import Brokers, PatientGroupHarness
from tests.scenarios.random_histories import KINDS, History
from tests.scenarios.run import SETTINGS, Runner, settings_of
from tests.support.group_harness import FakeLog, LocalGroupHarness, local_world
from tests.support.group_requests import commit_request, join_request, sync_request
from tests.support.kafka import ApacheKafka, needs_kafka, run_tool
from tests.support.raw_client import RawClient

SCENARIOS = Path(__file__).parent.parent / "scenarios"
QUICK = [
    *(f"groups/{name}" for name in ("deleting_offsets", "joining", "leaving", "offsets", "refusals", "static_members")),
    *(f"groups/{name}" for name in ("static_rebalances", "versions", "votes")),
    *(
        f"consumer_groups/{name}"
        for name in ("joining", "offsets", "refusals", "regexes", "static_members", "timeouts")
    ),
    "mixed_groups/cooperative",
    "mixed_groups/refusals",  # others in test_mixed_groups.py
    *(f"transactions/{file.stem}" for file in sorted((SCENARIOS / "transactions").glob("*.txt"))),
]
_COMMIT = OFFSET_COMMIT.to_bytes(2, "big")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with Brokers() as started:
        yield started


@needs_kafka
@pytest.mark.parametrize("name", QUICK)
def test_apache_kafka_gives_the_same_transcript(brokers: Brokers, name: str) -> None:
    """Kafka answers the same bytes as the scenarios expect of Barnabas."""
    text = (SCENARIOS / f"{name}.txt").read_text()
    assert brokers.run(text) == text


@needs_kafka
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_apache_kafka_decides_the_same_for_a_random_cluster(brokers: Brokers, kind: str, seed: int) -> None:
    """tests/scenarios/random_histories.py; `make compare-groups` runs more."""
    history = History(kind, seed)
    text = history.text(25)
    bootstrap = brokers.bootstrap("")
    topic_ids = with_topics(bootstrap, [history.topic])
    assert not list(differences(text, play(text, bootstrap, topic_ids)))


def log_of(directory: Path) -> FakeLog:
    """A partition that another broker has written."""
    log = FakeLog()
    data = (directory / "00000000000000000000.log").read_bytes()
    for at, header in headers(data):
        log.batches.append(data[at : at + header.size])
        log.end_offset = header.next_offset
    return log


def keys_and_values(log: FakeLog) -> Iterator[tuple[bytes, bytes | None]]:
    """Of each record of a log."""
    for batch in log.batches:
        for at, header in headers(batch):
            for record in records(batch, at, header, max_bytes=1_000_000):
                assert record.key is not None
                yield record.key, record.value


def group_records(log: FakeLog, group: str) -> list[Any]:
    """The records of a group, without ids and times that differ from run to run."""
    found: list[Any] = []
    for key, value in keys_and_values(log):
        if key[:2] == GROUP_METADATA.to_bytes(2, "big"):
            if read_group_key(key) == group:
                found.append(None if value is None else _stored_group(value))
        elif key[:2] == _COMMIT and (commit := read_commit_key(key))[0] == group:
            found.append((commit, None if value is None else _stored_commit(value)))
    return found


def _stored_group(value: bytes) -> tuple[int, str]:
    version = int.from_bytes(value[:2], "big")
    stored = decode(GroupMetadataValue, version, value, 2)
    stored.current_state_timestamp = 0
    stored.members.sort(key=lambda member: member.client_id)
    return version, UUID.sub("uuid", repr(stored))


def _stored_commit(value: bytes) -> Any:
    committed = to_offset_and_metadata(value) if is_plain_commit(value) else read_commit_value(value)
    return value[:2], committed._replace(
        commit_wall_ms=0, topic_id=b"", expire_wall_ms=min(committed.expire_wall_ms, 0)
    )


@needs_kafka
def test_the_same_group_history_leaves_the_same_records(tmp_path: Path) -> None:
    """Barnabas writes the records that Kafka writes, and loads the records that Kafka has written."""
    names = ["groups/joining", "groups/static_members", "groups/offsets"]
    texts = [(SCENARIOS / f"{name}.txt").read_text() for name in names]
    groups = sorted({group for text in texts for group in re.findall(r"group_id='([a-z]+-\d)'", text)})
    ours = local_world(SETTINGS)
    for text in texts:
        Runner(ours).run(text)
    with ApacheKafka({**SETTINGS, "auto.create.topics.enable": "false"}, data_dir=tmp_path / "data") as kafka:
        theirs = PatientGroupHarness(kafka.bootstrap)
        theirs.find_coordinator()
        for text in texts:
            theirs.play(text)
        kept = commit_request(42, group="kept")
        theirs.create_topic("t", 1)
        theirs.ask(kept, 8)
        member = theirs.ask(join_request("stable"), 3).member_id
        sync = sync_request(member, "stable", assignments={member: b"all"})
        assert theirs.ask(sync, 3).assignment == b"all"
        everything = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in [*groups, "kept"]]
        questions: list[tuple[Message, int]] = [
            (DescribeGroupsRequest(groups=[*groups, "stable"]), 6),
            (OffsetFetchRequest(groups=everything), 8),
        ]
        answers = [theirs.ask(request, version) for request, version in questions]
        theirs.close()
    logs = [log_of(tmp_path / "data" / f"__consumer_offsets-{index}") for index in range(5)]
    for group in groups:
        wrote = [entry for log in logs for entry in group_records(log, group)]
        we_wrote = [entry for log in ours.logs for entry in group_records(log, group)]
        # Tombstones of a deletion are in the order of a Java map.
        assert [entry for entry in we_wrote if not _is_tombstone(entry)] == [
            entry for entry in wrote if not _is_tombstone(entry)
        ], group
        assert sorted(map(repr, we_wrote)) == sorted(map(repr, wrote)), group
    reader = LocalGroupHarness(offsets_partitions=5)
    reader.create_topic("__consumer_offsets", 5)
    reader.logs = logs
    reader.restart()
    for (request, version), answer in zip(questions, answers, strict=True):
        # No record holds a generation that was not synced.
        settled = {group.group_id for group in answer.groups if "Rebalance" not in getattr(group, "group_state", "")}
        assert len(settled) >= 4
        assert _sorted(reader.ask(request, version), settled) == _sorted(answer, settled)


def _is_tombstone(entry: Any) -> bool:
    return isinstance(entry, tuple) and entry[1] is None


def _sorted(answer: Any, kept: set[str]) -> Any:
    """The selected groups, with lists sorted that are in the order of a Java map."""
    answer.groups = sorted((one for one in answer.groups if one.group_id in kept), key=lambda one: one.group_id)
    for group in answer.groups:
        for topic in getattr(group, "topics", ()):
            topic.partitions.sort(key=lambda partition: partition.partition_index)
        if hasattr(group, "topics"):
            group.topics.sort(key=lambda topic: topic.name)
    return answer


def shown_of(group: str, formatter: str, bootstrap: str) -> dict[str, Any]:
    """The last record of a group that Kafka's console consumer prints from the group's partition.

    The consumer ends at the current high watermark, since other groups may continue to write.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "counts"})
    count = len(consumer.list_topics("__consumer_offsets", timeout=30).topics["__consumer_offsets"].partitions)
    topic_partition = TopicPartition("__consumer_offsets", abs_hash(group) % count)
    low, high = consumer.get_watermark_offsets(topic_partition, timeout=30)
    consumer.close()
    shown = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic_partition.topic),
        *("--partition", topic_partition.partition, "--offset", "earliest", "--max-messages", high - low),
        *("--timeout-ms", 8000, "--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
    )
    decoder = json.JSONDecoder()
    found: dict[str, dict[str, Any]] = {}
    text, at = shown.stdout.strip(), 0
    while at < len(text):
        record, at = decoder.raw_decode(text, at)
        found[record["key"]["data"]["group"]] = record
    assert group in found, shown
    return found[group]


@needs_kafka
def test_kafkas_formatters_read_our_records(kafka_broker: Any, kafka_topic: str) -> None:
    """The console consumer prints `__consumer_offsets` records as JSON, with Kafka's own classes."""
    offsets, group = f"offsets-{kafka_topic}", f"group-{kafka_topic}"
    with RawClient(kafka_broker.bootstrap) as client:
        assert client.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators[0].error_code == 0
        request = commit_request(7, group=offsets, topic=kafka_topic)
        assert client.ask(request, 8).topics[0].partitions[0].error_code == 0
        assert client.ask(join_request(group), 3).error_code == 0
    committed = shown_of(offsets, "OffsetsMessageFormatter", kafka_broker.bootstrap)
    assert committed["value"]["version"] == 4
    assert committed["value"]["data"]["offset"] == 7
    assert committed["key"]["data"]["topic"] == kafka_topic
    kept = shown_of(group, "GroupMetadataMessageFormatter", kafka_broker.bootstrap)
    assert (kept["key"]["type"], kept["value"]["version"]) == (2, 3)


def test_quick_scenarios_exist() -> None:
    """A renamed scenario must not be lost from the comparison."""
    assert {str(file.relative_to(SCENARIOS).with_suffix("")) for file in SCENARIOS.rglob("*.txt")} >= set(QUICK)
    own = {name for name in QUICK if settings_of((SCENARIOS / f"{name}.txt").read_text()) != SETTINGS}
    assert own == {"consumer_groups/timeouts"}, "each set of settings costs a start of Apache Kafka"
