"""The cluster as this node's metadata has it, its controller and its Raft replica.

RULES    1. `kafka_topic_partitions` is shown by the leader of a topic's first partition: over all brokers, each topic once.
         2. The controller's gauges are shown by nodes with that role. Those about partitions are counted in steps, and kept
            while no topic changes; they are 0 on controllers that are not active, as in Apache Kafka.
         3. A node ends at the first error in a metadata record, so `metadataerrorcount` is 0 on every node that runs.
NOT HERE The partitions of this broker (`replica_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from broker.telemetry.families import PAUSE, Dialect, Families, Family, counter, gauge, gauges, label_text, meter
from broker.telemetry.peer_traffic import PeerTraffic
from broker.telemetry.rates import Rate
from broker.telemetry.topic_metrics import MAX_TOPICS
from replication.kraft_node import KRaftNode
from replication.metadata.image import NO_LEADER, MetadataImage, TopicImage

_CONTROLLER: Final = "kafka_controller_kafkacontroller"
_RAFT: Final = "kafka_server_raftmetrics"
_RAFT_METRICS: Final = "kafka_server_raft_metrics"
_BROKER_METADATA: Final = ("kafka_server_broker_metadata_metrics", "kafka_server_brokermetadatametrics")
"""jmx_exporter's name, and Strimzi's."""
_LAG: Final = "Milliseconds since the first scrape that found committed records which are not applied."
_PARTITIONS_PER_STEP: Final = 2_000
RUNNING, STARTING = 3, 1
"""Apache Kafka's numbers of a broker's state."""


@dataclass(slots=True)
class _PartitionCounts:
    """Of all partitions of the cluster."""

    topics: dict[bytes, TopicImage]
    """Counted in these topics."""
    total: int = 0
    offline: int = 0
    not_preferred: int = 0


class ClusterMetrics:
    """The families of the metadata, the controller and Raft."""

    def __init__(
        self,
        node: KRaftNode,
        node_id: int,
        mono_ms: Callable[[], int],
        raft_traffic: PeerTraffic,
        *,
        is_broker: bool,
        is_controller: bool,
        is_started: Callable[[], bool],
    ) -> None:
        self._node = node
        self._node_id = node_id
        self._is_broker = is_broker
        self._is_controller = is_controller
        self._is_started = is_started
        self._mono_ms = mono_ms
        self._raft_traffic = raft_traffic
        self._appended = Rate(mono_ms)
        self._behind_since_ms: int | None = None
        self._counted = _PartitionCounts({})

    def families(self) -> Families:
        """The cluster's, then the node's."""
        image = self._node.image
        if self._is_broker:
            state = RUNNING if self._is_started() else STARTING
            yield gauge("kafka_server_kafkaserver_brokerstate", "3: running; 1: starting or stopping.", state)
            yield gauge("kafka_brokers", "Registered brokers.", len(image.brokers))
            yield gauges("kafka_broker_info", "Brokers and their addresses.", _addresses(image))
            yield gauges("kafka_topic_partitions", "Partitions of a topic.", self._topics(image))
        if self._is_controller:
            yield from self._of_controller(image)
        yield from self._of_raft(image)

    def _topics(self, image: MetadataImage) -> Iterator[tuple[str, int]]:
        led = (
            topic
            for topic in list(image.topics_by_id.values())
            if topic.partitions and next(iter(topic.partitions.values())).leader == self._node_id
        )
        for topic in islice(led, MAX_TOPICS):
            yield label_text(("topic", topic.name)), len(topic.partitions)

    # ------------------------------------------------------------ the controller
    def _of_controller(self, image: MetadataImage) -> Families:
        controller = self._node.controller
        is_active = controller.is_active
        counted = yield from self._count(image)
        fenced = sum(broker.is_fenced for broker in image.brokers.values())
        for name, explanation, value in (
            ("activecontrollercount", "1: this node is the active controller.", 1),
            ("offlinepartitionscount", "Partitions without a leader.", counted.offline),
            (
                "preferredreplicaimbalancecount",
                "Partitions that their first replica does not lead.",
                counted.not_preferred,
            ),
            ("globaltopiccount", "Topics of the cluster.", len(image.topics_by_id)),
            ("globalpartitioncount", "Partitions of the cluster.", counted.total),
            ("activebrokercount", "Brokers that are not fenced.", len(image.brokers) - fenced),
            ("fencedbrokercount", "Brokers that are fenced.", fenced),
        ):
            yield gauge(f"{_CONTROLLER}_{name}", explanation, value if is_active else 0)
        yield gauge(f"{_CONTROLLER}_metadataerrorcount", "Errors in metadata records; a node ends at the first.", 0)
        yield gauge(f"{_CONTROLLER}_lastappliedrecordlagms", _LAG, self._lag_ms(image))
        committed = self._node.raft.state.high_watermark - 1
        yield gauge(f"{_CONTROLLER}_lastappliedrecordoffset", "Last metadata record applied here.", image.offset)
        yield gauge(f"{_CONTROLLER}_lastcommittedrecordoffset", "Last committed metadata record.", committed)
        yield meter(
            "kafka_controller_controllerstats",
            "UncleanLeaderElections",
            "Leaders elected outside of the in-sync replicas.",
            [("", controller.unclean_elections)],
        )

    def _count(self, image: MetadataImage) -> Generator[None, None, _PartitionCounts]:
        topics = image.topics_by_id
        if self._counted.topics is topics:
            return self._counted
        counted = _PartitionCounts(topics)
        for topic in list(topics.values()):
            for state in topic.partitions.values():
                counted.total += 1
                counted.offline += state.leader == NO_LEADER
                counted.not_preferred += state.leader != state.replicas[0]
                if counted.total % _PARTITIONS_PER_STEP == 0:
                    yield PAUSE
        self._counted = counted
        return counted

    # ------------------------------------------------------------ Raft
    def _of_raft(self, image: MetadataImage) -> Iterator[Family]:
        state = self._node.raft.state
        vote = -1 if state.voted_key is None else state.voted_key.node_id
        latency = self._node.log.commit_latency
        average = latency.sum_ms / latency.count if latency.count else float("nan")
        for name, explanation, value in (
            ("current_leader", "Leader of the metadata quorum; -1: unknown.", state.leader_id),
            ("current_epoch", "Epoch of the metadata quorum.", state.epoch),
            ("current_vote", "The candidate that this node voted for in the epoch; -1: none.", vote),
            ("high_watermark", "Committed end of the metadata log.", state.high_watermark),
            ("log_end_offset", "End of this node's metadata log.", state.log.end.offset),
            ("log_end_epoch", "Epoch of the last record of this node's metadata log.", state.log.end.epoch),
            ("number_of_voters", "Voters of the metadata quorum.", len(state.voters)),
            ("commit_latency_avg", "Milliseconds until this node's appends as leader are committed.", average),
            ("commit_latency_max", "Milliseconds of the slowest commit.", latency.longest_ms),
        ):
            yield _of_raft(name, explanation, [("", value)])
        records = self._appended.per_second(state.log.end.offset)
        is_leader = state.leader_id == self._node_id
        for name, explanation, is_here in (
            ("append_records_rate", "Records appended as leader, per second.", is_leader),
            ("fetch_records_rate", "Records fetched from the leader, per second.", not is_leader),
        ):
            yield _of_raft(name, explanation, [("", records if is_here else 0.0)])
        role = type(state.role).__name__.lower()
        name = "observer" if role == "follower" and not state.is_voter else role
        role_names = {Dialect.REPORTER: f"{_RAFT_METRICS}_current_state_info"}
        roles = gauges(f"{_RAFT}_current_state", "Role in the quorum.", [(label_text(("current_state", name)), 1)])
        yield roles._replace(other_names=role_names)
        lag_ms, applied = self._lag_ms(image), "Last metadata record that this node has applied."
        for bean in _BROKER_METADATA:
            yield gauge(f"{bean}_last_applied_record_offset", applied, image.offset)
            yield gauge(f"{bean}_last_applied_record_lag_ms", _LAG, lag_ms)
        yield from self._of_raft_channel()

    def _of_raft_channel(self) -> Iterator[Family]:
        """The connections of this node's Raft replica to the others."""
        traffic = self._raft_traffic
        for name, explanation, value in (
            ("request", "Raft requests to other nodes.", traffic.requests),
            ("response", "Responses of other nodes to them.", traffic.responses),
            ("outgoing_byte", "Bytes of these requests.", traffic.bytes_out),
            ("incoming_byte", "Bytes of these responses.", traffic.bytes_in),
        ):
            others = {Dialect.REPORTER: f"kafka_server_raft_channel_metrics_{name}"}
            yield counter(f"kafka_server_raftchannelmetrics_{name}", explanation, value)._replace(other_names=others)

    def _lag_ms(self, image: MetadataImage) -> int:
        """How long committed records wait to be applied, as seen by scrapes."""
        now_ms = self._mono_ms()
        if image.offset + 1 >= self._node.raft.state.high_watermark:
            self._behind_since_ms = None
            return 0
        if self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        return now_ms - self._behind_since_ms


def _of_raft(name: str, explanation: str, values: list[tuple[str, float]]) -> Family:
    """A gauge of the Raft replica."""
    others = dict.fromkeys((Dialect.REPORTER, Dialect.CONFLUENT), f"{_RAFT_METRICS}_{name}")
    return gauges(f"{_RAFT}_{name}", explanation, values)._replace(other_names=others)


def _addresses(image: MetadataImage) -> Iterator[tuple[str, int]]:
    for broker_id, broker in sorted(image.brokers.items()):
        for endpoint in broker.endpoints[:1]:
            address = f"{endpoint.host}:{endpoint.port}"
            yield label_text(("id", str(broker_id)), ("address", address)), 1
