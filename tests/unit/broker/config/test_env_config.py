"""Settings from environment variables (broker/config/env_config.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.config.config_loader import load_config
from broker.config.env_config import CLUSTER_ID, DATA, EnvConfig, read_env_config, variable_of


def load(variables: dict[str, str], mounted: str) -> tuple[EnvConfig, BrokerConfig]:
    found = read_env_config(variables, mounted)
    return found, load_config(found.file, {}, env_settings=found.settings, use_kafka_defaults=not found.is_quick_start)


def test_underscores_become_dots_underscores_and_dashes(tmp_path: Path) -> None:
    output = {
        "KAFKA_LOG_DIRS": "d",
        "KAFKA_ABC__DEF": "2",
        "KAFKA_ABC___DEF": "3",
        "PATH": "/bin",
        "KAFKA_HEAP_OPTS": "-Xmx1G",
    }
    found = read_env_config(output, str(tmp_path / "none"))
    assert found.settings == {"log.dirs": "d", "abc_def": "2", "abc-def": "3"}
    assert not found.is_quick_start


def test_an_invalid_value_names_its_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the environment variable KAFKA_NUM_PARTITIONS: Invalid value none"):
        load({"KAFKA_NUM_PARTITIONS": "none"}, str(tmp_path / "none"))
    for setting, name in {
        "log.dirs": "KAFKA_LOG_DIRS",
        "abc_def": "KAFKA_ABC__DEF",
        "abc-def": "KAFKA_ABC___DEF",
    }.items():
        assert variable_of(setting) == name


def test_the_default_listeners_are_the_advertised_ports_on_all_addresses(tmp_path: Path) -> None:
    output = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka-1:19092,PLAINTEXT_HOST://localhost:9092"}
    nowhere = str(tmp_path / "none")
    assert (
        read_env_config(output, nowhere).settings["listeners"]
        == "PLAINTEXT://0.0.0.0:19092,PLAINTEXT_HOST://0.0.0.0:9092"
    )
    assert "listeners" not in read_env_config({**output, "KAFKA_PROCESS_ROLES": "controller"}, nowhere).settings
    assert read_env_config({**output, "KAFKA_LISTENERS": "A://:1"}, nowhere).settings["listeners"] == "A://:1"


def test_without_variables_one_node_serves_local_clients(tmp_path: Path) -> None:
    found, config = load({"PATH": "/bin"}, str(tmp_path / "none"))
    assert [(e.host, e.port) for e in config.listeners] == [("", 9092)]
    assert config.advertised_listeners["PLAINTEXT"].host == "localhost"
    assert config.log_dirs == [DATA]
    assert config.number("offsets.topic.replication.factor") == 1
    assert found.cluster_id == CLUSTER_ID
    assert read_env_config({"CLUSTER_ID": "c"}, str(tmp_path / "none")).cluster_id == "c"


def test_with_variables_the_defaults_are_kafkas(tmp_path: Path) -> None:
    _, config = load({"KAFKA_LISTENERS": "PLAINTEXT://:9092"}, str(tmp_path / "none"))
    assert config.number("offsets.topic.replication.factor") == 3


def test_variables_override_a_mounted_file(tmp_path: Path) -> None:
    mounted = tmp_path / "server.properties"
    mounted.write_text("node.id=4\nlisteners=PLAINTEXT://:9092\nnum.partitions=2\n")
    _, config = load({"KAFKA_NUM_PARTITIONS": "5"}, str(mounted))
    assert (config.node_id, config.number("num.partitions")) == (4, 5)
