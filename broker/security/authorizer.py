"""The authorizer interface of all handlers (Kafka: Authorizer).

RULES    1. A handler passes Kafka's operation and resource names, and applies the result per resource.
NOT HERE ACLs (`standard_authorizer.py`), authentication (`tls_context.py`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final, Protocol

ANONYMOUS = "User:ANONYMOUS"
THIS_BROKER = "Broker:this"
"""The principal of a broker's requests to itself, a super user. No client has it: their principals begin with "User:"."""


class NotLoaded(Exception):
    """The entries are not loaded yet; clients get UNKNOWN_SERVER_ERROR and retry."""


class Operation:
    """Kafka's operations on resources (org.apache.kafka.common.acl.AclOperation)."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"
    CREATE_TOKENS = "CreateTokens"
    DESCRIBE_TOKENS = "DescribeTokens"
    TWO_PHASE_COMMIT = "TwoPhaseCommit"


class Resource:
    """Kafka's resource types (org.apache.kafka.common.resource.ResourceType)."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"
    DELEGATION_TOKEN = "DelegationToken"  # noqa: S105  # no secret
    USER = "User"


class Requester(Protocol):
    """The connection of a request."""

    principal: str
    """As "User:name"."""
    peer_host: str
    """The client's IP address."""


class AuthorizableRequest(Protocol):
    """A request, as far as authorizers need it."""

    @property
    def api_key(self) -> int:
        """The API."""

    @property
    def connection(self) -> Requester:
        """The connection of the client that sent it."""


class Authorizer(Protocol):
    """Authorizes operations."""

    @property
    def version(self) -> int:
        """Increases when decisions may differ from earlier ones."""

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
        """Whether the client may do `operation` on the resource.

        The flags are for the audit log: False if the result is no access (it fills a bit field), or the client did not ask
        for the resource (it filters a list). `references` counts, for that log, how often the request names the resource;
        None: once.
        """

    def authorize_any(self, request: AuthorizableRequest, operation: str, resource_type: str) -> bool:
        """Whether the client may do `operation` on at least one resource of a type (KIP-679)."""


class AllowAll:
    """Allows everything, like Apache Kafka without `authorizer.class.name`."""

    version: Final = 0

    def authorize(
        self,
        request: AuthorizableRequest,  # noqa: ARG002
        operation: str,  # noqa: ARG002
        resource_type: str,  # noqa: ARG002
        resource_name: str,  # noqa: ARG002
        *,
        log_allowed: bool = True,  # noqa: ARG002
        log_denied: bool = True,  # noqa: ARG002
        references: Callable[[], int] | None = None,  # noqa: ARG002
    ) -> bool:
        """Always True."""
        return True

    def authorize_any(self, request: AuthorizableRequest, operation: str, resource_type: str) -> bool:  # noqa: ARG002
        """Always True."""
        return True


def java_address(host: str) -> str:
    """An IP address as Java prints it, in ACLs and in groups: IPv6 without `::`."""
    if ":" not in host:
        return host
    address, percent, scope = host.partition("%")
    parsed = ipaddress.IPv6Address(address)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    groups = (parsed.packed[at : at + 2] for at in range(0, 16, 2))
    return ":".join(f"{int.from_bytes(group, 'big'):x}" for group in groups) + percent + scope
