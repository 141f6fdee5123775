"""NOT_CONTROLLER responses of a controller that is not active.

NOT HERE Which controller is active (`controller.py`). The client looks up the active controller and retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from protocol.api import APIS
from protocol.errors import ErrorCode
from protocol.messages import admin, quotas_scram
from protocol.schema import Message, blank, fields_of

_ERROR: Final = {
    "error_code": ErrorCode.NOT_CONTROLLER,
    "error_message": "This is not the active controller: retry with the controller that the metadata names.",
}
_RESULT_FIELDS: Final = ("topics", "responses", "results", "entries")


def _resources(request: admin.IncrementalAlterConfigsRequest | admin.AlterConfigsRequest) -> list[dict[str, Any]]:
    return [{"resource_type": one.resource_type, "resource_name": one.resource_name} for one in request.resources]


_RESULTS: Final[dict[type[Message], Callable[[Any], Iterable[Mapping[str, Any]]]]] = {
    admin.CreateTopicsRequest: lambda request: [{"name": topic.name} for topic in request.topics],
    admin.DeleteTopicsRequest: lambda request: [
        *({"name": topic.name, "topic_id": topic.topic_id} for topic in request.topics),
        *({"name": name} for name in request.topic_names),
    ],
    admin.CreatePartitionsRequest: lambda request: [{"name": topic.name} for topic in request.topics],
    admin.IncrementalAlterConfigsRequest: _resources,
    admin.AlterConfigsRequest: _resources,
    quotas_scram.AlterClientQuotasRequest: lambda request: [{"entity": entry.entity} for entry in request.entries],
    quotas_scram.AlterUserScramCredentialsRequest: lambda request: [
        {"user": name} for name in dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
    ],
}
"""The results of responses that report errors per result, without the error."""


def not_controller_response(request: Message) -> Message:
    """The NOT_CONTROLLER response to a request."""
    response = blank(APIS[request.API_KEY].response)
    results_of = _RESULTS.get(type(request))
    for field in fields_of(type(response)):
        if results_of is None and field.name in _ERROR:
            setattr(response, field.name, _ERROR[field.name])
        elif results_of is not None and field.name in _RESULT_FIELDS:
            result: Any = field.wire.element and field.wire.element.message
            setattr(response, field.name, [result(**values, **_ERROR) for values in results_of(request)])
    return response


def is_not_controller_response(response: Message) -> bool:
    """Whether a response reports NOT_CONTROLLER; some responses have an error code only per result."""
    results = [result for name in _RESULT_FIELDS for result in getattr(response, name, ())]
    codes = [getattr(part, "error_code", ErrorCode.NONE) for part in (response, *results[:1])]
    return ErrorCode.NOT_CONTROLLER in codes
