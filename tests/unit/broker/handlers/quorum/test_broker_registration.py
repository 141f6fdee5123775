"""What a controller logs about the registration of a broker (broker/handlers/quorum/controller_apis.py)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from broker.handlers.quorum.controller_apis import ControllerHandlers
from broker.security.authorizer import AllowAll
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.quorum import BrokerRegistrationRequest, BrokerRegistrationResponse
from replication.completion import Completion, completed
from tests.support.replica_harness import ReplicaHarness


class FakeController:
    def __init__(self, error: ErrorCode) -> None:
        self.error = error

    def submit(self, _request: Any) -> Completion[Any]:
        return completed(BrokerRegistrationResponse(error_code=self.error, broker_epoch=-1))


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ErrorCode.NOT_CONTROLLER, []),
        (
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            ["registration of broker 1 at 127.0.0.1 was rejected: DUPLICATE_BROKER_REGISTRATION"],
        ),
    ],
)
def test_only_the_active_controller_logs_that_it_rejects_a_broker(
    error: ErrorCode, lines: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While a cluster starts, brokers ask controllers that are not elected yet: no operator must act."""
    caplog.set_level(logging.INFO, "barnabas.controller")
    controller: Any = FakeController(error)
    request = BrokerRegistrationRequest(
        broker_id=1, cluster_id="c", incarnation_id=bytes(16), listeners=[], features=[], rack=None
    )
    context = ReplicaHarness(tmp_path).context(ApiKey.BROKER_REGISTRATION, 4)
    response: Any = ControllerHandlers(controller, AllowAll()).register(context, request)
    assert (response.result().error_code, caplog.messages) == (error, lines)
