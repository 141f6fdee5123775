"""FindCoordinator, and the creation of internal topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.runtime.java_compat import abs_hash
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC
from broker.handlers.groups.find_coordinator import GROUP, TRANSACTION, FindCoordinatorHandler
from broker.handlers.router import RequestContext
from broker.peers.endpoints import AdvertisedEndpoints
from broker.security.authorizer import AllowAll
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.metadata import FindCoordinatorRequest
from replication.completion import Completion, completed
from replication.metadata.image import PartitionState
from tests.support.group_harness import NODE, LocalGroupHarness

TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}


def harness() -> LocalGroupHarness:
    made = LocalGroupHarness()
    made.create_topic(OFFSETS_TOPIC, 5)
    return made


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_the_leader_of_the_partition(version: int) -> None:
    made = harness()
    request = FindCoordinatorRequest(coordinator_keys=["g", ""]) if version >= 4 else FindCoordinatorRequest(key="g")
    answer = made.ask(request, version)
    if version < 4:
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, NODE, "127.0.0.1", 9092)
        assert answer.error_message == ("NONE" if version else None)
    else:
        assert [(one.key, one.node_id, one.error_code) for one in answer.coordinators] == [
            ("g", NODE, 0),
            ("", NODE, 0),
        ]


def test_a_partition_without_a_leader_has_no_coordinator() -> None:
    made = harness()
    index = abs_hash("g") % 5
    partitions = made.holder.image.topics_by_name[OFFSETS_TOPIC].partitions
    partitions[index] = PartitionState((NODE,), (NODE,), -1, 1, 1)
    (one,) = made.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators
    assert (one.error_code, one.node_id, one.port) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)


@pytest.mark.parametrize("key_type", [2, 5])
def test_unknown_coordinator_types_are_invalid(key_type: int) -> None:
    made = harness()
    answer = made.ask(FindCoordinatorRequest(coordinator_keys=["g"], key_type=key_type), 6)
    assert answer.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
    assert made.ask(FindCoordinatorRequest(key="g", key_type=key_type), 3).error_code == ErrorCode.INVALID_REQUEST


def asking(
    made: LocalGroupHarness,
    create: Callable[[CreateTopicsRequest], Completion[CreateTopicsResponse]],
    kind: int = GROUP,
) -> tuple[FindCoordinatorHandler, RequestContext]:
    topic = CreatableTopic(name=TOPICS[kind], num_partitions=5, replication_factor=3)
    vars(made)["submit"] = create
    handler = FindCoordinatorHandler(made, AdvertisedEndpoints(NODE, frozenset()), AllowAll(), {kind: topic})
    return handler, RequestContext(10, 4, 1, "x", made.connection, 0, 0)


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
def test_the_first_find_coordinator_creates_the_topic_and_waits(kind: int) -> None:
    made = LocalGroupHarness()
    created: Completion[CreateTopicsResponse] = Completion()
    requests: list[CreateTopicsRequest] = []

    def create(request: CreateTopicsRequest) -> Completion[CreateTopicsResponse]:
        requests.append(request)
        return created

    handler, context = asking(made, create, kind)
    first = handler.handle(context, FindCoordinatorRequest(key_type=kind, coordinator_keys=["a"]))
    second = handler.handle(context, FindCoordinatorRequest(key_type=kind, coordinator_keys=["b"]))
    assert len(requests) == 1
    assert requests[0].topics[0].replication_factor == 3
    made.create_topic(TOPICS[kind], 5)
    result = CreatableTopicResult(name=TOPICS[kind], error_code=0, error_message=None)
    created.complete(CreateTopicsResponse(topics=[result]))
    for waiting in (first, second):
        assert isinstance(waiting, Completion)
        assert waiting.result().coordinators[0].node_id == NODE


def test_a_topic_creation_error_is_returned() -> None:
    made = LocalGroupHarness()
    sentence = "Unable to replicate the partition 3 time(s): only 1 broker(s) are registered."
    tries = []

    def create(_request: CreateTopicsRequest) -> Completion[CreateTopicsResponse]:
        tries.append(1)
        error = ErrorCode.INVALID_REPLICATION_FACTOR
        result = CreatableTopicResult(name=OFFSETS_TOPIC, error_code=error, error_message=sentence)
        return completed(CreateTopicsResponse(topics=[result]))

    handler, context = asking(made, create)
    for _ in range(2):
        pending = handler.handle(context, FindCoordinatorRequest(coordinator_keys=["a"]))
        assert isinstance(pending, Completion)
        (one,) = pending.result().coordinators
        assert one.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert sentence in (one.error_message or "")
    assert len(tries) == 2


@pytest.mark.parametrize(("kind", "settings"), [(GROUP, "offsets.topic.*"), (TRANSACTION, "transaction.state.log.*")])
def test_the_log_names_the_settings_of_a_topic_that_cannot_be_created(
    caplog: pytest.LogCaptureFixture, kind: int, settings: str
) -> None:
    """Any of them may be wrong: segment.bytes too. The line is written once a minute."""
    made = LocalGroupHarness()
    reason = "Invalid value 1500 for configuration segment.bytes: Value must be at least 1048576"

    def create(_request: CreateTopicsRequest) -> Completion[CreateTopicsResponse]:
        result = CreatableTopicResult(name=TOPICS[kind], error_code=ErrorCode.INVALID_CONFIG, error_message=reason)
        return completed(CreateTopicsResponse(topics=[result]))

    handler, context = asking(made, create, kind)
    line = f"{TOPICS[kind]} cannot be created: {reason} (see the settings {settings})"
    for at_ms, lines in ((0, 1), (100, 1), (59_999, 1), (60_000, 2)):  # clients ask again and again
        handler.handle(context._replace(mono_ms=at_ms), FindCoordinatorRequest(key_type=kind, coordinator_keys=["a"]))
        assert caplog.messages == [line] * lines
