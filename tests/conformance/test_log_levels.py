"""Logger levels are described and altered as in Apache Kafka (KIP-412), each broker with a logger of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from protocol.messages.admin import IncrementalAlterConfigsRequest
from tests.conformance.brokers import KAFKA, describe_configs, running
from tests.support.config_cases import DELETE_SETTING, SET, Change, resource
from tests.support.follower_harness import BOTH
from tests.support.logger_cases import LOGGER
from tests.support.raw_client import RawClient


class Node(NamedTuple):
    """A broker, and the name of one of its loggers."""

    client: RawClient
    own: str

    def described(self, name: str = "1", keys: list[str] | None = None) -> Any:
        return describe_configs(self.client, LOGGER, name, keys)

    def levels(self) -> tuple[str | None, str | None]:
        """Of the root logger, and of the broker's own logger."""
        found = {row.name: row.value for row in self.described(keys=["root", self.own]).configs}
        return found["root"], found[self.own]

    def change(self, *changes: Change, validate_only: bool = False) -> int:
        request = IncrementalAlterConfigsRequest(
            resources=[resource(LOGGER, "1", *changes)], validate_only=validate_only
        )
        (response,) = self.client.ask(request, 1).responses
        return int(response.error_code)


@pytest.fixture(scope="module", params=BOTH)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    own = "kafka.server.KafkaApis" if request.param == KAFKA else "barnabas.network"
    with running(request.param) as broker, RawClient(broker.bootstrap) as client:
        yield Node(client, own)


def test_a_logger_has_its_parents_level_until_it_has_its_own(node: Node) -> None:
    """Also after its own level is deleted; validate_only changes nothing."""
    assert node.change(("root", SET, "WARN")) == 0
    assert node.levels() == ("WARN", "WARN")
    assert node.change((node.own, SET, "TRACE")) == 0
    assert node.levels() == ("WARN", "TRACE")
    assert node.change((node.own, SET, "FATAL"), ("root", SET, "INFO"), validate_only=True) == 0
    assert node.levels() == ("WARN", "TRACE")
    assert node.change((node.own, SET, "FATAL"), ("root", SET, "ERROR")) == 0
    assert node.levels() == ("ERROR", "FATAL")
    assert node.change((node.own, DELETE_SETTING, None)) == 0
    assert node.levels() == ("ERROR", "ERROR")


def test_one_wrong_change_undoes_all_of_its_resource(node: Node) -> None:
    before = node.levels()
    assert node.change((node.own, SET, "DEBUG"), ("nope", SET, "INFO")) != 0
    assert node.levels() == before


def test_the_answers_shape_is_kafkas(node: Node) -> None:
    """Type, source, flags; no synonyms, no documentation; the error for another broker id."""
    (row,) = node.described(keys=["root", "nope"]).configs
    shape = row.read_only, row.config_source, row.is_sensitive, row.synonyms, row.config_type, row.documentation
    assert (row.name, *shape) == ("root", False, 6, False, [], 0, "")
    assert {"root", node.own} <= {row.name for row in node.described().configs}
    assert [node.described(name).error_message for name in ("", "x", "2")] == [
        "Broker id must not be empty",
        "Broker id must be an integer, but it is: x",
        "Unexpected broker id, expected 1 but received 2",
    ]
