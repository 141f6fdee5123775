"""An operator unregisters a broker that runs: it registers again, and goes on."""

from __future__ import annotations

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.cluster import UnregisterBrokerRequest
from protocol.messages.metadata import MetadataRequest
from tests.conformance.brokers import append
from tests.support.batches import batch
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.waiting import until


def test_the_only_broker_is_unregistered() -> None:
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        create(client, "t", partitions=1)
        assert append(client, "t", bytes(batch(0))).error_code == ErrorCode.NONE
        for _ in range(2):
            answer = client.ask(UnregisterBrokerRequest(broker_id=1), 0)
            assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
            until(
                lambda: client.ask(MetadataRequest(topics=None), 9).topics[0].partitions[0].leader_id == 1, "a leader"
            )
        assert append(client, "t", bytes(batch(0))).base_offset == 3
