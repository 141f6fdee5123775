"""A node accepts the values of settings that Apache Kafka accepts, and refuses the others with its words.

Every setting of Apache Kafka gets some values of its kind, the other settings are valid. The record contains Apache Kafka's
answers: the message of its error, or an empty text.

NOT HERE Settings that depend on others (`test_config_rules.py` of the unit tests).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.broker_config import ConfigError
from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.config_loader import load_config
from broker.config.ssl_definitions import IGNORED_AND_SSL
from storage.config.config_def import Kind
from tests.support.goldens import check_golden, golden
from tests.support.kafka import needs_kafka, tool_command
from tests.support.line_process import LineProcess

ORACLE = Path(__file__).parents[1] / "oracle" / "BrokerConfigs.java"
NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
}
_NUMBERS = ("-1", "0", "1", "20", "2000", "9999999", "1.5", "1_000", "x", "")
VALUES = {
    Kind.BOOLEAN: ("true", "FALSE", " true ", "yes", ""),
    Kind.SHORT: (*_NUMBERS, "32768"),
    Kind.INT: (*_NUMBERS, "2147483648"),
    Kind.LONG: (*_NUMBERS, "9223372036854775808"),
    Kind.DOUBLE: ("-1", "0", "0.5", "1.5", "1e3", "1f", "0x1p3", "Infinity", "inf", "nan", "x", ""),
    Kind.LIST: ("", "a", "a,,b", ","),
    Kind.STRING: ("", "nope"),
}
ACCEPTED_BY_KAFKA_ONLY = {
    "authorizer.class.name",  # a class that this broker has not got
    "group.share.assignors",
    "kafka.metrics.reporters",
    "metric.reporters",
    "log.flush.interval.ms",  # Apache Kafka refuses these when it creates the defaults of topics
    "log.flush.scheduler.interval.ms",
    "metadata.log.segment.ms",
    "replica.selector.class",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.server.max.receive.size",
    "security.providers",
}
ACCEPTED_BY_US_ONLY = {
    "controller.quorum.bootstrap.servers",  # the quorum's settings are read later
    "controller.quorum.voters",
    "inter.broker.listener.name",
    "log.cleaner.threads",  # Apache Kafka divides by it
}
OTHER_WORDS = {
    "advertised.listeners",
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "early.start.listeners",
    "group.consumer.assignors",  # one of the server's assignors
    "group.share.assignors",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "listeners",
    "max.connections.per.ip.overrides",
    "node.id",
}


def cases() -> dict[str, dict[str, dict[str, str]]]:
    """The settings of a node, by the name and the value of the setting that is tested."""
    settings = {**BROKER_SETTINGS, **IGNORED_AND_SSL}
    return {
        name: {value: {**NODE, name: value} for value in VALUES.get(setting.kind, ())}
        for name, setting in sorted(settings.items())
        if not name.startswith("barnabas.") and setting.kind in VALUES
    }


def our_answer(settings: dict[str, str]) -> str:
    try:
        load_config(None, settings, use_kafka_defaults=True)
    except ConfigError as error:
        return str(error).removeprefix("the command line: ")
    return ""


@pytest.mark.parametrize("name", cases())
def test_values_are_accepted_and_refused_as_by_apache_kafka(name: str) -> None:
    for value, kafka in golden("config_values")[name].items():
        ours = our_answer({**NODE, name: value})
        if kafka and ours:
            assert ours == kafka or name in OTHER_WORDS, value
        elif kafka != ours:
            assert name in (ACCEPTED_BY_US_ONLY if kafka else ACCEPTED_BY_KAFKA_ONLY), f"{value!r}: {kafka or ours}"


@needs_kafka
@pytest.mark.golden
def test_apache_kafkas_answers() -> None:
    program = LineProcess(tool_command(str(ORACLE)))
    try:
        answers = {
            name: {
                value: program.ask("\t".join(f"{key}={text}" for key, text in settings.items()))
                for value, settings in values.items()
            }
            for name, values in cases().items()
        }
    finally:
        program.stop()
    check_golden("config_values", answers)
