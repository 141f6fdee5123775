"""The authorizer interface of all handlers (Kafka: Authorizer).

RULES    1. A handler passes Kafka's operation and resource names, and applies the result per resource.
NOT HERE ACLs and authentication: further authorizers and principals.
"""

from __future__ import annotations

from typing import Protocol

ANONYMOUS = "User:ANONYMOUS"
CLUSTER_NAME = "kafka-cluster"


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


class Resource:
    """Kafka's resource types (org.apache.kafka.common.resource.ResourceType)."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"


class Authorizer(Protocol):
    """Authorizes operations."""

    def authorize(self, principal: str, operation: str, resource_type: str, resource_name: str) -> bool:
        """Whether `principal` ("User:name") may do `operation` on the resource."""


class AllowAll:
    """Allows everything, like Apache Kafka without `authorizer.class.name`."""

    def authorize(self, principal: str, operation: str, resource_type: str, resource_name: str) -> bool:  # noqa: ARG002
        """Always True."""
        return True
