"""Faults of handlers, as the client sees them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from broker.handlers.request_dispatcher import Dispatcher
from broker.handlers.router import RequestContext, Route, Router
from broker.network.exchange import CloseConnection, ConnectionInfo
from broker.security.authorizer import NotLoaded
from protocol.api import APIS, ApiKey, request_header_version, response_header_version
from protocol.codec import decode, encode
from protocol.codegen import MAX_REQUEST_ELEMENTS
from protocol.errors import ErrorCode, MalformedRequest
from protocol.frame_codecs.offset_commit_codec import decode_request as decode_offset_commit
from protocol.frame_codecs.produce_codec import ProduceTopicsLayout
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetsTopic,
)
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.produce_fetch import (
    FetchRequest,
    FetchResponse,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from protocol.schema import Message, blank, fields_of
from replication.completion import Completion, completed, failed

CONNECTION = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")


def faulty(context: RequestContext, request: Message) -> Message:
    """A handler with a bug."""
    raise ZeroDivisionError


def frame_of(request: Message, version: int) -> bytearray:
    """A request frame without its length."""
    key = request.API_KEY
    header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="c")
    return bytearray(encode(header, request_header_version(key, version)) + encode(request, version))


def answer_of(request: Message, version: int) -> bytes:
    """The response to a request whose handler fails, without length and header."""
    dispatcher = Dispatcher()
    key = request.API_KEY
    dispatcher.serve(Router([Route(key, version, version, faulty)]))
    parts = dispatcher.dispatch(frame_of(request, version), CONNECTION, 0)
    assert isinstance(parts, list)
    return b"".join(parts)[8 + response_header_version(key, version) :]  # type: ignore[arg-type]


def test_a_fault_returns_unknown_server_error() -> None:
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    answer = decode(HeartbeatResponse, 4, answer_of(beat, 4))
    assert answer == HeartbeatResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    answers = decode(MetadataResponse, 13, answer_of(MetadataRequest(topics=None), 13))
    assert answers.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_acls_that_are_not_loaded_cost_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def ask_early(context: RequestContext, request: Message) -> Message:
        raise NotLoaded

    dispatcher = Dispatcher()
    dispatcher.serve(Router([Route(ApiKey.METADATA, 13, 13, ask_early)]))
    assert isinstance(dispatcher.dispatch(frame_of(MetadataRequest(topics=None), 13), CONNECTION, 0), list)
    (record,) = caplog.records
    assert record.getMessage() == "METADATA of User:ANONYMOUS cannot be answered yet: ACLs are not loaded"
    assert record.exc_info is None


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(("version", "is_told"), [(13, True), (12, False)])
@pytest.mark.parametrize("fault", ["unencodable", "error"])
def test_a_response_that_cannot_be_encoded_or_failed_is_a_fault(
    caplog: pytest.LogCaptureFixture, *, is_late: bool, version: int, is_told: bool, fault: str
) -> None:
    completion: Completion[Message] = Completion()
    dispatcher = Dispatcher()
    dispatcher.serve(Router([Route(ApiKey.METADATA, version, version, lambda _, __: completion)]))
    wrong = MetadataResponse(brokers=[], topics=[])
    wrong.topics = 7  # type: ignore[assignment]
    finish = partial(completion.complete, wrong) if fault == "unencodable" else partial(completion.fail, ValueError())
    if not is_late:
        finish()
    response: Any
    try:
        response = dispatcher.dispatch(frame_of(MetadataRequest(topics=None), version), CONNECTION, 0)
    except CloseConnection as error:
        response = failed(error)
    if isinstance(response, list):
        response = completed(response)
    assert response.is_done is not is_late
    finish()
    assert [record.getMessage() for record in caplog.records] == [f"handler of METADATA version {version} failed"]
    if is_told:
        assert isinstance(response.result(), list)
    else:
        assert isinstance(response.error, CloseConnection)


def test_a_handler_may_close_the_connection_later(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher, completion = Dispatcher(), Completion[Message]()
    dispatcher.serve(Router([Route(ApiKey.METADATA, 13, 13, lambda _, __: completion)]))
    response: Any = dispatcher.dispatch(frame_of(MetadataRequest(topics=None), 13), CONNECTION, 0)
    completion.fail(CloseConnection("on purpose"))
    assert (str(response.error), caplog.records) == ("on purpose", [])


@pytest.mark.parametrize("is_late", [False, True])
def test_the_errors_of_a_followers_fetch_are_counted_as_a_followers(is_late: bool) -> None:
    later: Completion[Message] = Completion()
    response = blank(FetchResponse, error_code=ErrorCode.FENCED_LEADER_EPOCH)

    def fetch(context: RequestContext, _: Message) -> Message | Completion[Message]:
        context.connection.metrics = context.metrics.of_follower()
        return later if is_late else response

    dispatcher = Dispatcher()
    dispatcher.serve(Router([Route(ApiKey.FETCH, 12, 12, fetch)]))
    dispatcher.dispatch(frame_of(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), 12), CONNECTION, 0)
    later.complete(response)
    metrics = dispatcher.metrics.apis[ApiKey.FETCH, 12]
    assert metrics.follower is not None
    assert (metrics.failed, metrics.follower.failed) == (0, 1)
    assert metrics.follower.errors == {ErrorCode.FENCED_LEADER_EPOCH: 1}


def test_requests_of_a_pipelined_route_overlap() -> None:
    dispatcher = Dispatcher()
    routes = [Route(ApiKey.HEARTBEAT, 4, 4, faulty), Route(ApiKey.METADATA, 13, 13, faulty, can_pipeline=True)]
    dispatcher.serve(Router(routes))
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert not dispatcher.can_pipeline(frame_of(beat, 4))
    assert dispatcher.can_pipeline(frame_of(MetadataRequest(topics=None), 13))
    assert not dispatcher.can_pipeline(bytearray(b"\0\0"))


def test_a_fetch_waits_for_other_clients() -> None:
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    fetch = FetchRequest(max_wait_ms=1, min_bytes=1, topics=[])
    assert [Dispatcher().waits_for_clients(frame_of(*each)) for each in ((fetch, 12), (beat, 4))] == [True, False]


@pytest.mark.parametrize(
    ("request_", "version"),
    [(MetadataRequest(topics=None), 12), (FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), 6)],
)
def test_a_fault_without_an_error_field_closes_the_connection(request_: Message, version: int) -> None:
    assert "error_code" in {field.name for field in fields_of(APIS[ApiKey(request_.API_KEY)].response)}
    with pytest.raises(CloseConnection, match=r"handler of .* failed"):
        answer_of(request_, version)


def test_a_request_with_very_many_elements_closes_the_connection() -> None:
    """Also one whose usual form a fast path decodes."""
    dispatcher = Dispatcher()
    dispatcher.serve(Router([Route(ApiKey.METADATA, 12, 12, faulty)]))
    frame = frame_of(MetadataRequest(topics=[MetadataRequestTopic(name="t")] * (MAX_REQUEST_ELEMENTS + 1)), 12)
    with pytest.raises(MalformedRequest, match="more than 250000 elements"):
        dispatcher.dispatch(frame, CONNECTION, 0)


@pytest.mark.parametrize("count", [1, MAX_REQUEST_ELEMENTS])
def test_fast_paths_leave_very_many_elements_to_the_general_codec(count: int) -> None:
    data = [PartitionProduceData(index=index, records=b"") for index in range(count)]
    produce = ProduceRequest(acks=1, timeout_ms=0, topic_data=[TopicProduceData(name="t", partition_data=data)])
    rows = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=None)
        for index in range(count)
    ]
    topic = OffsetsTopic(name="t", partitions=rows)
    commit = OffsetCommitRequest(group_id="g", member_id="", topics=[topic])
    is_usual = count < MAX_REQUEST_ELEMENTS
    assert (ProduceTopicsLayout(9).decode_request(bytearray(encode(produce, 9)), 0) is not None) is is_usual
    assert (decode_offset_commit(bytearray(encode(commit, 9)), 0, 9) is not None) is is_usual
