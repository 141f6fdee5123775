"""CreateAcls and DeleteAcls: the records of access control entries (Kafka: AclControlManager, AclApis).

RULES    1. Entries are created independently: one with an error does not affect the others. An entry that exists, or that is
            repeated in the request, is no error and gets no record.
         2. The entries that the filters of a request delete are deleted together; an entry that two filters select is in both
            results.
         3. The checks and messages are Apache Kafka 4.3's.
NOT HERE Whether the client may do it (`broker/handlers/admin/acls.py`).
"""

from __future__ import annotations

from typing import Final

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    AclFilter,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from protocol.messages.stored_records import RemoveAccessControlEntryRecord
from replication.controller.decision_context import DecisionContext
from replication.metadata.acls import (
    CLUSTER_NAME,
    Acl,
    OperationCode,
    PatternCode,
    PermissionCode,
    ResourceCode,
    acl_record,
    matches,
)
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision

_ANY: Final = 1
_RESOURCES: Final = range(ResourceCode.TOPIC, ResourceCode.USER + 1)
_PATTERNS: Final = (PatternCode.LITERAL, PatternCode.PREFIXED)
_OPERATIONS: Final = range(OperationCode.ALL, OperationCode.TWO_PHASE_COMMIT + 1)
_PERMISSIONS: Final = (PermissionCode.DENY, PermissionCode.ALLOW)

MAX_RECORDS: Final = 10_000
"""Entries that one request may create or delete."""


def create_acls(context: DecisionContext, request: CreateAclsRequest) -> Decision[CreateAclsResponse]:
    """Decide on the entries of a request."""
    existing = set(context.image.acls.values())
    records: list[Versioned] = []
    results = []
    for creation in request.creations:
        acl = _acl(creation)
        try:
            _check(acl)
        except KafkaError as error:
            results.append(AclCreationResult(error_code=error.code, error_message=error.message))
            continue
        results.append(AclCreationResult(error_code=ErrorCode.NONE, error_message=""))
        if acl not in existing:
            existing.add(acl)
            records.append((acl_record(context.new_id(), acl), 0))
    if len(records) > MAX_RECORDS:
        message = "Unable to perform excessively large batch operation."
        failed = [AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=message) for _ in results]
        return Decision([], CreateAclsResponse(results=failed))
    return Decision(records, CreateAclsResponse(results=results))


def delete_acls(context: DecisionContext, request: DeleteAclsRequest) -> Decision[DeleteAclsResponse]:
    """Decide on the filters of a request."""
    deleted: dict[bytes, None] = {}
    results = []
    for wanted in request.filters:
        unknown = _unknown_part(wanted)
        if unknown is not None:
            results.append(DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message=unknown))
            continue
        found = {acl_id: acl for acl_id, acl in context.image.acls.items() if matches(acl, wanted)}
        deleted.update(dict.fromkeys(found))
        results.append(
            DeleteAclsFilterResult(
                error_code=ErrorCode.NONE,
                matching_acls=[DeleteAclsMatchingAcl(**acl._asdict()) for acl in found.values()],
            )
        )
    if len(deleted) > MAX_RECORDS:
        message = f"Cannot remove more than {MAX_RECORDS} acls in a single delete operation."
        failed = [DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message=message) for _ in results]
        return Decision([], DeleteAclsResponse(filter_results=failed))
    records = [(RemoveAccessControlEntryRecord(id=acl_id), 0) for acl_id in deleted]
    return Decision(records, DeleteAclsResponse(filter_results=results))


def _unknown_part(wanted: AclFilter) -> str | None:
    """The sentence about a filter with an unknown number."""
    if wanted.resource_type_filter not in (_ANY, *_RESOURCES):
        return "Unknown patternFilter."
    if wanted.pattern_type_filter not in (_ANY, PatternCode.MATCH, *_PATTERNS):
        return "Unknown patternFilter."
    if wanted.operation not in (_ANY, *_OPERATIONS) or wanted.permission_type not in (_ANY, *_PERMISSIONS):
        return "Unknown entryFilter."
    return None


def _acl(creation: AclCreation) -> Acl:
    return Acl(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _check(acl: Acl) -> None:
    if acl.resource_type == ResourceCode.CLUSTER and acl.resource_name != CLUSTER_NAME:
        message = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if not acl.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty resource name")
    for name, number, known in (
        ("resourceType", acl.resource_type, _RESOURCES),
        ("patternType", acl.pattern_type, _PATTERNS),
        ("operation", acl.operation, _OPERATIONS),
        ("permissionType", acl.permission_type, _PERMISSIONS),
    ):
        if number not in known:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid {name} UNKNOWN")
    if ":" not in acl.principal:
        message = (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
