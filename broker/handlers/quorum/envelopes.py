"""Envelope: a client's request that a broker forwards to the active controller.

FORMAT   request_data is the client's request, header and message without the length; response_data is its response in the same
         form. request_principal is an i16 version (0) and `DefaultPrincipalData`
RULES    1. Requires CLUSTER_ACTION; the principal in the envelope is trusted.
         2. Errors of the envelope are about the envelope; the request's errors are in its own response. Only NOT_CONTROLLER
            is returned as the envelope's error, so that the broker looks for the active controller.
         3. The requests that Apache Kafka forwards and this listener supports are supported, no others.
NOT HERE Envelopes that this broker sends (`broker/peers/forwarding.py`).
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.network.exchange import ConnectionInfo
from broker.security.authorizer import Authorizer, Operation
from protocol.api import APIS, ApiKey, request_header_version, response_header_version
from protocol.codec import decode, decoder, encode
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.framing import RequestHeader as Header
from protocol.framing import parse_request_header
from protocol.messages.cluster import DescribeQuorumResponse
from protocol.messages.forwarding import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from protocol.messages.headers import RequestHeader, ResponseHeader
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.error_responses import is_not_controller_response

_log = logging.getLogger("barnabas.dispatch")

FORWARDED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM, ApiKey.UPDATE_FEATURES, ApiKey.UNREGISTER_BROKER, ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS,
        ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN,
    }
)  # fmt: skip
_PRINCIPAL_VERSION: Final = b"\0\0"


class EnvelopeHandler(AuthorizingHandlers):
    """Unwraps envelopes and handles the requests in them."""

    def __init__(self, served: Iterable[Route], authorizer: Authorizer) -> None:
        """`served`: the routes of this listener."""
        self._routes = {route.api_key: route for route in served if route.api_key in FORWARDED}
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [Route(ApiKey.ENVELOPE, 0, 0, self.handle)]

    def handle(
        self, context: RequestContext, envelope: EnvelopeRequest
    ) -> EnvelopeResponse | Completion[EnvelopeResponse]:
        """Handle the request in an envelope."""
        if not self._is_authorized(context, Operation.CLUSTER_ACTION):
            return EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        try:
            route, inner, request = self._open(context, envelope)
        except KafkaError as error:
            _log.info("rejected an envelope from %s: %s", context.connection.peer_host, error.message)
            return EnvelopeResponse(error_code=error.code)
        answer = route.handler(inner, request)
        if isinstance(answer, Completion):
            return answer.map(partial(_wrap, inner))
        return _wrap(inner, answer)

    def _open(self, context: RequestContext, envelope: EnvelopeRequest) -> tuple[Route, RequestContext, Message]:
        """Route, context and request in an envelope.

        Raises:
            KafkaError: the envelope contains no valid request.
        """
        principal, host = _principal(envelope.request_principal), _host(envelope.client_host_address)
        data = bytearray(envelope.request_data)
        header, position = _header(data)
        key, version = header.api_key, header.api_version
        route = self._routes.get(key)
        if route is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"API {key} is not enabled or is not eligible for forwarding")
        if not route.min_version <= version <= route.max_version:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"version {version} of API {key} is not served")
        try:
            request = decode(APIS[key].request, version, data, position)
        except MalformedRequest as error:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Failed to parse forwarded request: {error}") from error
        outer = context.connection
        local, peer = (outer.local_host, outer.local_port), (host, outer.peer_port)
        client = ConnectionInfo(
            outer.connection_id, outer.listener_name, local, peer, f"{principal.type}:{principal.name}"
        )
        client.is_token_authenticated = principal.token_authenticated
        header_fields = header.correlation_id, header.client_id
        return route, RequestContext(key, version, *header_fields, client, context.mono_ms, context.wall_ms), request


def _principal(data: bytes | None) -> DefaultPrincipalData:
    """The client's principal."""
    code, sentence = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, "Failed to deserialize client principal from envelope"
    if data is None or data[:2] != _PRINCIPAL_VERSION:
        raise KafkaError(code, sentence)
    try:
        return decode(DefaultPrincipalData, 0, data, len(_PRINCIPAL_VERSION))
    except MalformedRequest as error:
        raise KafkaError(code, f"{sentence}: {error}") from error


def _host(address: bytes) -> str:
    """The client's address."""
    try:
        return str(ipaddress.ip_address(bytes(address)))
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Failed to parse client address from envelope") from error


def _header(data: bytearray) -> tuple[Header, int]:
    """The request header, and the position of the message."""
    try:
        header = parse_request_header(data)
        if request_header_version(header.api_key, header.api_version) < 2:
            return header, header.end
        return header, decoder(RequestHeader, 2)(data, 0)[1]
    except MalformedRequest as error:
        sentence = f"Failed to parse request header from envelope: {error}"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, sentence) from error


def _wrap(context: RequestContext, answer: Message | None) -> EnvelopeResponse:
    """The envelope's response: the request's response with its header, or NOT_CONTROLLER (rule 2)."""
    assert answer is not None, "whatever is forwarded is answered"
    if is_not_controller_response(answer) or _is_not_leader(answer):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    key, version = context.api_key, context.api_version
    header = encode(ResponseHeader(correlation_id=context.correlation_id), response_header_version(key, version))
    try:
        return EnvelopeResponse(response_data=header + encode(answer, version), error_code=ErrorCode.NONE)
    except Exception:  # noqa: BLE001  # as in request_dispatcher.py, rule 3
        _log.exception("handler of %s version %d in an envelope failed", ApiKey(key).name, version)
        return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


def _is_not_leader(answer: Message) -> bool:
    """Whether a DescribeQuorum response says that this controller is not the leader."""
    if not isinstance(answer, DescribeQuorumResponse):
        return False
    codes = {partition.error_code for topic in answer.topics for partition in topic.partitions}
    return ErrorCode.NOT_LEADER_OR_FOLLOWER in codes | {answer.error_code}
