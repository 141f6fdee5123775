"""Authorization by the access control entries of the metadata (Kafka: StandardAuthorizer).

RULES    1. Order: super users may do everything; without loaded entries everything else is an error; then the entries decide.
         2. An entry counts if its pattern, principal (or `User:*`), host (or `*`) and operation (or All) fit. One DENY wins,
            then one ALLOW. ALLOW of Read, Write, Delete or Alter implies Describe, of AlterConfigs DescribeConfigs.
         3. Without such an entry: denied if any entry's pattern fits the resource, else `allow.everyone.if.no.acl.found`.
         4. Decisions are cached until an entry changes, so a repeated question costs one look-up.
         5. The audit log has Apache Kafka's sentences: denials at INFO, permissions at DEBUG, the others at TRACE.
NOT HERE The index of entries (`acl_index.py`), which operation an API needs (`broker/handlers/`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from broker.security.acl_index import AclIndex
from broker.security.authorizer import THIS_BROKER, AuthorizableRequest, NotLoaded, java_address
from broker.security.operations import OPERATION_CODES, RESOURCE_CODES
from protocol.api import APIS
from replication.metadata.acls import WILDCARD, Acl, OperationCode, PatternCode, PermissionCode, ResourceCode

_TRACE: Final = 5
_MAX_CACHED: Final = 10_000
"""Cached decisions; the cache is cleared when it is full."""
_MAX_CACHED_NAME: Final = 1_000
"""Decisions about longer names are not cached: clients choose them, of up to 32 KiB."""
_ANYONE: Final = "User:*"
_ANY_NAME: Final = "hardcode"  # Kafka's word: super users may do everything on any name

_IMPLIED_BY: Final = {
    OperationCode.DESCRIBE: frozenset(
        {
            OperationCode.DESCRIBE,
            OperationCode.READ,
            OperationCode.WRITE,
            OperationCode.DELETE,
            OperationCode.ALTER,
        }
    ),
    OperationCode.DESCRIBE_CONFIGS: frozenset({OperationCode.DESCRIBE_CONFIGS, OperationCode.ALTER_CONFIGS}),
}
_audit = logging.getLogger("kafka.authorizer.logger")


class _Rule(NamedTuple):
    """A decision and its reason, as in the audit log."""

    is_allowed: bool
    reason: str


_SUPER_USER: Final = _Rule(is_allowed=True, reason="SuperUser")
_DEFAULT_DENY: Final = _Rule(is_allowed=False, reason="DefaultDeny")
_DEFAULT_ALLOW: Final = _Rule(is_allowed=True, reason="DefaultAllow")

_Question = tuple[str, str, str, str, str]
"""Principal, host, operation, resource type, resource name."""


class StandardAuthorizer:
    """Decides by the entries of the newest published image."""

    def __init__(self, super_users: Iterable[str] = (), *, allows_without_acl: bool = False) -> None:
        """`allows_without_acl` is `allow.everyone.if.no.acl.found`."""
        self._super_users = frozenset((*super_users, THIS_BROKER))
        self._no_acl_rule = _DEFAULT_ALLOW if allows_without_acl else _DEFAULT_DENY
        self._index = AclIndex()
        self._acls: Mapping[bytes, Acl] | None = None
        self._cache: dict[_Question, _Rule] = {}
        self.version = 0

    def update(self, acls: Mapping[bytes, Acl]) -> None:
        """The entries of a published image, by id; the mapping never changes."""
        if acls is not self._acls:
            self._index.replace(acls)
            self._acls = acls
            self._cache.clear()
            self.version += 1

    def authorize(
        self,
        request: AuthorizableRequest,
        operation: str,
        resource_type: str,
        resource_name: str,
        *,
        log_allowed: bool = True,
        log_denied: bool = True,
        references: Callable[[], int] | None = None,
    ) -> bool:
        """Whether the client may do `operation` on the resource; the other arguments as in `Authorizer`.

        Raises:
            NotLoaded: no image is published yet, and the client is no super user.
        """
        connection = request.connection
        question = connection.principal, connection.peer_host, operation, resource_type, resource_name
        rule = self._cache.get(question) or self._decide(question)
        is_logged, level = (log_allowed, logging.DEBUG) if rule.is_allowed else (log_denied, logging.INFO)
        if _audit.isEnabledFor(level if is_logged else _TRACE):
            count = 1 if references is None else references()
            _audit.log(level if is_logged else _TRACE, "%s", _sentence(request.api_key, question, rule, count))
        return rule.is_allowed

    def authorize_any(self, request: AuthorizableRequest, operation: str, resource_type: str) -> bool:
        """Whether the client may do `operation` on at least one resource of a type.

        Raises:
            NotLoaded: no image is published yet, and the client is no super user.
        """
        if self.authorize(request, operation, resource_type, _ANY_NAME, log_denied=False):
            return True
        connection = request.connection
        host, wanted = java_address(connection.peer_host), (OPERATION_CODES[operation], OperationCode.ALL)
        found = [
            acl
            for acl in self._index.of_type(RESOURCE_CODES[resource_type])
            if _is_about(acl, connection.principal, host) and acl.operation in wanted
        ]
        denied = {(acl.pattern_type, acl.resource_name) for acl in found if acl.permission_type == PermissionCode.DENY}
        if (PatternCode.LITERAL, WILDCARD) in denied:
            return False
        return any(acl.permission_type == PermissionCode.ALLOW and not _is_dominated(acl, denied) for acl in found)

    def _decide(self, question: _Question) -> _Rule:
        principal, host, operation, resource_type, resource_name = question
        if principal in self._super_users:
            rule = _SUPER_USER
        elif self._acls is None:
            raise NotLoaded("access control entries are not loaded yet")
        else:
            codes = OPERATION_CODES[operation], RESOURCE_CODES[resource_type]
            rule = self._rule(principal, java_address(host), *codes, resource_name)
        if len(resource_name) <= _MAX_CACHED_NAME:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[question] = rule
        return rule

    def _rule(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> _Rule:
        """The decision by the entries (rules 2 and 3)."""
        allowing: Acl | None = None
        has_entries = False
        for acl in self._index.fitting(resource_type, name):
            has_entries = True
            if _is_about(acl, principal, host) and _covers(acl, operation):
                if acl.permission_type == PermissionCode.DENY:
                    return _Rule(is_allowed=False, reason=_matching(acl))
                allowing = acl
        if allowing is not None:
            return _Rule(is_allowed=True, reason=_matching(allowing))
        return _DEFAULT_DENY if has_entries else self._no_acl_rule


def _is_about(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, _ANYONE) and acl.host in (host, WILDCARD)


def _covers(acl: Acl, operation: int) -> bool:
    if acl.operation in (operation, OperationCode.ALL):
        return True
    return acl.permission_type == PermissionCode.ALLOW and acl.operation in _IMPLIED_BY.get(operation, ())


def _is_dominated(acl: Acl, denied: set[tuple[int, str]]) -> bool:
    """Whether an entry that denies covers all names that `acl` allows."""
    name = acl.resource_name
    if acl.pattern_type == PatternCode.LITERAL:
        if name == WILDCARD:
            return False
        if (PatternCode.LITERAL, name) in denied:
            return True
    return any((PatternCode.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


_NAMES: Final = {
    kind: {code: name for name, code in vars(kind).items() if isinstance(code, int)}
    for kind in (ResourceCode, PatternCode, OperationCode, PermissionCode)
}


def _matching(acl: Acl) -> str:
    return (
        f"MatchingAcl(acl=StandardAcl[resourceType={_NAMES[ResourceCode][acl.resource_type]}, "
        f"resourceName={acl.resource_name}, patternType={_NAMES[PatternCode][acl.pattern_type]}, "
        f"principal={acl.principal}, host={acl.host}, operation={_NAMES[OperationCode][acl.operation]}, "
        f"permissionType={_NAMES[PermissionCode][acl.permission_type]}])"
    )


def _sentence(api_key: int, question: _Question, rule: _Rule, references: int) -> str:
    principal, host, operation, resource_type, name = question
    return (
        f"Principal = {principal} is {'Allowed' if rule.is_allowed else 'Denied'} "
        f"operation = {_NAMES[OperationCode][OPERATION_CODES[operation]]} from host = {java_address(host)} on resource = "
        f"{resource_type}:LITERAL:{name} for request = {APIS[api_key].request.__name__.removesuffix('Request')} "
        f"with resourceRefCount = {references} based on rule {rule.reason}"
    )
