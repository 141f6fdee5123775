"""Topics and partitions of a broker (broker/telemetry/topic_metrics.py, replica_metrics.py), and whether it may be stopped."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.telemetry import replica_metrics, topic_metrics
from broker.telemetry.closed_logs import ClosedLogs
from broker.telemetry.exposition import Format
from broker.telemetry.families import Source
from broker.telemetry.health_probes import NodeProbes
from broker.telemetry.replica_metrics import ReplicaMetrics
from broker.telemetry.topic_metrics import TopicMetrics
from protocol.errors import ErrorCode
from replication.partition.topic_counts import BrokerCounts
from tests.support.replica_harness import SELF, ReplicaHarness, fetched, produced


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    return ReplicaHarness(tmp_path)


def values(source: Source, prefix: str) -> dict[str, float]:
    """The samples with a prefix, by the rest of their name and their labels."""
    lines = "".join(Format("").slices([source])).splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith(prefix))
    return {name.removeprefix(prefix): float(value) for name, _, value in found}


# ---- topics


def topic_values(harness: ReplicaHarness) -> dict[str, float]:
    return values(TopicMetrics(harness.replicas.counts), "kafka_server_brokertopicmetrics_")


def test_an_append_and_a_read_are_counted(harness: ReplicaHarness) -> None:
    harness.create()
    harness.load(batches=3)
    size = len(fetched(harness.fetch()).records)
    found = topic_values(harness)
    assert found['bytesin_total{topic="t"}'] == found['bytesout_total{topic="t"}'] == size
    assert found['messagesin_total{topic="t"}'] == found['totalproducerequests_total{topic="t"}'] == 3
    assert found['totalfetchrequests_total{topic="t"}'] >= 1
    assert found["replicationbytesout_total"] == 0


def test_what_a_follower_reads_is_replication(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2))
    harness.load()
    harness.fetch(replica=2)
    found = topic_values(harness)
    assert found["replicationbytesout_total"] == found["bytesin_total"] > 0
    assert found["bytesout_total"] == 0


def test_failures_are_counted_and_those_of_unknown_topics_too(harness: ReplicaHarness) -> None:
    harness.create()
    harness.produce(records=bytearray(100))
    harness.produce("unknown")
    harness.fetch(offset=77)
    found = topic_values(harness)
    assert found['failedproducerequests_total{topic="t"}'] == found['failedfetchrequests_total{topic="t"}'] == 1
    assert found["failedproducerequests_total"] == 2
    assert 'failedproducerequests_total{topic="unknown"}' not in found


def test_an_append_without_acknowledgement_in_time_counts_once(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2))
    answer = harness.produce(timeout_ms=100)
    harness.pass_time(100)
    assert produced(answer).error_code == ErrorCode.REQUEST_TIMED_OUT
    found = topic_values(harness)
    assert found['totalproducerequests_total{topic="t"}'] == found['failedproducerequests_total{topic="t"}'] == 1


def test_the_sum_of_the_broker_does_not_fall_when_a_topic_is_deleted(harness: ReplicaHarness) -> None:
    harness.create()
    harness.load()
    before = topic_values(harness)["bytesin_total"]
    harness.delete()
    assert topic_values(harness) == {**topic_values(harness), "bytesin_total": before}
    assert 'bytesin_total{topic="t"}' not in topic_values(harness)


def test_a_topic_whose_last_replica_here_moves_away_has_no_series(harness: ReplicaHarness) -> None:
    harness.create(partitions=2)
    harness.load()
    before = topic_values(harness)["bytesin_total"]
    harness.change(index=1, replicas=[2], isr=[2], leader=2)
    assert 'bytesin_total{topic="t"}' in topic_values(harness)
    harness.change(replicas=[2], isr=[2], leader=2)
    assert 'bytesin_total{topic="t"}' not in topic_values(harness)
    assert topic_values(harness)["bytesin_total"] == before


def test_records_that_a_throttled_client_does_not_get_are_not_counted(harness: ReplicaHarness) -> None:
    harness.create()
    harness.load("t")
    meter: Any = SimpleNamespace(is_exempt=False, is_running=True, max_fetch_bytes=1000, charge_fetch=lambda _: True)
    context = harness.context(1, 12)._replace(meter=meter)
    response: Any = harness.fetching.handle(context, harness.fetch_request({("t", 0): 0}, version=12))
    assert response.responses == []
    assert topic_values(harness)['bytesout_total{topic="t"}'] == 0


def test_topics_above_the_limit_are_one(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_metrics, "MAX_TOPICS", 1)
    for name in ("a", "b", "c"):
        harness.create(name)
        harness.load(name)
    found = topic_values(harness)
    assert found['messagesin_total{topic="(others)"}'] == 2 * found['messagesin_total{topic="a"}']
    assert 'messagesin_total{topic="b"}' not in found


def test_the_series_of_the_other_topics_never_falls(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that gets a series of its own and a deleted one leave their counts in it."""
    monkeypatch.setattr(topic_metrics, "MAX_TOPICS", 1)
    counts = BrokerCounts()
    metrics = TopicMetrics(counts)

    def shown() -> dict[str, float]:
        return values(metrics, "kafka_server_brokertopicmetrics_messagesin_total")

    for number, topic in enumerate("abcd"):
        counts.of(topic).messages_in = 10**number
    assert shown() == {"": 1111, '{topic="a"}': 1, '{topic="(others)"}': 1110}
    counts.remove("a")
    counts.of("b").messages_in += 1
    assert shown() == {"": 1112, '{topic="b"}': 11, '{topic="(others)"}': 1111}
    counts.of("d").messages_in += 1
    counts.remove("d")
    counts.of("d").messages_in = 5
    assert shown() == {"": 1118, '{topic="b"}': 11, '{topic="(others)"}': 1117}


# ---- partitions


def metrics_of(harness: ReplicaHarness) -> ReplicaMetrics:
    closed_logs = ClosedLogs(harness.replicas, harness.worker)
    for step in closed_logs.prepare():
        assert step is None or step.is_done, "the harness reads at once"
    return ReplicaMetrics(harness.replicas, harness.purgatory, closed_logs)


def broker_values(harness: ReplicaHarness) -> dict[str, float]:
    return values(metrics_of(harness), "kafka_server_replicamanager_")


def test_the_gauges_of_the_broker_count_its_replicas(harness: ReplicaHarness) -> None:
    harness.create("healthy", partitions=2, replicas=(1, 2))
    harness.create("followed", replicas=(2, 1), leader=2)
    harness.create("behind", replicas=(1, 2, 3), isr=(1, 2), min_insync_replicas=2)
    harness.create("alone", replicas=(1, 2, 3), isr=(1,), min_insync_replicas=2)
    assert broker_values(harness) == {
        "partitioncount": 5,
        "leadercount": 4,
        "offlinereplicacount": 0,
        "underreplicatedpartitions": 2,
        "underminisrpartitioncount": 1,
        "atminisrpartitioncount": 1,
        "reassigningpartitions": 0,
        "isrshrinks_total": 0,
        "isrexpands_total": 0,
    }


def test_changes_of_in_sync_sets_are_counted(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2))
    harness.change(isr=[1])
    harness.change(isr=[1, 2])
    harness.change(adding_replicas=[3])
    found = broker_values(harness)
    assert (found["isrshrinks_total"], found["isrexpands_total"], found["reassigningpartitions"]) == (1, 1, 1)


def test_replicas_that_a_reassignment_adds_are_not_missing(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2))
    harness.change(replicas=[1, 2, 3], adding_replicas=[3])
    labels = '{topic="t",partition="0"}'
    found = values(metrics_of(harness), "kafka_cluster_partition_")
    assert (found[f"underreplicated{labels}"], found[f"replicascount{labels}"]) == (0, 2)
    gauges = broker_values(harness)
    assert (gauges["underreplicatedpartitions"], gauges["reassigningpartitions"]) == (0, 1)
    assert values(metrics_of(harness), "kafka_topic_partition_replicas") == {labels: 3}
    harness.change(isr=[1])
    assert broker_values(harness)["underreplicatedpartitions"] == 1


def test_a_partition_shows_its_offsets_segments_and_size(harness: ReplicaHarness) -> None:
    harness.create()
    harness.load(batches=4)
    harness.partition().delete_records(1, 0)
    found = values(metrics_of(harness), "kafka_")
    labels = '{topic="t",partition="0"}'
    assert found[f"log_log_logstartoffset{labels}"] == found[f"topic_partition_oldest_offset{labels}"] == 1
    assert found[f"log_log_logendoffset{labels}"] == found[f"topic_partition_current_offset{labels}"] == 4
    assert found[f"log_log_numlogsegments{labels}"] == found[f"topic_partition_leader_is_preferred{labels}"] == 1
    assert found[f"log_log_size{labels}"] > 0


def test_a_closed_log_has_the_size_of_its_files_and_stays_closed(harness: ReplicaHarness) -> None:
    harness.create()
    harness.load(batches=4)
    log = harness.partition().log
    before = values(metrics_of(harness), "kafka_log_log_")
    log.close()
    assert values(metrics_of(harness), "kafka_log_log_") == before
    assert not log.is_open


def test_a_closed_log_is_measured_once_until_it_changes(harness: ReplicaHarness) -> None:
    harness.create()
    harness.load()
    partition, closed_logs = harness.partition(), ClosedLogs(harness.replicas, harness.worker)
    partition.log.close()
    assert closed_logs.of(partition) is None
    assert len([step for step in closed_logs.prepare() if step is not None]) == 1
    assert [step for step in closed_logs.prepare() if step is not None] == []
    measured = closed_logs.of(partition)
    assert measured is not None
    before, _ = measured
    harness.load()
    partition.log.close()
    assert closed_logs.of(partition) is None
    assert list(closed_logs.prepare())
    measured = closed_logs.of(partition)
    assert measured is not None
    assert measured.size_bytes == 2 * before


def test_only_the_leader_shows_kafka_exporters_metrics(harness: ReplicaHarness) -> None:
    harness.create(replicas=(2, 1), leader=2)
    source = metrics_of(harness)
    assert values(source, "kafka_topic_partition_") == {}
    assert values(source, "kafka_log_log_logstartoffset") != {}


def test_partitions_above_the_limit_are_counted(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_metrics, "MAX_PARTITIONS", 2)
    harness.create(partitions=5)
    source = metrics_of(harness)
    assert values(source, "barnabas_partitions_without_series") == {"": 3}
    assert len(values(source, "kafka_log_log_logstartoffset")) == 2
    assert broker_values(harness)["partitioncount"] == 5


def test_many_partitions_are_walked_in_steps(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_metrics, "PARTITIONS_PER_STEP", 2)
    harness.create(partitions=9)
    families = metrics_of(harness).families()
    assert [next(families) for _ in range(4)] == [None] * 4


# ---- stopping


def unsafe(harness: ReplicaHarness) -> list[str]:
    """The topics for which this broker is needed."""
    probes = NodeProbes(
        SELF, lambda: harness.image, lambda name: harness.replicas.config_of(name).min_insync_replicas, True
    )
    steps = probes.is_safe_to_stop()
    try:
        while True:
            next(steps)
    except StopIteration as end:
        status, body = end.value
    answer = json.loads(body)
    assert (status == 200) is (answer["count"] == 0) is (answer["status"] == "safe")
    return [one["topic"] for one in answer["partitions"]]


def test_a_broker_is_needed_where_too_few_replicas_would_be_in_sync(harness: ReplicaHarness) -> None:
    harness.create("enough", replicas=(1, 2, 3), min_insync_replicas=2)
    harness.create("other", replicas=(2, 3), leader=2, min_insync_replicas=2)
    harness.create("behind", replicas=(1, 2, 3), isr=(2,), leader=2, min_insync_replicas=2)
    assert unsafe(harness) == []
    harness.create("at-minimum", replicas=(1, 2, 3), isr=(1, 2), min_insync_replicas=2)
    harness.create("single")
    assert unsafe(harness) == ["at-minimum", "single"]
