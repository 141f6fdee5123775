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
    *(f"{S}raftmetrics_{name}" for name in ("current_vote", "commit_latency_avg")),
    *(f"{S}raftchannelmetrics_{name}_total" for name in ("incoming_byte", "outgoing_byte", "request", "response")),
    *(f"{S}kafkaserver_linux_disk_{way}_bytes" for way in ("read", "write")),
    *(f"{S}brokermetadatametrics_last_applied_record_{name}" for name in ("offset", "lag_ms")),
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
GROUP_COORDINATOR = {
    *(
        f"{S}group_coordinator_metrics_{name}_{kind}"
        for name in ("offset_commit", "offset_expiration", "offset_deletion", "group_completed_rebalance")
        for kind in ("count", "rate")
    ),
    *(f"{S}group_coordinator_metrics_consumer_group_rebalance_{kind}" for kind in ("count", "rate")),
    *(f"{S}group_coordinator_metrics_event_purgatory_time_ms_{quantile}" for quantile in ("p50", "p99")),
    *(
        f"{S}{coordinator}_coordinator_metrics_partition_load_time_{kind}"
        for coordinator in ("group", "transaction")
        for kind in ("avg", "max")
    ),
    "kafka_coordinator_group_groupmetadatamanager_numoffsets",
}
"""Apache Kafka's group-coordinator-metrics and transaction-coordinator-metrics."""
REPORTER = {
    *(f"{S}brokertopicmetrics_{name}persec_total" for name in ("bytesin", "bytesout", "messagesin")),
    *(f"{S}brokertopicmetrics_{name}persec_total" for name in ("totalproducerequests", "failedproducerequests")),
    *(f"{S}brokertopicmetrics_{name}persec_total" for name in ("totalfetchrequests", "failedfetchrequests")),
    f"{N}requestmetrics_requestspersec_total",
    f"{N}socketserver_networkprocessoravgidlepercent",
    f"{S}kafkarequesthandlerpool_requesthandleravgidlepercent_total",
    "kafka_controller_controllerstats_uncleanleaderelectionspersec_total",
    *(f"{S}raft_metrics_{name}" for name in ("current_leader", "current_vote", "current_epoch", "current_state_info")),
    *(f"{S}raft_metrics_{name}" for name in ("high_watermark", "log_end_offset", "commit_latency_avg")),
    *(f"{S}raft_metrics_{name}_records_rate" for name in ("append", "fetch")),
    *(f"{S}raft_channel_metrics_{name}" for name in ("incoming_byte", "outgoing_byte", "request", "response")),
}
"""Strimzi's boards for its metrics reporter."""
LABELS = {
    f"{S}brokertopicmetrics_bytesin_total": {"topic": "flights"},
    f"{N}requestmetrics_requests_total": {"request": "Produce"},
    f"{N}requestmetrics_errors_total": {"request": "Produce", "error": "NONE"},
    f"{N}requestmetrics_totaltimems": {"request": "FetchConsumer", "quantile": "0.99"},
    f"{S}delayedoperationpurgatory_purgatorysize": {"delayedOperation": "Fetch"},
    f"{S}socket_server_metrics_connection_count": {"listener": "PLAINTEXT", "networkProcessor": "0"},
    f"{S}raftmetrics_current_state": {"current_state": "leader"},
    "kafka_log_log_size": {"topic": "flights", "partition": "0"},
    "kafka_cluster_partition_underminisr": {"topic": "flights", "partition": "0"},
    "kafka_topic_partitions": {"topic": "flights"},
    "kafka_topic_partition_current_offset": {"topic": "flights", "partition": "0"},
    "kafka_consumergroup_current_offset": {"consumergroup": "readers", "topic": "flights", "partition": "0"},
    "kafka_consumergroup_lag": {"consumergroup": "readers", "topic": "flights", "partition": "0"},
    "kafka_consumergroup_members": {"consumergroup": "readers"},
    "kafka_consumergroup_group_lag_seconds": {"group": "readers", "topic": "flights", "partition": "0"},
}
"""What boards select and sum by; the labels of targets, such as strimzi_io_cluster, are the scrape's."""
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
        ("", GROUP_COORDINATOR),
        ("?names=b", CONFLUENT_BOARDS | EXPORTER_BOARDS),
        ("?names=c", REPORTER | EXPORTER_BOARDS),
        ("?names=redpanda", REDPANDA),
    ],
    ids=["jmx", "exporter", "lag", "strimzi", "coordinators", "confluent", "reporter", "redpanda"],
)
def test_existing_boards_and_alerts_find_their_metrics(page: Page, query: str, wanted: set[str]) -> None:  # noqa: F811
    assert wanted - names_of(page, query) == set()


@pytest.mark.parametrize("name", LABELS)
def test_metrics_have_the_labels_that_boards_select_by(page: Page, name: str) -> None:  # noqa: F811
    assert len(page.values(name, **LABELS[name])) >= 1


def test_counters_of_boards_are_counters_and_the_others_gauges_or_summaries(page: Page) -> None:  # noqa: F811
    types = {name: family.type for name, family in page.families().items()}
    for name in JMX_BOARDS | EXPORTER_BOARDS | LAG_EXPORTER:
        wanted = {"counter"} if name.endswith("_total") else {"gauge", "summary"}
        assert types[name.removesuffix("_total") if name.endswith("_total") else name] in wanted, name


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
