"""May this principal do this? The seam that every handler asks (seeds.md F1).

RULES    1. A handler asks with Kafka's operation and resource names and obeys the answer per resource.
NOT HERE Access control lists and authentication: they come as further authorizers and principals.
"""

from __future__ import annotations

from typing import Protocol

ANONYMOUS = "User:ANONYMOUS"
CLUSTER_NAME = "kafka-cluster"


class Operation:
    """Kafka's operations on resources, by name (org.apache.kafka.common.acl.AclOperation)."""

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
    """Kafka's resource types, by name (org.apache.kafka.common.resource.ResourceType)."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"


class Authorizer(Protocol):
    """Answers one question."""

    def authorize(self, principal: str, operation: str, resource_type: str, resource_name: str) -> bool:
        """Whether `principal` ("User:name") may do `operation` on the resource."""


class AllowAll:
    """The default, as in Apache Kafka without `authorizer.class.name`."""

    def authorize(self, principal: str, operation: str, resource_type: str, resource_name: str) -> bool:  # noqa: ARG002
        """Yes."""
        return True
