"""Apache Kafka's command-line tools print the same for three nodes of Barnabas as for three of Apache Kafka, while nodes stop
and start.

Where it matters replicas are assigned manually, since both brokers place them at random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.kafka import needs_kafka
from tests.support.kafka_cluster import ApacheCluster
from tests.support.tool_comparison import Masks, ToolRunner, difference, write_json
from tests.support.waiting import until

pytestmark = [needs_kafka, pytest.mark.long]

SETTINGS = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "60000",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "leader.imbalance.check.interval.seconds": "86400",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "unclean.leader.election.interval.ms": "500",
}

# The commands, in order; {dir} holds the files of FILES. "stop" and "start" apply to a node of each
# cluster, "settle" waits until all replicas are in sync.
LINES = """
kafka-topics --create --topic a --replica-assignment 1:2:3,2:3:1,3:1:2
kafka-topics --create --topic b --replica-assignment 1:2,2:3
kafka-topics --create --topic kept --replica-assignment 2:3:1
kafka-topics --create --topic one --replica-assignment 3
kafka-topics --create --topic last --replica-assignment 3
kafka-topics --create --topic bad --replica-assignment 1:4
kafka-topics --create --topic bad --replica-assignment 1:2,1
kafka-topics --create --topic bad --replica-assignment 1:1
kafka-topics --create --topic bad --partitions 1 --replication-factor 4
kafka-topics --describe
kafka-topics --alter --topic b --partitions 3 --replica-assignment 1:2,2:3,3:1
kafka-topics --alter --topic b --partitions 4 --replica-assignment 1:2,2:3,3:1,1
kafka-topics --alter --topic b --partitions 4 --replica-assignment 1:2,2:3,3:1,1:9
kafka-topics --describe --topic b
kafka-cluster list-endpoints
kafka-metadata-quorum describe --status
kafka-metadata-quorum describe --replication
kafka-features describe
kafka-configs --alter --entity-type brokers --entity-name 2 --add-config message.max.bytes=1000000
kafka-configs --describe --entity-type brokers --entity-name 2
kafka-configs --describe --entity-type brokers
kafka-verifiable-producer --topic kept --max-messages 9 --acks -1
kafka-verifiable-producer --topic last --max-messages 4 --acks 1
kafka-get-offsets --topic last
kafka-verifiable-consumer --topic kept --max-messages 9 --group-id g --verbose
kafka-consumer-groups --describe --group g

kafka-reassign-partitions --execute --reassignment-json-file {dir}/plan.json --throttle 1000000 \
--replica-alter-log-dirs-throttle 5000000
kafka-reassign-partitions --list
kafka-topics --describe --topic b
kafka-configs --describe --entity-type brokers --entity-name 3
kafka-configs --describe --entity-type topics --entity-name b
kafka-reassign-partitions --verify --reassignment-json-file {dir}/plan.json
kafka-configs --describe --entity-type brokers --entity-name 3
kafka-configs --describe --entity-type topics --entity-name b
kafka-topics --describe
kafka-reassign-partitions --execute --reassignment-json-file {dir}/nowhere.json
kafka-reassign-partitions --execute --reassignment-json-file {dir}/wider.json --disallow-replication-factor-change
kafka-leader-election --election-type preferred --topic a --partition 0
kafka-leader-election --election-type preferred --all-topic-partitions
kafka-topics --describe

stop 3
kafka-topics --describe
kafka-topics --describe --under-replicated-partitions
kafka-topics --describe --unavailable-partitions
kafka-topics --describe --under-min-isr-partitions
kafka-topics --describe --at-min-isr-partitions
kafka-cluster list-endpoints
kafka-cluster list-endpoints --include-fenced-brokers
kafka-topics --create --topic during --partitions 1 --replication-factor 3
kafka-topics --create --topic bad --replica-assignment 3
kafka-verifiable-producer --topic kept --max-messages 9 --acks -1
kafka-leader-election --election-type preferred --topic a --partition 2
kafka-leader-election --election-type unclean --topic one --partition 0
kafka-leader-election --election-type unclean --topic a --partition 1
kafka-reassign-partitions --execute --reassignment-json-file {dir}/to-the-dead.json
kafka-reassign-partitions --list
kafka-reassign-partitions --execute --reassignment-json-file {dir}/plan.json
kafka-topics --describe --topic a
kafka-reassign-partitions --cancel --preserve-throttles --reassignment-json-file {dir}/to-the-dead.json
kafka-reassign-partitions --cancel --preserve-throttles --reassignment-json-file {dir}/to-the-dead.json
kafka-reassign-partitions --list
kafka-topics --describe --topic a
kafka-reassign-partitions --execute --reassignment-json-file {dir}/from-the-dead.json
kafka-topics --describe --topic one
kafka-leader-election --election-type unclean --topic one --partition 0
kafka-topics --describe --topic one
kafka-reassign-partitions --execute --reassignment-json-file {dir}/rescued.json
kafka-configs --alter --entity-type topics --entity-name last --add-config unclean.leader.election.enable=true
kafka-topics --describe --topic last
kafka-cluster unregister --id 9
start 3
settle
kafka-topics --describe
kafka-get-offsets --topic last
kafka-leader-election --election-type preferred --all-topic-partitions
kafka-topics --describe
kafka-log-dirs --describe --broker-list 1,2,3 --topic-list one,last
kafka-topics --delete --topic b
kafka-topics --list
kafka-features upgrade --feature kraft.version=1 --dry-run
kafka-features describe
kafka-features upgrade --feature kraft.version=1
kafka-features describe
kafka-features downgrade --feature kraft.version=0
kafka-metadata-quorum describe --status
"""

FILES = {
    "plan.json": {"b": {0: [3, 2], 1: [2, 3, 1]}, "a": {0: [2, 1, 3]}},
    "nowhere.json": {"b": {0: [9]}},
    "wider.json": {"b": {0: [1, 2, 3]}},
    "to-the-dead.json": {"b": {2: [2, 3]}, "a": {1: [2, 1]}},
    "from-the-dead.json": {"one": {0: [1, 3]}},
    "rescued.json": {"last": {0: [2, 3]}},
}


def _in_order(found: re.Match[str]) -> str:
    """Kafka's ISR is in the order of a hash set."""
    return found[1] + ",".join(sorted(found[2].split(",")))


MASKS: Masks = [
    (r"(Isr: )([\d,]+)", _in_order),
    (r"(?m)^(LeaderId|MaxFollowerLag|MaxFollowerLagTimeMs): +-?\d+", r"\1"),
    (r"(?m)^\d+\s*\(an id\).*(Leader|Follower).*\n", "(a voter)\n"),
    (r"CurrentVoters: .*", "CurrentVoters"),
    (r'"size":\d+', '"size"'),
    (r"(?m)^.*Topic: (during|__consumer_offsets)\t.*\n", ""),  # placed at random
    (r"__consumer_offsets-\d+(, )?|, __consumer_offsets-\d+", ""),
    (r"(?m)^\[\d{4}-.*\n", ""),  # client log lines about a node that is down
    (r"consumer-g-\d+-[-0-9a-f]+|(?<=g  )\S*/127.0.0.1", "(a member)"),
]


def plan(moves: dict[str, dict[int, list[int]]]) -> dict[str, Any]:
    partitions = [
        {"topic": topic, "partition": index, "replicas": replicas}
        for topic, of_topic in moves.items()
        for index, replicas in of_topic.items()
    ]
    return {"version": 1, "partitions": partitions}


def is_in_sync(unmasked: ToolRunner) -> bool:
    """Every partition counts, also those that MASKS hides from the comparison: a leader election names them all."""
    code, text = unmasked.run("kafka-topics --describe --under-replicated-partitions")
    return code == 0 and "Partition:" not in text


@pytest.fixture
def both() -> Iterator[tuple[ApacheCluster, Cluster]]:
    with ApacheCluster(3, SETTINGS) as kafka, Cluster(settings=SETTINGS) as ours:
        yield kafka, ours


def test_every_tool_prints_what_it_prints_with_kafka(both: tuple[ApacheCluster, Cluster], tmp_path: Path) -> None:
    """Word for word, except for MASKS."""
    kafka, ours = both
    folder = write_json(tmp_path, {name: plan(moves) for name, moves in FILES.items()})
    kafka_runner = ToolRunner(kafka, kafka.bootstrap, kafka.folder, folder, MASKS)
    our_runner = ToolRunner(kafka, ours.bootstrap, ours.folder, folder, MASKS)
    unmasked = [ToolRunner(kafka, cluster.bootstrap, cluster.folder, folder) for cluster in (kafka, ours)]
    different = []
    for line in filter(None, LINES.splitlines()):
        word, _, number = line.partition(" ")
        if word == "settle":
            until(lambda: all(map(is_in_sync, unmasked)), "all replicas are in sync")
        elif word == "stop":
            kafka.stop(int(number))
            ours.nodes[int(number)].stop()
        elif word == "start":
            kafka.start(int(number))
            ours.nodes[int(number)].start()
        else:
            different.append(difference(line, kafka_runner, our_runner))
    assert not any(different), "\n".join(filter(None, different))
