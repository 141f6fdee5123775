"""Envelopes around clients' requests that this broker forwards to the active controller on another node (KIP-590).

FORMAT   as in `broker/handlers/quorum/envelopes.py`
RULES    1. The controller authorizes this broker for the envelope (ClusterAction), and the client, at its own address, for the
            request.
         2. NOT_CONTROLLER is the answer of a node that is not the active controller. Every other error of an envelope is an
            UNKNOWN_SERVER_ERROR for the client.
         3. The request has its newest version, except if that has another answer than the client's: THROTTLING_QUOTA_EXCEEDED
            where the controller would let an older client wait, or no results of the features (UpdateFeatures, version 2).
            Then it has the newest version with the client's answer.
NOT HERE Which requests are forwarded (`broker/handlers/`), which node gets them (`controller_channel.py`).
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import Final

from protocol.api import APIS, ApiKey, request_header_version, response_header_version
from protocol.codec import decode, decoder, encode
from protocol.errors import ErrorCode
from protocol.messages.admin import DeleteTopicsRequest
from protocol.messages.cluster import UpdateFeaturesRequest
from protocol.messages.forwarding import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from protocol.messages.headers import RequestHeader, ResponseHeader
from protocol.schema import Message
from replication.controller.controller_client import Client
from replication.controller.error_responses import error_response, not_controller_response
from replication.controller.mutation_quotas import STRICT_SINCE

_log = logging.getLogger("barnabas.peers")

_PRINCIPAL_VERSION: Final = b"\0\0"
_FIRST_DELETION_WITH_IDS: Final = 6
_OTHER_ANSWER_SINCE: Final[Mapping[type[Message], int]] = {**STRICT_SINCE, UpdateFeaturesRequest: 2}
"""The first versions whose answer older clients do not understand (rule 3)."""


def envelope(request: Message, client: Client) -> EnvelopeRequest:
    """The envelope of a client's request."""
    cls, version = type(request), _version(request, client)
    header = RequestHeader(
        request_api_key=cls.API_KEY, request_api_version=version, correlation_id=0, client_id=client.client_id
    )
    if isinstance(request, DeleteTopicsRequest) and version < _FIRST_DELETION_WITH_IDS:
        names = [topic.name for topic in request.topics if topic.name is not None]
        request = DeleteTopicsRequest(topic_names=names, timeout_ms=request.timeout_ms)
    kind, _, name = client.principal.partition(":")
    principal = DefaultPrincipalData(type=kind, name=name, token_authenticated=client.is_token_authenticated)
    header_version = request_header_version(cls.API_KEY, version)
    return EnvelopeRequest(
        request_data=encode(header, header_version) + encode(request, version),
        request_principal=_PRINCIPAL_VERSION + encode(principal, 0),
        client_host_address=ipaddress.ip_address(client.host.partition("%")[0]).packed,
    )


def _version(request: Message, client: Client) -> int:
    """The version of the request in the envelope (rule 3)."""
    since = _OTHER_ANSWER_SINCE.get(type(request))
    if since is None or client.api_version is None or client.api_version >= since:
        return type(request).MAX_VERSION
    return since - 1


def response_in(request: Message, client: Client, answer: Message | None) -> Message | None:
    """The response to a request whose envelope was answered; None if no answer arrived."""
    if answer is None:
        return None
    assert isinstance(answer, EnvelopeResponse)
    if answer.error_code == ErrorCode.NOT_CONTROLLER:
        return not_controller_response(request)
    key, version = type(request).API_KEY, _version(request, client)
    if answer.error_code or answer.response_data is None:
        code = ErrorCode(answer.error_code).name
        _log.warning("the controller rejected the envelope of a %s request: %s", ApiKey(key).name, code)
        return error_response(request, ErrorCode.UNKNOWN_SERVER_ERROR)
    data = bytes(answer.response_data)
    _, position = decoder(ResponseHeader, response_header_version(key, version))(data, 0)
    return decode(APIS[key].response, version, data, position)
