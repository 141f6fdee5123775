"""Limits of connections that a broker finds in the metadata and cannot use (broker/node/dynamic_config_applier.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import IncrementalAlterConfigsRequest
from protocol.messages.metadata import ApiVersionsRequest
from replication.controller.configs.config_changes import AlterConfigOp
from replication.metadata.image import ResourceType
from tests.support.controller_listener import WITH_CONTROLLER, controller_of
from tests.support.messages import message
from tests.support.raw_client import RawClient


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections.per.ip.overrides", "no-host.invalid:5"),
        ("max.connections.per.ip.overrides", "a..b:5"),
        ("max.connections.per.ip", "0"),
        ("listener.name.plaintext.max.connections", "many"),
    ],
)
def test_a_broker_runs_and_starts_with_limits_that_it_cannot_use(name: str, value: str, tmp_path: Path) -> None:
    change = {"name": name, "config_operation": AlterConfigOp.SET, "value": value}
    request = message(
        IncrementalAlterConfigsRequest,
        validate_only=False,
        resources=[{"resource_type": ResourceType.BROKER, "resource_name": "", "configs": [change]}],
    )
    with Broker(tmp_path, settings=WITH_CONTROLLER) as broker:
        with RawClient(controller_of(broker)) as client:
            assert client.ask(request, 1).responses[0].error_code == ErrorCode.NONE
        assert "limits of connections have no effect" in broker.log()
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap) as client:
            assert client.ask(message(ApiVersionsRequest), 0).error_code == ErrorCode.NONE
