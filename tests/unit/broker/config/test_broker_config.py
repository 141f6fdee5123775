"""Settings from files and the command line (broker/config/config_loader.py)."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from broker.config.broker_config import ConfigError, Endpoint
from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.config_loader import load_config
from broker.config.ssl_definitions import IGNORED_AND_SSL
from storage.config.config_def import parse
from storage.config.log_config import SYNONYMS


def test_every_default_is_a_valid_value() -> None:
    for setting in [*BROKER_SETTINGS.values(), *IGNORED_AND_SSL.values()]:
        parse(setting, setting.default)


def test_every_synonym_of_a_topic_setting_is_a_broker_setting() -> None:
    assert {name for names in SYNONYMS.values() for name, _ in names} <= BROKER_SETTINGS.keys()


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# comment\nnode.id=7\nnum.partitions = 3\nlog.dirs=a,\\\n  b\nlisteners: PLAINTEXT://:9092\n")
    config = load_config(str(file), {"num.partitions": "5"})
    assert (config.node_id, config.number("num.partitions"), config.log_dirs) == (7, 5, ["a", "b"])
    assert config.listeners == [Endpoint("PLAINTEXT", "", 9092)]
    assert config.listeners[0].is_wildcard


@pytest.mark.parametrize("settings", [{"node.id": "7"}, {"broker.id": "7"}, {"node.id": "7", "broker.id": "7"}])
def test_the_old_name_of_node_id_has_the_same_value(settings: dict[str, str]) -> None:
    config = load_config(None, settings)
    assert (config.node_id, config.number("node.id"), config.number("broker.id")) == (7, 7, 7)


def test_two_backslashes_at_the_end_of_a_line_are_one(tmp_path: Path) -> None:
    """As Java reads properties: the line does not continue."""
    file = tmp_path / "server.properties"
    file.write_text("ssl.key.password=a\\\\\nnum.partitions=3\nsuper\\.users=b\\")
    given = load_config(str(file), {}).given
    assert (given["ssl.key.password"], given["num.partitions"], given["super.users"]) == ("a\\", "3", "b")


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=7\n", encoding="utf-8-sig")
    assert load_config(str(file), {}).node_id == 7


def test_an_invalid_value_is_reported_with_file_line_and_valid_values(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\n\nnum.partitions=none\n")
    with pytest.raises(ConfigError) as refusal:
        load_config(str(file), {})
    assert str(refusal.value) == (
        f"{file}, line 3: Invalid value none for configuration num.partitions: Not a number of type INT"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listeners": "nonsense"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://:²"}, "NAME://host:port"),
        ({"node.id": "1", "broker.id": "2"}, "You must set `node.id` to the same value as `broker.id`."),
        ({"log.dirs": ""}, "Configuration 'log.dirs' must not be empty"),
        ({"process.roles": ""}, "Configuration .process.roles. must not be empty"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "a unique name"),
        (
            {"advertised.listeners": "PLAINTEXT://h:1,PLAINTEXT://i:1"},
            "advertised.listeners: each listener needs a unique",
        ),
        ({"listeners": "CONTROLLER://h:1"}, "at least one broker advertised listener"),
        ({"listeners": "PLAINTEXT://h:1", "advertised.listeners": "OTHER://h:1"}, "OTHER"),
        ({"socket.request.max.bytes": "0"}, "Value must be at least 1"),
        ({"num.io.threads": "many"}, "Invalid value many for configuration num.io.threads: Not a number of type INT"),
        ({"group.streams.assignment.interval.ms": "15001"}, "less than or equal to group.streams.max.assignment"),
        ({"log.retention.hours": "0"}, "log.retention.ms must be unlimited"),
        ({"log.roll.ms": "0"}, "log.roll.ms must be greater than or equal to 1"),
        ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms must be greater than or equal to 0"),
        ({"log.dirs": "/a", "cordoned.log.dirs": "/a,/b,/c"}, "Missing entries : /b, /c"),
        ({"log.dirs": "/a", "cordoned.log.dirs": "*,/a"}, "it must not contain other values"),
        (
            {"group.consumer.session.timeout.ms": "1000"},
            "greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            {"group.consumer.max.session.timeout.ms": "1"},
            "greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        ({"group.coordinator.rebalance.protocols": "consumer"}, "Disabling the 'classic' protocol is not supported."),
        ({"group.consumer.assignment.interval.ms": "15001"}, "less than or equal to group.consumer.max.assignment"),
        (
            {"group.consumer.heartbeat.interval.ms": "45000", "group.consumer.max.heartbeat.interval.ms": "45000"},
            "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms",
        ),
        ({"group.consumer.migration.policy": "sideways"}, "DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "at least 1MB per cleaner thread"),
        ({"log.flush.interval.ms": "-1"}, "Invalid value -1 for configuration flush.ms: Value must be at least 0"),
        ({"replica.socket.timeout.ms": "499"}, "replica.socket.timeout.ms should always be at least"),
        ({"replica.lag.time.max.ms": "499"}, "less than or equal to replica.lag.time.max.ms"),
        ({"connections.max.idle.ms": "100"}, "delay.ms=100 should always be less than connections.max.idle.ms=100 to"),
        ({"queued.max.request.bytes": "1"}, "must be larger or equal to socket.request.max.bytes"),
        ({"offsets.topic.compression.codec": "5"}, "Unknown compression type id: 5"),
        ({"group.share.max.share.sessions": "199"}, "greater than or equal to group.share.max.size"),
        ({"group.streams.num.standby.replicas": "3"}, "less than or equal to group.streams.max.standby.replicas"),
        (
            {"group.streams.heartbeat.interval.ms": "45001", "group.streams.max.heartbeat.interval.ms": "50000"},
            "group.streams.heartbeat.interval.ms must be less than group.streams.session.timeout.ms",
        ),
        ({"metric.reporters": "nope.Class"}, "metric.reporters: Class nope.Class cannot be found"),
        ({"kafka.metrics.reporters": "nope.Class"}, "kafka.metrics.reporters: Class nope.Class cannot be found"),
    ],
)
def test_conflicting_settings_are_a_sentence(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(None, settings)


def test_an_unknown_name_is_a_warning_and_an_ignored_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_config(None, {"nonsense.setting": "1", "num.network.threads": "3"})
    assert [record.getMessage() for record in caplog.records] == [
        "unknown setting nonsense.setting (the command line) is ignored"
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections", "5"),
        ("max.connection.creation.rate", "5"),
        ("num.network.threads", "3"),
        ("principal.builder.class", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"),
    ],
)
def test_a_setting_of_one_listener_is_no_unknown_name(name: str, value: str, caplog: pytest.LogCaptureFixture) -> None:
    load_config(None, {f"listener.name.plaintext.{name}": value})
    assert not caplog.records


def test_a_refused_setting_of_one_listener_is_not_called_ignored(caplog: pytest.LogCaptureFixture) -> None:
    name = "listener.name.plaintext.principal.builder.class"
    with pytest.raises(ConfigError, match=f"{name} is not enforced"):
        load_config(None, {name: "own.Builder"})
    assert not caplog.records


@pytest.mark.parametrize("name", ["barnabas.storage.engine", "barnabas.log.storage.engin", "barnabas.log.engine"])
def test_a_warning_names_the_setting_that_an_unknown_name_is_close_to(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    load_config(None, {name: "commitlog"})
    assert [record.getMessage() for record in caplog.records] == [
        f"unknown setting {name} (the command line) is ignored; is it barnabas.log.storage.engine?"
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.dirs", "\udcff"),
        ("broker.rack", "\ud83d"),
        ("advertised.listeners", "PLAINTEXT://\udcff:1"),
        ("\udcff", "x"),
    ],
)
def test_a_setting_that_no_response_can_have_is_refused(name: str, text: str) -> None:
    """Bytes of a command line or a variable that are no UTF-8, and half a pair of a properties file."""
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(None, {name: text})


def test_a_missing_file_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the settings file nowhere\.properties: No such file"):
        load_config("nowhere.properties", {})


def test_the_example_settings_load_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for path in sorted(Path("config").glob("*.properties")):
        commented = {
            line[1:].split("=")[0]: line.split("=", 1)[1]
            for line in path.read_text().splitlines()
            if line.startswith("#") and "=" in line and not line.startswith("# ")
        }
        with caplog.at_level(logging.WARNING):
            load_config(str(path), commented)
        assert caplog.records == [], path


def test_listen_replaces_the_client_listeners_only() -> None:
    given = {"listeners": "PLAINTEXT://h:1,CONTROLLER://[::1]:9093", "controller.listener.names": "CONTROLLER"}
    config = load_config(None, given, "127.0.0.1:0")
    assert config.listeners == [Endpoint("PLAINTEXT", "127.0.0.1", 0)]
    assert config.controller_listeners == [Endpoint("CONTROLLER", "::1", 9093)]
    assert load_config(None, {}, "127.0.0.1:0").controller_listeners == []


def test_cleaner_resources_are_divided_by_threads() -> None:
    assert load_config(None, {}).cleaner_settings() == (1, 15_000, sys.float_info.max, (134_217_728, 0.9, 262_144))
    given = {
        "log.cleaner.threads": "4",
        "log.cleaner.io.max.bytes.per.second": "1000",
        "log.cleaner.dedupe.buffer.size": "8000000",
        "log.cleaner.io.buffer.size": "400000",
        "log.cleaner.io.buffer.load.factor": "0.5",
        "log.cleaner.backoff.ms": "7",
    }
    assert load_config(None, given).cleaner_settings() == (4, 7, 250.0, (2_000_000, 0.5, 50_000))


@pytest.mark.parametrize("given", [{"log.cleaner.enable": "false"}, {"log.cleaner.threads": "0"}])
def test_without_threads_the_cleaner_is_off_and_its_settings_are_not_checked(given: dict[str, str]) -> None:
    assert load_config(None, {**given, "log.cleaner.dedupe.buffer.size": "1"}).cleaner_settings().threads == 0
