"""Names that are as long as a string can be, or longer when their invalid bytes are replaced; the node continues to run."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from barnabas import Broker
from protocol.api import request_header_version
from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest
from protocol.messages.groups import JoinGroupRequest, ListGroupsRequest
from protocol.messages.metadata import FindCoordinatorRequest
from protocol.messages.transactions import InitProducerIdRequest
from protocol.schema import Message
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

GROUP, TRANSACTION = 0, 1
NAME = "n" * 32_000
JOIN = message(
    JoinGroupRequest, group_id=NAME, session_timeout_ms=6000, rebalance_timeout_ms=1, member_id="",
    protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
)  # fmt: skip
REQUESTS: dict[str, tuple[Message, int]] = {
    "a new member": (JOIN, 3),
    "a new member id": (JOIN, 9),
    "a transactional producer": (InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=1000), 4),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        with RawClient(broker.bootstrap) as client:
            for kind in (GROUP, TRANSACTION):
                request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"])
                until(lambda: not client.ask(request, 4).coordinators[0].error_code, "there is a coordinator")  # noqa: B023
        yield broker


@pytest.mark.parametrize("name", REQUESTS)
def test_a_name_that_cannot_be_stored_closes_only_its_connection(broker: Broker, name: str) -> None:
    request, version = REQUESTS[name]
    with RawClient(broker.bootstrap) as peer:
        header = struct.pack(">hhih", request.API_KEY, version, 1, 0)
        if request_header_version(request.API_KEY, version) > 1:
            header += b"\0"
        peer.send_frame(header + encode(request, version).replace(NAME.encode(), b"\xff" * len(NAME)))
        with pytest.raises(EOFError):
            peer.receive_frame()
    with RawClient(broker.bootstrap) as client:
        answer = client.ask(ListGroupsRequest(), 4)
    assert (answer.error_code, answer.groups) == (ErrorCode.NONE, [])
    assert "Traceback" not in broker.log()


def test_the_longest_name_is_refused_with_an_error(broker: Broker) -> None:
    """Its message would contain the name, and is cut off. Apache Kafka does not answer."""
    topic = CreatableTopic(name="t" * 32_767, num_partitions=1, replication_factor=1)
    with RawClient(broker.bootstrap) as client:
        (result,) = client.ask(CreateTopicsRequest(topics=[topic]), 7).topics
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.error_message.startswith("Topic name is invalid: the length of 'ttt")
    assert "Traceback" not in broker.log()
