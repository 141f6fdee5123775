"""Kafka's numbers of operations and resource types, and bit fields of authorized operations (KIP-430).

RULES    1. Bit n is the operation with Kafka's code n; a field that was not requested is `NOT_REQUESTED`.
NOT HERE Authorization (`authorizer.py`).
"""

from __future__ import annotations

from broker.security.authorizer import AuthorizableRequest, Authorizer, Operation, Resource
from replication.metadata.acls import OperationCode, ResourceCode

NOT_REQUESTED = -(2**31)

OPERATION_CODES = {
    Operation.READ: OperationCode.READ,
    Operation.WRITE: OperationCode.WRITE,
    Operation.CREATE: OperationCode.CREATE,
    Operation.DELETE: OperationCode.DELETE,
    Operation.ALTER: OperationCode.ALTER,
    Operation.DESCRIBE: OperationCode.DESCRIBE,
    Operation.CLUSTER_ACTION: OperationCode.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS: OperationCode.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS: OperationCode.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE: OperationCode.IDEMPOTENT_WRITE,
    Operation.CREATE_TOKENS: OperationCode.CREATE_TOKENS,
    Operation.DESCRIBE_TOKENS: OperationCode.DESCRIBE_TOKENS,
    Operation.TWO_PHASE_COMMIT: OperationCode.TWO_PHASE_COMMIT,
}
RESOURCE_CODES = {
    Resource.TOPIC: ResourceCode.TOPIC,
    Resource.GROUP: ResourceCode.GROUP,
    Resource.CLUSTER: ResourceCode.CLUSTER,
    Resource.TRANSACTIONAL_ID: ResourceCode.TRANSACTIONAL_ID,
    Resource.DELEGATION_TOKEN: ResourceCode.DELEGATION_TOKEN,
    Resource.USER: ResourceCode.USER,
}

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


def authorized_operations(
    authorizer: Authorizer, request: AuthorizableRequest, resource_type: str, resource_name: str
) -> int:
    """The bit field of the operations that the client may do on a resource."""
    field = 0
    for operation in _OF_RESOURCE[resource_type]:
        if authorizer.authorize(request, operation, resource_type, resource_name, log_allowed=False, log_denied=False):
            field |= 1 << OPERATION_CODES[operation]
    return field
