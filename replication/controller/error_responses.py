"""Responses of the controller's APIs that report one error, for the whole request or for each of its results.

NOT HERE Which controller is active (`controller.py`). After NOT_CONTROLLER the client looks up the active controller and
         retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from protocol.api import APIS
from protocol.errors import ErrorCode
from protocol.messages import acls, admin, quotas_scram
from protocol.schema import Message, blank

_NOT_CONTROLLER: Final = "This is not the active controller: retry with the controller that the metadata names."
_RESULT_FIELDS: Final = ("topics", "responses", "results", "entries", "filter_results")


class _Results(NamedTuple):
    """The results of an API: field of the response, class, and what is requested."""

    field: str
    result: type[Message]
    names: Mapping[str, str]
    """The fields that name a result, with those of what is requested."""
    requested: Callable[[Any], Iterable[Any]]


_TOPIC: Final = {"name": "name"}
_RESOURCE: Final = {"resource_type": "resource_type", "resource_name": "resource_name"}
_CONFIGS: Final = _Results(
    "responses", admin.AlterConfigsResourceResponse, _RESOURCE, lambda request: request.resources
)
_RESULTS: Final[dict[type[Message], _Results]] = {
    admin.CreateTopicsRequest: _Results(
        "topics", admin.CreatableTopicResult, _TOPIC, lambda request: request.topics
    ),
    admin.DeleteTopicsRequest: _Results(
        "responses", admin.DeletableTopicResult, {**_TOPIC, "topic_id": "topic_id"}, lambda request: request.topics
    ),
    admin.CreatePartitionsRequest: _Results(
        "results", admin.CreatePartitionsTopicResult, _TOPIC, lambda request: request.topics
    ),
    admin.IncrementalAlterConfigsRequest: _CONFIGS,
    admin.AlterConfigsRequest: _CONFIGS,
    acls.CreateAclsRequest: _Results("results", acls.AclCreationResult, {}, lambda request: request.creations),
    acls.DeleteAclsRequest: _Results(
        "filter_results", acls.DeleteAclsFilterResult, {}, lambda request: request.filters
    ),
    quotas_scram.AlterClientQuotasRequest: _Results(
        "entries", quotas_scram.AlteredQuotasResult, {"entity": "entity"}, lambda request: request.entries
    ),
    quotas_scram.AlterUserScramCredentialsRequest: _Results(
        "results", quotas_scram.AlteredScramUser, {"user": "name"},
        lambda request: {one.name: one for one in (*request.deletions, *request.upsertions)}.values(),
    ),
}  # fmt: skip
"""The APIs that report errors per result only."""


def results_of(request: Message, response: Message) -> list[Any]:
    """The results in the response to a request of an API that has them."""
    found: list[Any] = getattr(response, _RESULTS[type(request)].field)
    return found


def error_results(
    request: Message, requested: Iterable[Any], code: ErrorCode, message: str | None = None
) -> list[Message]:
    """The results of some topics, resources or entries of a request, with this error."""
    _, result, names, _ = _RESULTS[type(request)]
    return [
        result(error_code=code, error_message=message, **{name: getattr(one, key) for name, key in names.items()})
        for one in requested
    ]


def error_response(request: Message, code: ErrorCode, message: str | None = None) -> Message:
    """The response with this error: in each result, or if the API has an error for the whole request only there."""
    response = blank(APIS[request.API_KEY].response)
    results = _RESULTS.get(type(request))
    if results is not None:
        setattr(response, results.field, error_results(request, results.requested(request), code, message))
    else:
        for name, value in (("error_code", code), ("error_message", message)):
            if value is not None and hasattr(response, name):
                setattr(response, name, value)
    return response


def not_controller_response(request: Message) -> Message:
    """The NOT_CONTROLLER response to a request."""
    return error_response(request, ErrorCode.NOT_CONTROLLER, _NOT_CONTROLLER)


def is_not_controller_response(response: Message) -> bool:
    """Whether a response reports NOT_CONTROLLER; some responses have an error code only per result."""
    results = [result for name in _RESULT_FIELDS for result in getattr(response, name, ())]
    codes = [getattr(part, "error_code", ErrorCode.NONE) for part in (response, *results[:1])]
    return ErrorCode.NOT_CONTROLLER in codes
