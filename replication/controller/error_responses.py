"""NOT_CONTROLLER responses of a controller that is not active.

NOT HERE Which controller is active (`controller.py`). The client looks up the active controller and retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from protocol.errors import ErrorCode
from protocol.messages import admin, cluster, quorum, quotas_scram
from protocol.schema import Message

_CODE: Final = ErrorCode.NOT_CONTROLLER
_RESULT_FIELDS: Final = ("topics", "responses", "results", "entries")
_MESSAGE: Final = "This is not the active controller: retry with the controller that the metadata names."


def not_controller_response(request: Message) -> Message:
    """The NOT_CONTROLLER response to a request."""
    return _RESPONSES[type(request)](request)


def is_not_controller_response(response: Message) -> bool:
    """Whether a response reports NOT_CONTROLLER; some responses have an error code only per result."""
    results = [result for name in _RESULT_FIELDS for result in getattr(response, name, ())]
    return any(getattr(part, "error_code", ErrorCode.NONE) == _CODE for part in (response, *results[:1]))


def _create_topics(request: admin.CreateTopicsRequest) -> Message:
    return admin.CreateTopicsResponse(
        topics=[
            admin.CreatableTopicResult(name=topic.name, error_code=_CODE, error_message=_MESSAGE)
            for topic in request.topics
        ]
    )


def _delete_topics(request: admin.DeleteTopicsRequest) -> Message:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    named += [(name, bytes(16)) for name in request.topic_names]
    return admin.DeleteTopicsResponse(
        responses=[
            admin.DeletableTopicResult(name=name, topic_id=topic_id, error_code=_CODE, error_message=_MESSAGE)
            for name, topic_id in named
        ]
    )


def _create_partitions(request: admin.CreatePartitionsRequest) -> Message:
    return admin.CreatePartitionsResponse(
        results=[
            admin.CreatePartitionsTopicResult(name=topic.name, error_code=_CODE, error_message=_MESSAGE)
            for topic in request.topics
        ]
    )


def _config_results(request: admin.IncrementalAlterConfigsRequest | admin.AlterConfigsRequest) -> list[Any]:
    return [
        admin.AlterConfigsResourceResponse(
            error_code=_CODE,
            error_message=_MESSAGE,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    ]


def _alter_quotas(request: quotas_scram.AlterClientQuotasRequest) -> Message:
    return quotas_scram.AlterClientQuotasResponse(
        entries=[
            quotas_scram.AlteredQuotasResult(error_code=_CODE, error_message=_MESSAGE, entity=entry.entity)
            for entry in request.entries
        ]
    )


def _alter_credentials(request: quotas_scram.AlterUserScramCredentialsRequest) -> Message:
    names = dict.fromkeys([deletion.name for deletion in request.deletions])
    names |= dict.fromkeys([upsertion.name for upsertion in request.upsertions])
    return quotas_scram.AlterUserScramCredentialsResponse(
        results=[quotas_scram.AlteredScramUser(user=name, error_code=_CODE, error_message=_MESSAGE) for name in names]
    )


def _constant(response: Message) -> Callable[[Any], Message]:
    return lambda _: response


_RESPONSES: Final[dict[type[Message], Callable[[Any], Message]]] = {
    admin.CreateTopicsRequest: _create_topics,
    admin.DeleteTopicsRequest: _delete_topics,
    admin.CreatePartitionsRequest: _create_partitions,
    admin.IncrementalAlterConfigsRequest: lambda request: admin.IncrementalAlterConfigsResponse(
        responses=_config_results(request)
    ),
    admin.AlterConfigsRequest: lambda request: admin.AlterConfigsResponse(responses=_config_results(request)),
    quotas_scram.AlterClientQuotasRequest: _alter_quotas,
    quotas_scram.AlterUserScramCredentialsRequest: _alter_credentials,
    cluster.ElectLeadersRequest: _constant(cluster.ElectLeadersResponse(error_code=_CODE, replica_election_results=[])),
    cluster.AlterPartitionReassignmentsRequest: _constant(
        cluster.AlterPartitionReassignmentsResponse(error_code=_CODE, error_message=_MESSAGE, responses=[])
    ),
    cluster.UnregisterBrokerRequest: _constant(
        cluster.UnregisterBrokerResponse(error_code=_CODE, error_message=_MESSAGE)
    ),
    cluster.UpdateFeaturesRequest: _constant(cluster.UpdateFeaturesResponse(error_code=_CODE, error_message=_MESSAGE)),
    quorum.AlterPartitionRequest: _constant(quorum.AlterPartitionResponse(error_code=_CODE)),
    quorum.AllocateProducerIdsRequest: _constant(
        quorum.AllocateProducerIdsResponse(error_code=_CODE, producer_id_start=0, producer_id_len=0)
    ),
    quorum.AssignReplicasToDirsRequest: _constant(quorum.AssignReplicasToDirsResponse(error_code=_CODE)),
    quorum.BrokerRegistrationRequest: _constant(quorum.BrokerRegistrationResponse(error_code=_CODE)),
    quorum.ControllerRegistrationRequest: _constant(
        quorum.ControllerRegistrationResponse(error_code=_CODE, error_message=_MESSAGE)
    ),
    quorum.BrokerHeartbeatRequest: _constant(quorum.BrokerHeartbeatResponse(error_code=_CODE)),
}
