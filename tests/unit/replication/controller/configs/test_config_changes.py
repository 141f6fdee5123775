"""Tests of config_changes.py that the cases compared with Apache Kafka (`tests/support/config_cases.py`) do not cover."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages.admin import AlterConfigsResource, IncrementalAlterConfigsRequest
from tests.support.config_cases import BROKER, DELETE_SETTING, GROUP, SET, resource
from tests.support.controller_harness import ControllerHarness


@pytest.mark.parametrize(("operation", "value"), [(SET, "5"), (DELETE_SETTING, None)])
def test_a_controller_refuses_configs_of_a_node_that_is_not_registered(
    operation: int, value: str | None, tmp_path: Path
) -> None:
    """Captured from Apache Kafka 4.3.1: kafka-configs with --bootstrap-controller."""
    harness = ControllerHarness(tmp_path).start()
    wanted: list[AlterConfigsResource] = [
        resource(BROKER, node, ("log.retention.ms", operation, value)) for node in ("1", "9")
    ]
    known, unknown = harness.ask(IncrementalAlterConfigsRequest(resources=wanted)).responses
    assert known.error_code == ErrorCode.NONE
    assert (unknown.error_code, unknown.error_message) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "No node with id 9 found.",
    )
    assert (BROKER, "9") not in harness.image.configs


@pytest.mark.parametrize(
    ("name", "value", "of_group", "of_group_value"),
    [
        ("group.consumer.session.timeout.ms", "long", "consumer.heartbeat.interval.ms", "6000"),
        ("group.consumer.max.session.timeout.ms", "50000", "consumer.session.timeout.ms", "60000"),
    ],
)
def test_configs_of_groups_are_not_checked_against_settings_that_brokers_ignore(
    name: str, value: str, of_group: str, of_group_value: str, tmp_path: Path
) -> None:
    """Neither is dynamic, but a controller stores them; Apache Kafka 4.3.1 accepts the change of the group."""
    harness = ControllerHarness(tmp_path).start()
    for wanted in (
        resource(BROKER, "", (name, SET, value)),
        resource(GROUP, "g", (of_group, SET, of_group_value)),
    ):
        (response,) = harness.ask(IncrementalAlterConfigsRequest(resources=[wanted])).responses
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
