"""ACLs: list, add, remove.

RULES    1. A filter's field that is not given matches everything. A removal without any field is refused by the verb.
         2. A resource pattern is literal unless it is prefixed; `*` is the literal name that matches every resource.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kafka.protocol.admin.acl import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from barnabas.admin.client import Client
from barnabas.admin.errors import check

ANY = 1
"""In a filter, of every field with a number."""
RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5, "delegation-token": 6, "user": 7}
PATTERNS = {"any": 1, "match": 2, "literal": 3, "prefixed": 4}
"""`match`: literal, prefixed and `*` patterns that apply to the name; in filters only, as is `any`."""
OPERATIONS = {
    "any": 1,
    "all": 2,
    "read": 3,
    "write": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
    "cluster-action": 9,
    "describe-configs": 10,
    "alter-configs": 11,
    "idempotent-write": 12,
    "create-tokens": 13,
    "describe-tokens": 14,
    "two-phase-commit": 15,
}
PERMISSIONS = {"any": 1, "deny": 2, "allow": 3}
CLUSTER_NAME = "kafka-cluster"
"""The name of the resource `cluster`."""


class Acl(NamedTuple):
    """An ACL, or an ACL filter: then None matches everything."""

    principal: str | None
    host: str | None
    permission: str
    operation: str
    resource: str | None
    name: str | None
    pattern: str


def list_acls(client: Client, wanted: Acl) -> list[Acl]:
    """Returns the ACLs that a filter matches, sorted. Raises Refused."""
    response = client.ask(DescribeAclsRequest(**_filter(wanted)))
    check(response.error_code, response.error_message, "list ACLs", "Describe on the cluster")
    found = [
        Acl(
            acl.principal,
            acl.host,
            _word(PERMISSIONS, acl.permission_type),
            _word(OPERATIONS, acl.operation),
            _word(RESOURCES, resource.resource_type),
            resource.resource_name,
            _word(PATTERNS, resource.pattern_type),
        )
        for resource in response.resources
        for acl in resource.acls
    ]
    return sorted(found, key=_order)


def add_acls(client: Client, acls: Iterable[Acl]) -> None:
    """Creates ACLs; those that exist are left. Raises Refused for the first that fails."""
    kind: Any = CreateAclsRequest.AclCreation
    creations = [
        kind(
            resource_type=RESOURCES[acl.resource or ""],
            resource_name=acl.name,
            resource_pattern_type=PATTERNS[acl.pattern],
            principal=acl.principal,
            host=acl.host,
            operation=OPERATIONS[acl.operation],
            permission_type=PERMISSIONS[acl.permission],
        )
        for acl in acls
    ]
    for result in client.ask_controller(CreateAclsRequest(creations=creations)).results:
        check(result.error_code, result.error_message, "add ACLs", "Alter on the cluster")


def remove_acls(client: Client, wanted: Acl) -> list[Acl]:
    """Deletes the ACLs that a filter matches, and returns them, sorted. Raises Refused."""
    kind: Any = DeleteAclsRequest.DeleteAclsFilter
    result = client.ask_controller(DeleteAclsRequest(filters=[kind(**_filter(wanted))])).filter_results[0]
    check(result.error_code, result.error_message, "remove ACLs", "Alter on the cluster")
    removed = []
    for acl in result.matching_acls:
        check(acl.error_code, acl.error_message, f"remove an ACL of {acl.principal}", "Alter on the cluster")
        permission, operation = _word(PERMISSIONS, acl.permission_type), _word(OPERATIONS, acl.operation)
        resource, pattern = _word(RESOURCES, acl.resource_type), _word(PATTERNS, acl.pattern_type)
        removed.append(Acl(acl.principal, acl.host, permission, operation, resource, acl.resource_name, pattern))
    return sorted(removed, key=_order)


def _filter(wanted: Acl) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY if wanted.resource is None else RESOURCES[wanted.resource],
        "resource_name_filter": wanted.name,
        "pattern_type_filter": PATTERNS[wanted.pattern],
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": OPERATIONS[wanted.operation],
        "permission_type": PERMISSIONS[wanted.permission],
    }


def _order(acl: Acl) -> tuple[str, ...]:
    """By resource, then by principal."""
    resource = (acl.resource or "", acl.name or "", acl.pattern)
    return (*resource, acl.principal or "", acl.host or "", acl.permission, acl.operation)


def _word(words: dict[str, int], number: int) -> str:
    return next((word for word, value in words.items() if value == number), str(number))
