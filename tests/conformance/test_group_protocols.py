"""`group.coordinator.rebalance.protocols` disables consumer groups, on this broker and on Apache Kafka alike."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from protocol.schema import blank
from tests.conformance.brokers import running
from tests.support.follower_harness import BOTH
from tests.support.raw_client import RawClient


@pytest.mark.parametrize("kind", BOTH)
def test_consumer_groups_are_unsupported_without_their_protocol(kind: str) -> None:
    settings = {"group.coordinator.rebalance.protocols": "classic"}
    with running(kind, settings) as broker, RawClient(broker.bootstrap) as client:
        beat = client.ask(blank(ConsumerGroupHeartbeatRequest, group_id="g"), 0)
        (described,) = client.ask(blank(ConsumerGroupDescribeRequest, group_ids=["g"]), 0).groups
    assert (beat.error_code, beat.error_message) == (ErrorCode.UNSUPPORTED_VERSION, None)
    assert described.error_code == ErrorCode.UNSUPPORTED_VERSION
