"""Bit fields of the operations that a client is authorized for on a resource (KIP-430).

RULES    1. Bit n is the operation with Kafka's code n; a field that was not requested is `NOT_REQUESTED`.
NOT HERE Authorization (`authorizer.py`).
"""

from __future__ import annotations

from broker.security.authorizer import Authorizer, Operation, Resource

NOT_REQUESTED = -(2**31)

_IN_ORDER = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
    Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
)  # fmt: skip
_CODES = {operation: code for code, operation in enumerate(_IN_ORDER, 3)}
"""Kafka's codes; lower ones are for filters."""

_OF_RESOURCE = {
    Resource.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
}  # fmt: skip


def authorized_operations(authorizer: Authorizer, principal: str, resource_type: str, resource_name: str) -> int:
    """The bit field of the operations that `principal` may do on a resource."""
    field = 0
    for operation in _OF_RESOURCE[resource_type]:
        if authorizer.authorize(principal, operation, resource_type, resource_name):
            field |= 1 << _CODES[operation]
    return field
