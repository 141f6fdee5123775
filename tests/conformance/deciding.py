"""Random histories of clusters, decided by us and by Apache Kafka's classes: `make compare-decisions ARGS="[OPTION]..."`.

    --seed N             the first history; printed
    --lives N            number of histories
    --steps N            steps in each

A difference is printed with its step and the cluster state before it: `--seed` replays it. Not generated are steps that differ
on purpose, or that are not deterministic in Kafka:
- a replica that is removed while it is being added (`replication/controller/partitions/partition_changes.py` rule 4),
- the directory of a replica whose partition has no leader, and offline directories
  (`replication/controller/partitions/assign_replicas_to_dirs.py` rule 2),
- the last active broker requesting to be fenced (`replication/controller/brokers/broker_heartbeats.py` rule 1),
- a change of min.insync.replicas while there are eligible leaders: Kafka's controller then forgets them in one of two places.
A history ends where Kafka's classes fail: when the last known leader is no replica any more, or a broker that is no replica
is an eligible leader (`partition_changes.py` rule 3).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages import admin, cluster, quorum, stored_records
from protocol.schema import Message
from replication.metadata.feature_levels import SUPPORTED_FEATURES
from replication.metadata.image import NO_LEADER, BrokerImage, MetadataImage, PartitionState, TopicImage
from replication.metadata.image_records import stored_features
from tests.support.config_cases import SET, TOPIC, resource
from tests.support.decisions import CLUSTER_ID, Decided, KafkaDecisions, OurDecisions, Step, topic_ids
from tests.support.messages import message

BROKERS = (2, 3, 4, 5)
FAR = 2**40
LEVELS = (
    {"metadata.version": 30, "eligible.leader.replicas.version": 1},
    {"metadata.version": 30},
    {"metadata.version": 11},
)


class RandomCluster:
    """A generator of random steps for one cluster."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.levels = LEVELS[seed % len(LEVELS)]
        self.min_isr = self.random.choice((1, 2, 2, 3))
        self.racks = {broker: self.random.choice((None, "a", "b")) for broker in BROKERS}
        self._topics = 0
        self._incarnations = 0
        self._kinds: list[tuple[int, Callable[[MetadataImage], Step | None]]] = [
            (4, self._register),
            (12, self._heartbeat),
            (3, self._expire_session),
            (3, self._create),
            (1, self._more_partitions),
            (12, self._alter_isr),
            (6, self._reassign),
            (1, lambda image: cluster.ListPartitionReassignmentsRequest(topics=None)),
            (4, self._elect),
            (2, lambda image: "balance"),
            (2, lambda image: "unclean"),
            (2, self._assign),
            (1, self._unregister),
            (2, self._configure),
        ]

    def first(self) -> list[Step]:
        return [self._registration(broker, -1) for broker in BROKERS[:3]]

    def next(self, image: MetadataImage) -> Step:
        weights = [weight for weight, _ in self._kinds]
        while True:
            ((_, draw),) = self.random.choices(self._kinds, weights)
            step = draw(image)
            if step is not None:
                return step

    # ------------------------------------------------------------ brokers
    def _registration(self, broker: int, previous_epoch: int) -> quorum.BrokerRegistrationRequest:
        self._incarnations += 1
        return message(
            quorum.BrokerRegistrationRequest,
            broker_id=broker,
            cluster_id=CLUSTER_ID,
            incarnation_id=self._incarnations.to_bytes(16, "big"),
            listeners=[{"name": "PLAINTEXT", "host": "h", "port": 9, "security_protocol": 0}],
            features=stored_features(SUPPORTED_FEATURES),
            rack=self.racks[broker],
            log_dirs=[bytes([broker]) * 15 + bytes([n]) for n in range(1, 2 + broker % 2)],
            previous_broker_epoch=previous_epoch,
        )

    def _register(self, image: MetadataImage) -> Step:
        broker = self.random.choice(BROKERS)
        known = image.brokers.get(broker)
        was_clean = known is not None and self.random.random() < 0.5
        return self._registration(broker, known.epoch if was_clean and known is not None else -1)

    def _heartbeat(self, image: MetadataImage) -> Step | None:
        broker = self._broker(image)
        if broker is None:
            return None
        leaves = self.random.random() < 0.15
        failed = [broker.directories[-1]] if len(broker.directories) > 1 and self.random.random() < 0.05 else []
        return quorum.BrokerHeartbeatRequest(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch - (self.random.random() < 0.05),
            current_metadata_offset=self.random.choice((FAR, FAR, FAR, 0)),
            want_fence=self.random.random() < 0.1 and _has_others(image, broker.broker_id),
            want_shut_down=leaves or broker.is_shutting_down,
            offline_log_dirs=failed,
            cordoned_log_dirs=list(broker.directories) if self.random.random() < 0.05 else [],
        )

    def _expire_session(self, image: MetadataImage) -> Step | None:
        active = [broker_id for broker_id, broker in image.brokers.items() if not broker.is_fenced]
        return f"silent {self.random.choice(active)}" if active else None

    def _unregister(self, image: MetadataImage) -> Step:
        fenced = [broker_id for broker_id, broker in image.brokers.items() if broker.is_fenced]
        return cluster.UnregisterBrokerRequest(broker_id=self.random.choice([*fenced, 9]))

    def _broker(self, image: MetadataImage) -> BrokerImage | None:
        return self.random.choice(list(image.brokers.values())) if image.brokers else None

    # ------------------------------------------------------------ topics
    def _replicas(self, count: int | None = None) -> list[int]:
        count = self.random.choice((1, 2, 2, 3, 3, 4)) if count is None else count
        return self.random.sample(BROKERS, min(count, len(BROKERS)))

    def _create(self, image: MetadataImage) -> Step | None:
        if self._topics > 4:
            return None
        self._topics += 1
        by_hand = self.random.random() < 0.7
        factor = self.random.choice((1, 2, 3))
        topic = {
            "name": f"t{self._topics}",
            "num_partitions": -1 if by_hand else 2,
            "replication_factor": -1 if by_hand else factor,
            "assignments": [
                {"partition_index": index, "broker_ids": self._replicas(factor)} for index in range(3 if by_hand else 0)
            ],
        }
        return message(admin.CreateTopicsRequest, topics=[topic], timeout_ms=1000, validate_only=False)

    def _more_partitions(self, image: MetadataImage) -> Step | None:
        topic = self._topic(image)
        if topic is None or len(topic.partitions) > 5:
            return None
        factors = {len(state.replicas) for state in topic.partitions.values()}
        if len(factors) > 1:
            return None  # Kafka uses the factor of an arbitrary partition
        count, (factor,) = len(topic.partitions) + 1, factors
        wanted = [{"broker_ids": self._replicas(factor)}] if self.random.random() < 0.5 else None
        request = {"name": topic.name, "count": count, "assignments": wanted}
        return message(admin.CreatePartitionsRequest, topics=[request], timeout_ms=1000, validate_only=False)

    def _topic(self, image: MetadataImage) -> TopicImage | None:
        return self.random.choice(list(image.topics_by_id.values())) if image.topics_by_id else None

    def _partition(self, image: MetadataImage) -> tuple[TopicImage, int, PartitionState] | None:
        topic = self._topic(image)
        if topic is None:
            return None
        index = self.random.choice(list(topic.partitions))
        return topic, index, topic.partitions[index]

    def _alter_isr(self, image: MetadataImage) -> Step | None:
        found = self._partition(image)
        if found is None or found[2].leader == NO_LEADER or found[2].leader not in image.brokers:
            return None
        topic, index, state = found
        members = [replica for replica in state.replicas if replica == state.leader or self.random.random() < 0.7]
        wrong = self.random.random() < 0.1
        wanted = {
            "partition_index": index,
            "leader_epoch": state.leader_epoch + (self.random.choice((-1, 1)) if wrong else 0),
            "partition_epoch": state.partition_epoch + (self.random.choice((-1, 0, 1)) if wrong else 0),
            "leader_recovery_state": 0 if self.random.random() < 0.9 else 1,
            "new_isr_with_epochs": [
                {"broker_id": member, "broker_epoch": image.brokers[member].epoch if member in image.brokers else -1}
                for member in members
            ],
        }
        epoch = image.brokers[state.leader].epoch
        topics = [{"topic_id": topic.topic_id, "partitions": [wanted]}]
        return message(quorum.AlterPartitionRequest, broker_id=state.leader, broker_epoch=epoch, topics=topics)

    def _reassign(self, image: MetadataImage) -> Step | None:
        found = self._partition(image)
        if found is None:
            return None
        topic, index, state = found
        replicas = None if self.random.random() < 0.25 else self._replicas()
        if replicas is not None and (set(state.adding) - set(replicas)) and not set(replicas) - set(state.replicas):
            return None
        topics = [{"name": topic.name, "partitions": [{"partition_index": index, "replicas": replicas}]}]
        grows = self.random.random() < 0.7
        return message(cluster.AlterPartitionReassignmentsRequest, allow_replication_factor_change=grows, topics=topics)

    def _elect(self, image: MetadataImage) -> Step | None:
        topic = self._topic(image)
        if topic is None:
            return None
        partitions = [{"topic": topic.name, "partitions": [*topic.partitions, 9]}]
        return message(
            cluster.ElectLeadersRequest, election_type=self.random.choice((0, 1)), topic_partitions=partitions
        )

    def _assign(self, image: MetadataImage) -> Step | None:
        found, broker = self._partition(image), self._broker(image)
        if found is None or broker is None or found[2].leader == NO_LEADER or not broker.directories:
            return None
        topic, index, _ = found
        topics = [
            {"topic_id": topic.topic_id, "partitions": [{"partition_index": self.random.choice((index, index, 9))}]}
        ]
        directories = [{"id": self.random.choice(broker.directories), "topics": topics}]
        identity = {"broker_id": broker.broker_id, "broker_epoch": broker.epoch}
        return message(quorum.AssignReplicasToDirsRequest, directories=directories, **identity)

    def _configure(self, image: MetadataImage) -> Step | None:
        topic = self._topic(image)
        if topic is None:
            return None
        name, value = "unclean.leader.election.enable", self.random.choice(("true", "false"))
        if "eligible.leader.replicas.version" not in self.levels and self.random.random() < 0.5:
            name, value = "min.insync.replicas", self.random.choice(("1", "2", "3"))
        wanted = resource(TOPIC, topic.name, (name, SET, value))
        return admin.IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False)


def _has_others(image: MetadataImage, broker_id: int) -> bool:
    return any(broker.is_active for other, broker in image.brokers.items() if other != broker_id)


def comparable_lines(decided: Decided) -> list[str]:
    """A decision as comparable lines; independent records have no order."""
    answer = decided.answer
    if isinstance(answer, admin.CreateTopicsResponse):
        for topic in answer.topics:
            topic.configs = []
    if isinstance(answer, cluster.ListPartitionReassignmentsResponse):
        answer.topics.sort(key=lambda topic: topic.name)
        for ongoing in answer.topics:
            ongoing.partitions.sort(key=lambda partition: partition.partition_index)
    lines = [f"code {decided.code}", *([] if answer is None else [repr(answer)])]
    return lines + sorted(_comparable(record, version) for record, version in decided.records)


def _comparable(record: Message, version: int) -> str:
    if isinstance(record, stored_records.PartitionRecord | stored_records.PartitionChangeRecord):
        for name in ("isr", "eligible_leader_replicas"):
            members = getattr(record, name)
            setattr(record, name, members and sorted(members))
    return f"v{version} {record!r}"


def difference(kafka: KafkaDecisions, seed: int, steps: int) -> str:
    """Runs a history; describes the first decision that differs, "" if none does."""
    history = RandomCluster(seed)
    ours = OurDecisions(history.min_isr, history.levels)
    kafka.begin(history.min_isr, history.levels)
    waiting: list[Step] = history.first()
    for number in range(steps):
        before = ours.image
        step = waiting.pop(0) if waiting else history.next(before)
        theirs = kafka.decide(step, ours.offset)
        if theirs.code == ErrorCode.UNKNOWN_SERVER_ERROR or any(
            _is_fault(before, record) for record, _ in theirs.records
        ):
            return ""
        ours.topic_ids.clear()
        ours.topic_ids.extend(topic_ids(theirs.records))
        mine = ours.decide(step)
        expected, found = comparable_lines(theirs), comparable_lines(mine)
        if expected != found:
            lines = [f"seed {seed}, step {number}, {history.levels}, min.insync.replicas {history.min_isr}: {step!r}"]
            lines += [f"  Kafka {line}" for line in (Counter(expected) - Counter(found)).elements()]
            lines += [f"  we    {line}" for line in (Counter(found) - Counter(expected)).elements()]
            return "\n".join([*lines, *_shown(before)])
    return ""


def _is_fault(image: MetadataImage, record: Message) -> bool:
    """Whether Kafka takes a broker for an eligible leader that is no replica any more (partition_changes.py rule 3)."""
    if not isinstance(record, stored_records.PartitionChangeRecord):
        return False
    state = image.topics_by_id[record.topic_id].partitions[record.partition_id]
    eligible, replicas = record.eligible_leader_replicas, record.replicas
    eligible_after = {*(state.eligible_leaders if eligible is None else eligible)}
    return not eligible_after <= {*(state.replicas if replicas is None else replicas)}


def _shown(image: MetadataImage) -> list[str]:
    brokers = [f"  {broker}" for broker in image.brokers.values()]
    return brokers + [
        f"  {topic.name}-{index} {state}"
        for topic in image.topics_by_id.values()
        for index, state in topic.partitions.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    """Runs histories; 1 if a decision differs."""
    parser = argparse.ArgumentParser(prog="make compare-decisions")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))  # no secret
    parser.add_argument("--lives", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200)
    options: Any = parser.parse_args(arguments)
    found = 0
    with KafkaDecisions() as kafka:
        for seed in range(options.seed, options.seed + options.lives):
            what = difference(kafka, seed, options.steps)
            if what:
                found += 1
                sys.stdout.write(what + "\n\n")
    sys.stdout.write(f"{options.lives} lives from seed {options.seed} on: {found} differ\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
