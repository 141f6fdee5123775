"""Access control entries as values: what the metadata image stores, what filters select.

FORMAT   numbers as on the wire and in AccessControlEntryRecord
RULES    1. An entry is about a resource type and a pattern of names: LITERAL (equal, `*` is every name) or PREFIXED.
         2. A filter's null or ANY matches everything; MATCH selects the patterns that apply to a name.
NOT HERE What a client may do (`broker/security/standard_authorizer.py`), changes (`replication/controller/configs/acls.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.messages.acls import AclFilter
from protocol.messages.stored_records import AccessControlEntryRecord

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""


class ResourceCode:
    """Resource types (org.apache.kafka.common.resource.ResourceType)."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternCode:
    """Types of name patterns (org.apache.kafka.common.resource.PatternType); an entry has one of the last two."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class PermissionCode:
    """Permissions (org.apache.kafka.common.acl.AclPermissionType)."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class OperationCode:
    """Operations (org.apache.kafka.common.acl.AclOperation)."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Acl(NamedTuple):
    """An access control entry; equal entries are one, whatever their ids."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


def acl_of(record: AccessControlEntryRecord) -> Acl:
    """The entry in a record."""
    return Acl(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )


def acl_record(acl_id: bytes, acl: Acl) -> AccessControlEntryRecord:
    """The record of an entry."""
    return AccessControlEntryRecord(id=acl_id, **acl._asdict())


def matches(acl: Acl, wanted: AclFilter) -> bool:
    """Whether a filter selects an entry (rule 2)."""
    return (
        wanted.resource_type_filter in (ResourceCode.ANY, acl.resource_type)
        and _pattern_matches(acl, wanted.pattern_type_filter, wanted.resource_name_filter)
        and wanted.principal_filter in (None, acl.principal)
        and wanted.host_filter in (None, acl.host)
        and wanted.operation in (OperationCode.ANY, acl.operation)
        and wanted.permission_type in (PermissionCode.ANY, acl.permission_type)
    )


def _pattern_matches(acl: Acl, pattern_type: int, name: str | None) -> bool:
    if pattern_type not in (PatternCode.ANY, PatternCode.MATCH, acl.pattern_type):
        return False
    if name is None or name == acl.resource_name:
        return True
    if pattern_type != PatternCode.MATCH:
        return False
    if acl.pattern_type == PatternCode.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name == WILDCARD
