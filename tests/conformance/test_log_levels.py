"""Levels of loggers are shown and changed as in Apache Kafka (KIP-412): the same story for both, with a logger of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from barnabas import Broker
from protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
)
from tests.support.config_cases import DELETE_SETTING, SET, Change, resource
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.logger_cases import LOGGER
from tests.support.raw_client import RawClient


class Running(NamedTuple):
    """A broker, and the name of one of its loggers."""

    client: RawClient
    own: str

    def described(self, name: str = "1", keys: list[str] | None = None) -> DescribeConfigsResult:
        asked = DescribeConfigsResource(resource_type=LOGGER, resource_name=name, configuration_keys=keys)
        request = DescribeConfigsRequest(resources=[asked], include_synonyms=True, include_documentation=True)
        (told,) = self.client.ask(request, 4).results
        assert isinstance(told, DescribeConfigsResult)
        return told

    def levels(self) -> tuple[str | None, str | None]:
        """Of the root, and of the broker's own logger."""
        found = {row.name: row.value for row in self.described(keys=["root", self.own]).configs}
        return found["root"], found[self.own]

    def change(self, *changes: Change, validate_only: bool = False) -> int:
        request = IncrementalAlterConfigsRequest(
            resources=[resource(LOGGER, "1", *changes)], validate_only=validate_only
        )
        (told,) = self.client.ask(request, 1).responses
        return int(told.error_code)


@pytest.fixture(scope="module", params=["barnabas", pytest.param("apache-kafka", marks=needs_kafka)])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    node: Any = Broker() if request.param == "barnabas" else ApacheKafka()
    own = "barnabas.network" if request.param == "barnabas" else "kafka.server.KafkaApis"
    with node as broker, RawClient(broker.bootstrap) as client:
        yield Running(client, own)


def test_a_logger_has_its_parents_level_until_it_has_its_own(running: Running) -> None:
    """Also after its own was taken back; a change that is only tried changes nothing."""
    assert running.change(("root", SET, "WARN")) == 0
    assert running.levels() == ("WARN", "WARN")
    assert running.change((running.own, SET, "TRACE")) == 0
    assert running.levels() == ("WARN", "TRACE")
    assert running.change((running.own, SET, "FATAL"), ("root", SET, "INFO"), validate_only=True) == 0
    assert running.levels() == ("WARN", "TRACE")
    assert running.change((running.own, SET, "FATAL"), ("root", SET, "ERROR")) == 0
    assert running.levels() == ("ERROR", "FATAL")
    assert running.change((running.own, DELETE_SETTING, None)) == 0
    assert running.levels() == ("ERROR", "ERROR")


def test_one_wrong_change_undoes_all_of_its_resource(running: Running) -> None:
    before = running.levels()
    assert running.change((running.own, SET, "DEBUG"), ("nope", SET, "INFO")) != 0
    assert running.levels() == before


def test_the_answers_shape_is_kafkas(running: Running) -> None:
    """Type, source, rights; no synonyms, no documentation; whose loggers are not asked for is said."""
    (row,) = running.described(keys=["root", "nope"]).configs
    shape = row.read_only, row.config_source, row.is_sensitive, row.synonyms, row.config_type, row.documentation
    assert (row.name, *shape) == ("root", False, 6, False, [], 0, "")
    assert {"root", running.own} <= {row.name for row in running.described().configs}
    assert [running.described(name).error_message for name in ("", "x", "2")] == [
        "Broker id must not be empty",
        "Broker id must be an integer, but it is: x",
        "Unexpected broker id, expected 1 but received 2",
    ]
