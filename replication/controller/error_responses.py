"""What a controller answers that is not the active one, or is no longer: NOT_CONTROLLER, wherever an answer has room for it.

NOT HERE Who is active (`controller.py`). Who asked looks for the active one again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from protocol.errors import ErrorCode
from protocol.messages import admin, cluster, quorum, quotas_scram
from protocol.schema import Message

_CODE: Final = ErrorCode.NOT_CONTROLLER
_ROWS: Final = ("topics", "responses", "results", "entries")
_SENTENCE: Final = "This is not the active controller: ask the one that the metadata name."


def not_controller(request: Message) -> Message:
    """The answer to a request."""
    return _ANSWERS[type(request)](request)


def is_not_controller(answer: Message) -> bool:
    """Whether an answer says that; some have a code only for each of what they were asked for."""
    rows = [row for name in _ROWS for row in getattr(answer, name, ())]
    return any(getattr(one, "error_code", ErrorCode.NONE) == _CODE for one in (answer, *rows[:1]))


def _topics_created(request: admin.CreateTopicsRequest) -> Message:
    return admin.CreateTopicsResponse(
        topics=[
            admin.CreatableTopicResult(name=topic.name, error_code=_CODE, error_message=_SENTENCE)
            for topic in request.topics
        ]
    )


def _topics_deleted(request: admin.DeleteTopicsRequest) -> Message:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    named += [(name, bytes(16)) for name in request.topic_names]
    return admin.DeleteTopicsResponse(
        responses=[
            admin.DeletableTopicResult(name=name, topic_id=topic_id, error_code=_CODE, error_message=_SENTENCE)
            for name, topic_id in named
        ]
    )


def _partitions_created(request: admin.CreatePartitionsRequest) -> Message:
    return admin.CreatePartitionsResponse(
        results=[
            admin.CreatePartitionsTopicResult(name=topic.name, error_code=_CODE, error_message=_SENTENCE)
            for topic in request.topics
        ]
    )


def _settings_refused(request: admin.IncrementalAlterConfigsRequest | admin.AlterConfigsRequest) -> list[Any]:
    return [
        admin.AlterConfigsResourceResponse(
            error_code=_CODE,
            error_message=_SENTENCE,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    ]


def _quotas_altered(request: quotas_scram.AlterClientQuotasRequest) -> Message:
    return quotas_scram.AlterClientQuotasResponse(
        entries=[
            quotas_scram.AlteredQuotasResult(error_code=_CODE, error_message=_SENTENCE, entity=entry.entity)
            for entry in request.entries
        ]
    )


def _credentials_altered(request: quotas_scram.AlterUserScramCredentialsRequest) -> Message:
    names = dict.fromkeys([deletion.name for deletion in request.deletions])
    names |= dict.fromkeys([upsertion.name for upsertion in request.upsertions])
    return quotas_scram.AlterUserScramCredentialsResponse(
        results=[quotas_scram.AlteredScramUser(user=name, error_code=_CODE, error_message=_SENTENCE) for name in names]
    )


def _always(answer: Message) -> Callable[[Any], Message]:
    return lambda _: answer


_ANSWERS: Final[dict[type[Message], Callable[[Any], Message]]] = {
    admin.CreateTopicsRequest: _topics_created,
    admin.DeleteTopicsRequest: _topics_deleted,
    admin.CreatePartitionsRequest: _partitions_created,
    admin.IncrementalAlterConfigsRequest: lambda request: admin.IncrementalAlterConfigsResponse(
        responses=_settings_refused(request)
    ),
    admin.AlterConfigsRequest: lambda request: admin.AlterConfigsResponse(responses=_settings_refused(request)),
    quotas_scram.AlterClientQuotasRequest: _quotas_altered,
    quotas_scram.AlterUserScramCredentialsRequest: _credentials_altered,
    cluster.ElectLeadersRequest: _always(cluster.ElectLeadersResponse(error_code=_CODE, replica_election_results=[])),
    cluster.AlterPartitionReassignmentsRequest: _always(
        cluster.AlterPartitionReassignmentsResponse(error_code=_CODE, error_message=_SENTENCE, responses=[])
    ),
    cluster.UnregisterBrokerRequest: _always(
        cluster.UnregisterBrokerResponse(error_code=_CODE, error_message=_SENTENCE)
    ),
    cluster.UpdateFeaturesRequest: _always(cluster.UpdateFeaturesResponse(error_code=_CODE, error_message=_SENTENCE)),
    quorum.AlterPartitionRequest: _always(quorum.AlterPartitionResponse(error_code=_CODE)),
    quorum.AllocateProducerIdsRequest: _always(
        quorum.AllocateProducerIdsResponse(error_code=_CODE, producer_id_start=0, producer_id_len=0)
    ),
    quorum.AssignReplicasToDirsRequest: _always(quorum.AssignReplicasToDirsResponse(error_code=_CODE)),
    quorum.BrokerRegistrationRequest: _always(quorum.BrokerRegistrationResponse(error_code=_CODE)),
    quorum.ControllerRegistrationRequest: _always(
        quorum.ControllerRegistrationResponse(error_code=_CODE, error_message=_SENTENCE)
    ),
    quorum.BrokerHeartbeatRequest: _always(quorum.BrokerHeartbeatResponse(error_code=_CODE)),
}
