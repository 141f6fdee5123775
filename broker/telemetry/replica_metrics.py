"""The partitions of this broker: how many, how healthy, their offsets and sizes.

RULES    1. Gauges of the broker are counted in one walk over its partitions for each scrape, in steps.
         2. The names of kafka_exporter are shown for partitions that this broker leads: over all brokers, each partition once.
         3. The first `MAX_PARTITIONS` partitions have series of their own; `barnabas_partitions_without_series` the rest.
         4. Replicas that a reassignment adds count for kafka_exporter's names only, as in Apache Kafka.
         5. No log is opened. A closed log has the size of its files (`closed_logs.py`), and ends at its high watermark.
NOT HERE Bytes and requests (`topic_metrics.py`), the cluster (`cluster_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from broker.telemetry.closed_logs import ClosedLogs
from broker.telemetry.families import PAUSE, Families, Family, gauge, gauges, label_text, meter
from replication.metadata.image import NO_LEADER, MetadataImage, PartitionState
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory

MAX_PARTITIONS: Final = 10_000
PARTITIONS_PER_STEP: Final = 500
_BEAN: Final = "kafka_server_replicamanager"

Series = tuple[str, Partition]


@dataclass
class _Counted:
    """The gauges of the broker."""

    partitions: int = 0
    leaders: int = 0
    offline: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    reassigning: int = 0
    closed_logs: int = 0
    waiting_acks: int = 0
    max_lag: int = 0
    """Of this broker as a follower, in records."""

    def add(self, partition: Partition, image: MetadataImage) -> None:
        self.partitions += 1
        self.offline += partition.is_offline
        self.closed_logs += not partition.log.is_open
        if not partition.is_leader and partition.leader_high_watermark >= 0:
            self.max_lag = max(self.max_lag, partition.leader_high_watermark - _end_offset(partition))
        if partition.is_leader:
            self.waiting_acks += partition.waiting_acks
            in_sync = len(partition.isr)
            self.leaders += 1
            self.under_replicated += in_sync < partition.replication_factor
            self.under_min_isr += in_sync < partition.min_isr
            self.at_min_isr += in_sync == partition.min_isr
            state = _state_of(partition, image)
            self.reassigning += state is not None and bool(state.adding or state.removing)


def _state_of(partition: Partition, image: MetadataImage) -> PartitionState | None:
    topic = image.topics_by_name.get(partition.topic)
    return None if topic is None else topic.partitions.get(partition.index)


class ReplicaMetrics:
    """The families of a broker's partitions."""

    def __init__(self, replicas: ReplicaManager, purgatory: Purgatory, closed_logs: ClosedLogs) -> None:
        self._replicas = replicas
        self._closed_logs = closed_logs
        self._purgatory = purgatory

    def families(self) -> Families:
        """The broker's gauges, then the partitions'."""
        partitions = list(self._replicas.partitions.values())
        counted, series, led = _Counted(), list[Series](), list[Series]()
        for number, partition in enumerate(partitions, 1):
            counted.add(partition, self._replicas.image)
            if number <= MAX_PARTITIONS:
                labels = label_text(("topic", partition.topic), ("partition", str(partition.index)))
                series.append((labels, partition))
                if partition.is_leader:
                    led.append((labels, partition))
            if number % PARTITIONS_PER_STEP == 0:
                yield PAUSE
        yield from self._of_broker(counted)
        yield gauge(
            "barnabas_partitions_without_series",
            "Partitions above the limit of series.",
            max(len(partitions) - MAX_PARTITIONS, 0),
        )
        yield gauge("barnabas_closed_logs", "Partitions whose log is closed.", counted.closed_logs)
        yield from self._of_logs(series)
        yield from _of_replicas(series)
        yield PAUSE
        yield from _of_leaders(led)

    def _of_broker(self, counted: _Counted) -> Iterator[Family]:
        offline = counted.offline + len(self._replicas.offline_partitions)
        for name, explanation, value in (
            ("partitioncount", "Replicas on this broker.", counted.partitions),
            ("leadercount", "Partitions that this broker leads.", counted.leaders),
            ("offlinereplicacount", "Replicas in failed or missing log directories.", offline),
            ("underreplicatedpartitions", "Led partitions with replicas out of sync.", counted.under_replicated),
            ("underminisrpartitioncount", "Led partitions under min.insync.replicas.", counted.under_min_isr),
            ("atminisrpartitioncount", "Led partitions at min.insync.replicas.", counted.at_min_isr),
            ("reassigningpartitions", "Led partitions that are being reassigned.", counted.reassigning),
        ):
            yield gauge(f"{_BEAN}_{name}", explanation, value)
        waiting = {"Produce": counted.waiting_acks, "Fetch": len(self._purgatory)}
        yield gauges(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "Produce: appends that wait for acknowledgement; Fetch: requests that wait for data.",
            [(label_text(("delayedOperation", kind)), count) for kind, count in waiting.items()],
        )
        yield gauge("kafka_server_replicafetchermanager_maxlag", "Records that a follower here lacks.", counted.max_lag)
        failed = len(self._replicas.log_manager.offline)
        yield gauge("kafka_log_logmanager_offlinelogdirectorycount", "Failed log directories.", failed)
        counts = self._replicas.counts
        yield meter(_BEAN, "IsrShrinks", "In-sync sets that lost a replica.", [("", counts.isr_shrinks)])
        yield meter(_BEAN, "IsrExpands", "In-sync sets that gained a replica.", [("", counts.isr_expands)])

    def _of_logs(self, series: list[Series]) -> Iterator[Family]:
        """Apache Kafka's metrics of logs."""
        yield _gauges("kafka_log_log_logstartoffset", "First offset of the log.", series, _start_offset)
        yield _gauges("kafka_log_log_logendoffset", "Offset after the last record.", series, _end_offset)
        yield _gauges("kafka_log_log_size", "Bytes of the log.", series, self._size)
        yield _gauges("kafka_log_log_numlogsegments", "Segments of the log.", series, self._segments)

    def _size(self, partition: Partition) -> int | None:
        opened = partition.log.opened
        if opened is not None:
            return opened.engine.size_bytes
        files = self._closed_logs.of(partition)
        return None if files is None else files.size_bytes

    def _segments(self, partition: Partition) -> int | None:
        opened = partition.log.opened
        if opened is not None:
            return opened.engine.segment_count
        files = self._closed_logs.of(partition)
        return None if files is None else files.segments


def _of_replicas(series: list[Series]) -> Iterator[Family]:
    """Apache Kafka's metrics of partitions."""
    bean = "kafka_cluster_partition"
    yield _gauges(f"{bean}_underminisr", "1: under min.insync.replicas, on its leader.", series, _is_under_min_isr)
    yield _gauges(f"{bean}_underreplicated", "1: replicas are out of sync, on its leader.", series, _is_led_short)
    yield _gauges(f"{bean}_atminisr", "1: at min.insync.replicas, on its leader.", series, _is_at_min_isr)
    yield _gauges(f"{bean}_replicascount", "Replicas of a partition, on its leader.", series, _replica_count)
    yield _gauges(f"{bean}_insyncreplicascount", "Replicas in sync, on its leader.", series, _in_sync_count)


def _of_leaders(series: list[Series]) -> Iterator[Family]:
    """The metrics of kafka_exporter (rule 2)."""
    bean = "kafka_topic_partition"
    yield _gauges(f"{bean}_current_offset", "High watermark.", series, lambda one: one.high_watermark)
    yield _gauges(f"{bean}_oldest_offset", "First offset of the log.", series, _start_offset)
    yield _gauges(f"{bean}_leader", "Node id of the leader.", series, lambda one: one.leader_id)
    yield _gauges(f"{bean}_replicas", "Replicas.", series, lambda one: len(one.replicas))
    yield _gauges(f"{bean}_in_sync_replica", "Replicas in sync.", series, lambda one: len(one.isr))
    yield _gauges(f"{bean}_leader_is_preferred", "1: the first replica leads.", series, _is_preferred)
    yield _gauges(f"{bean}_under_replicated_partition", "1: replicas are out of sync.", series, _is_under_replicated)


def _gauges(name: str, explanation: str, series: list[Series], read: Callable[[Partition], int | None]) -> Family:
    def values() -> Iterator[tuple[str, float]]:
        for labels, partition in series:
            value = read(partition)
            if value is not None:
                yield labels, value

    return gauges(name, explanation, values())


def _start_offset(partition: Partition) -> int:
    return partition.log.offsets.log_start_offset


def _end_offset(partition: Partition) -> int:
    opened = partition.log.opened
    return partition.high_watermark if opened is None else opened.engine.end_offset


def _is_under_min_isr(partition: Partition) -> int:
    return int(partition.is_leader and len(partition.isr) < partition.min_isr)


def _is_led_short(partition: Partition) -> int:
    return int(partition.is_leader and len(partition.isr) < partition.replication_factor)


def _is_at_min_isr(partition: Partition) -> int:
    return int(partition.is_leader and len(partition.isr) == partition.min_isr)


def _replica_count(partition: Partition) -> int:
    return partition.replication_factor if partition.is_leader else 0


def _in_sync_count(partition: Partition) -> int:
    return len(partition.isr) if partition.is_leader else 0


def _is_preferred(partition: Partition) -> int:
    return int(bool(partition.replicas) and partition.leader_id == partition.replicas[0] != NO_LEADER)


def _is_under_replicated(partition: Partition) -> int:
    return int(len(partition.isr) < len(partition.replicas))
