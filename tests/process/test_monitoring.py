"""Existing boards and alert rules, and ours, find every metric that they name on the page of a broker with traffic."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.process.test_metrics_page import Page, page  # noqa: F401  # a fixture

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
METRIC = re.compile(r"\b(?:kafka|barnabas|process)_[a-z0-9_]+")
S, N, C = "kafka_server_", "kafka_network_", "kafka_controller_kafkacontroller_"

JMX_BOARDS = {
    *(f"{S}brokertopicmetrics_{name}_total" for name in ("bytesin", "bytesout", "messagesin")),
    *(f"{S}brokertopicmetrics_{name}_total" for name in ("totalproducerequests", "totalfetchrequests")),
    *(f"{S}brokertopicmetrics_{name}_total" for name in ("failedproducerequests", "failedfetchrequests")),
    *(f"{S}brokertopicmetrics_{name}_total" for name in ("replicationbytesin", "replicationbytesout")),
    f"{N}requestmetrics_requests_total",
    f"{N}requestmetrics_errors_total",
    *(f"{N}requestmetrics_{name}timems" for name in ("total", "requestqueue", "local", "remote", "throttle")),
    *(f"{N}requestmetrics_{name}timems" for name in ("responsequeue", "responsesend")),
    f"{S}kafkarequesthandlerpool_requesthandleravgidle_percent",
    f"{N}socketserver_networkprocessoravgidle_percent",
    f"{N}requestchannel_requestqueuesize",
    f"{N}requestchannel_responsequeuesize",
    f"{S}delayedoperationpurgatory_purgatorysize",
    *(f"{S}replicamanager_{name}" for name in ("leadercount", "partitioncount", "reassigningpartitions")),
    *(f"{S}replicamanager_{name}" for name in ("underreplicatedpartitions", "underminisrpartitioncount")),
    *(f"{S}replicamanager_{name}" for name in ("atminisrpartitioncount", "offlinereplicacount")),
    f"{S}replicamanager_isrshrinks_total",
    f"{S}replicamanager_isrexpands_total",
    *(
        f"kafka_cluster_partition_{name}"
        for name in ("underminisr", "atminisr", "replicascount", "insyncreplicascount")
    ),
    *(f"kafka_log_log_{name}" for name in ("size", "logstartoffset", "logendoffset", "numlogsegments")),
    *(f"{C}{name}" for name in ("activecontrollercount", "offlinepartitionscount", "preferredreplicaimbalancecount")),
    *(f"{C}{name}" for name in ("globaltopiccount", "globalpartitioncount", "activebrokercount", "fencedbrokercount")),
    *(f"{C}{name}" for name in ("metadataerrorcount", "lastappliedrecordlagms")),
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    *(f"{S}raftmetrics_{name}" for name in ("current_leader", "current_epoch", "current_state", "high_watermark")),
    *(f"{S}raftmetrics_{name}" for name in ("log_end_offset", "append_records_rate", "fetch_records_rate")),
    f"{S}replicafetchermanager_maxlag",
    f"{S}broker_metadata_metrics_last_applied_record_lag_ms",
    "kafka_log_logflushstats_logflushrateandtimems",
    "kafka_log_logmanager_offlinelogdirectorycount",
    f"{S}socket_server_metrics_connection_count",
    f"{S}socketservermetrics_connections",
    *(f"kafka_coordinator_group_groupmetadatamanager_numgroups{state}" for state in ("", "stable", "empty", "dead")),
    f"{S}kafkaserver_brokerstate",
    *(f"process_{name}" for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds")),
    "process_start_time_seconds",
}
"""Strimzi's boards for the JMX exporter, and the Grafana boards 721 and 11962 in the names of the JMX exporter."""
EXPORTER_BOARDS = {
    "kafka_brokers",
    "kafka_broker_info",
    "kafka_topic_partitions",
    *(f"kafka_topic_partition_{name}" for name in ("current_offset", "oldest_offset", "leader", "replicas")),
    *(f"kafka_topic_partition_{name}" for name in ("in_sync_replica", "leader_is_preferred")),
    "kafka_topic_partition_under_replicated_partition",
    *(f"kafka_consumergroup_{name}" for name in ("current_offset", "lag", "current_offset_sum", "lag_sum", "members")),
}
"""The Grafana board 7589, and Strimzi's board for kafka_exporter."""
LAG_EXPORTER = {"kafka_consumergroup_group_lag_seconds", "kafka_consumergroup_group_max_lag_seconds"}
STRIMZI_ALERTS = {
    f"{S}replicamanager_underreplicatedpartitions",
    f"{S}replicamanager_underminisrpartitioncount",
    f"{C}activecontrollercount",
    f"{C}offlinepartitionscount",
    "kafka_log_logmanager_offlinelogdirectorycount",
    "kafka_topic_partition_under_replicated_partition",
    "kafka_topic_partition_current_offset",
    "kafka_consumergroup_lag",
}
CONFLUENT_BOARDS = {
    *(f"{S}brokertopicmetrics_{name}persec" for name in ("bytesin", "bytesout", "messagesin")),
    *(f"{S}brokertopicmetrics_{name}persec" for name in ("totalproducerequests", "totalfetchrequests")),
    f"{N}requestmetrics_requestspersec",
    f"{S}replicamanager_isrshrinkspersec",
    f"{S}kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate",
    f"{S}kafkaserver_brokerstate",
}
"""The Grafana board 721 as Grafana's Kafka integration has it."""
REPORTER = {f"{S}brokertopicmetrics_bytesinpersec_total", f"{N}requestmetrics_requestspersec_total"}
REDPANDA = {
    "redpanda_kafka_request_bytes_total",
    "redpanda_kafka_records_produced_total",
    "redpanda_kafka_request_latency_seconds_bucket",
    *(f"redpanda_kafka_{name}" for name in ("max_offset", "partitions", "replicas", "under_replicated_replicas")),
    *(
        f"redpanda_kafka_consumer_group_{name}"
        for name in ("committed_offset", "consumers", "lag_max", "lag_sum", "topics")
    ),
    *(f"redpanda_cluster_{name}" for name in ("brokers", "topics", "partitions", "unavailable_partitions")),
    *(f"redpanda_storage_disk_{name}_bytes" for name in ("free", "total")),
}


def names_of(page: Page, query: str = "") -> set[str]:  # noqa: F811
    """The names of samples as written: prometheus_client adds _total to those of counters."""
    _, text = page.get(f"/metrics{query}")
    return {re.split(r"[{ ]", line, maxsplit=1)[0] for line in text.splitlines() if not line.startswith("#")}


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", JMX_BOARDS),
        ("", EXPORTER_BOARDS),
        ("", LAG_EXPORTER),
        ("", STRIMZI_ALERTS),
        ("?names=b", CONFLUENT_BOARDS | EXPORTER_BOARDS),
        ("?names=c", REPORTER | EXPORTER_BOARDS),
        ("?names=redpanda", REDPANDA),
    ],
    ids=["jmx", "exporter", "lag", "strimzi", "confluent", "reporter", "redpanda"],
)
def test_existing_boards_and_alerts_find_their_metrics(page: Page, query: str, wanted: set[str]) -> None:  # noqa: F811
    assert wanted - names_of(page, query) == set()


def board_expressions() -> Iterator[str]:
    board = json.loads((MONITORING / "grafana.json").read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["definition"] for variable in board["templating"]["list"] if "definition" in variable)


def alert_expressions() -> Iterator[str]:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


def test_our_board_and_alerts_name_metrics_that_exist(page: Page) -> None:  # noqa: F811
    expressions = [*board_expressions(), *alert_expressions()]
    wanted = {name for expression in expressions for name in METRIC.findall(expression)}
    assert len(wanted) > 30
    assert wanted - names_of(page) == set()
