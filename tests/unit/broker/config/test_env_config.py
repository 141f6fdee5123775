"""Guards broker/config/env_config.py: settings from variables, as apache/kafka's image takes them."""

from __future__ import annotations

from pathlib import Path

from broker.config.broker_config import load_config
from broker.config.env_config import CLUSTER_ID, DATA, from_environment


def test_underscores_become_dots_underscores_and_dashes(tmp_path: Path) -> None:
    """One, two and three of them (rule 1)."""
    said = {
        "KAFKA_LOG_DIRS": "d",
        "KAFKA_ABC__DEF": "2",
        "KAFKA_ABC___DEF": "3",
        "PATH": "/bin",
        "KAFKA_HEAP_OPTS": "-Xmx1G",
    }
    found = from_environment(said, str(tmp_path / "none"))
    assert found.settings == {"log.dirs": "d", "abc_def": "2", "abc-def": "3"}
    assert not found.is_quick


def test_a_node_listens_where_clients_are_told_to_connect(tmp_path: Path) -> None:
    """At all addresses, if nothing else is said (rule 4); controllers are told where to listen."""
    said = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka-1:19092,PLAINTEXT_HOST://localhost:9092"}
    nowhere = str(tmp_path / "none")
    assert (
        from_environment(said, nowhere).settings["listeners"]
        == "PLAINTEXT://0.0.0.0:19092,PLAINTEXT_HOST://0.0.0.0:9092"
    )
    assert "listeners" not in from_environment({**said, "KAFKA_PROCESS_ROLES": "controller"}, nowhere).settings
    assert from_environment({**said, "KAFKA_LISTENERS": "A://:1"}, nowhere).settings["listeners"] == "A://:1"


def test_without_variables_one_node_serves_clients_of_this_machine(tmp_path: Path) -> None:
    """Rules 3 and 5; its data lie where the image keeps them."""
    found = from_environment({"PATH": "/bin"}, str(tmp_path / "none"))
    config = load_config(found.file, found.settings, is_bare=not found.is_quick)
    assert [(e.host, e.port) for e in config.listeners] == [("", 9092)]
    assert config.advertised_listeners["PLAINTEXT"].host == "localhost"
    assert config.log_dirs == [DATA]
    assert config.number("offsets.topic.replication.factor") == 1
    assert found.cluster_id == CLUSTER_ID
    assert from_environment({"CLUSTER_ID": "c"}, str(tmp_path / "none")).cluster_id == "c"


def test_with_variables_kafkas_defaults_hold(tmp_path: Path) -> None:
    """Those of the quick start are for one node alone."""
    found = from_environment({"KAFKA_LISTENERS": "PLAINTEXT://:9092"}, str(tmp_path / "none"))
    config = load_config(found.file, found.settings, is_bare=not found.is_quick)
    assert config.number("offsets.topic.replication.factor") == 3


def test_variables_win_over_a_file_that_was_mounted(tmp_path: Path) -> None:
    """As in the other image."""
    mounted = tmp_path / "server.properties"
    mounted.write_text("node.id=4\nlisteners=PLAINTEXT://:9092\nnum.partitions=2\n")
    found = from_environment({"KAFKA_NUM_PARTITIONS": "5"}, str(mounted))
    config = load_config(found.file, found.settings, is_bare=not found.is_quick)
    assert (config.node_id, config.number("num.partitions")) == (4, 5)
