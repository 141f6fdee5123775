"""Controller APIs for other nodes: registration, heartbeats, AlterPartition, AllocateProducerIds, DescribeCluster.

RULES    1. All require CLUSTER_ACTION on the cluster, else CLUSTER_AUTHORIZATION_FAILED
            (DescribeCluster requires ALTER, as Kafka's controller does).
         2. The response is sent after the controller's records are committed.
         3. They are on the controller listener only.
NOT HERE The decisions (`replication/controller`), topics and configs (`topics.py`).
"""

from __future__ import annotations

import logging

from broker.handlers.deferred import submit
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from broker.security.operations import NOT_REQUESTED, authorized_operations
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.metadata import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.quorum import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    BrokerState,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from replication.controller.controller_client import Controller

_log = logging.getLogger("barnabas.controller")

_BROKERS, _CONTROLLERS = 1, 2


class ControllerHandlers:
    """The handlers of the controller APIs."""

    def __init__(self, controller: Controller, authorizer: Authorizer) -> None:
        self._controller = controller
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.ALTER_PARTITION, 2, 3, self.alter_partition),
            Route(ApiKey.DESCRIBE_CLUSTER, 0, 2, self.describe_cluster),
            Route(ApiKey.BROKER_REGISTRATION, 0, 4, self.register),
            Route(ApiKey.BROKER_HEARTBEAT, 0, 2, self.heartbeat),
            Route(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, self.allocate_producer_ids),
            Route(ApiKey.CONTROLLER_REGISTRATION, 0, 0, self.register_controller),
            Route(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, self.assign_replicas),
        ]

    # ------------------------------------------------------------ brokers
    def register(
        self, context: RequestContext, request: BrokerRegistrationRequest
    ) -> Pending | BrokerRegistrationResponse:
        """Handle BrokerRegistration."""
        if not self._is_node(context):
            return BrokerRegistrationResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

        def log(response: BrokerRegistrationResponse) -> None:
            if response.error_code:
                name = ErrorCode(response.error_code).name
                host = context.connection.peer_host
                _log.warning("registration of broker %d at %s was rejected: %s", request.broker_id, host, name)
            else:
                _log.info("registered broker %d with epoch %d", request.broker_id, response.broker_epoch)

        return submit(self._controller, context, request, log)

    def heartbeat(self, context: RequestContext, request: BrokerHeartbeatRequest) -> Pending | BrokerHeartbeatResponse:
        """Handle BrokerHeartbeat."""
        if not self._is_node(context):
            return BrokerHeartbeatResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return submit(self._controller, context, request)

    def alter_partition(
        self, context: RequestContext, request: AlterPartitionRequest
    ) -> Pending | AlterPartitionResponse:
        """Handle AlterPartition."""
        if not self._is_node(context):
            return AlterPartitionResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if context.api_version < 3:
            for topic in request.topics:
                for partition in topic.partitions:
                    partition.new_isr_with_epochs = [BrokerState(broker_id=member) for member in partition.new_isr]
        return submit(self._controller, context, request)

    def allocate_producer_ids(
        self, context: RequestContext, request: AllocateProducerIdsRequest
    ) -> Pending | AllocateProducerIdsResponse:
        """Handle AllocateProducerIds."""
        if not self._is_node(context):
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return AllocateProducerIdsResponse(error_code=code, producer_id_start=0, producer_id_len=0)
        return submit(self._controller, context, request)

    def register_controller(
        self, context: RequestContext, request: ControllerRegistrationRequest
    ) -> Pending | ControllerRegistrationResponse:
        """Handle ControllerRegistration."""
        if not self._is_node(context):
            return ControllerRegistrationResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return submit(self._controller, context, request)

    def assign_replicas(
        self, context: RequestContext, request: AssignReplicasToDirsRequest
    ) -> Pending | AssignReplicasToDirsResponse:
        """Handle AssignReplicasToDirs."""
        if not self._is_node(context):
            return AssignReplicasToDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return submit(self._controller, context, request)

    # ------------------------------------------------------------ controllers
    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """Handle DescribeCluster for controllers."""
        if not self._is_authorized(context, Operation.ALTER):
            return _error_response(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
        if request.endpoint_type != _CONTROLLERS:
            return _wrong_endpoint(context, request.endpoint_type)
        image = self._controller.image
        controllers = [
            DescribeClusterBroker(broker_id=controller_id, host=endpoint.host, port=endpoint.port, rack=None)
            for controller_id, controller in sorted(image.controllers.items())
            for endpoint in controller.endpoints
            if endpoint.listener == context.connection.listener_name
        ]
        operations = NOT_REQUESTED
        if request.include_cluster_authorized_operations:
            principal, authorizer = context.principal, self._authorizer
            may_see = self._is_authorized(context, Operation.DESCRIBE)
            operations = authorized_operations(authorizer, principal, Resource.CLUSTER, CLUSTER_NAME) if may_see else 0
        has_leader = any(node.broker_id == image.leader_id for node in controllers)
        return DescribeClusterResponse(
            error_code=ErrorCode.NONE,
            endpoint_type=_CONTROLLERS,
            cluster_id=image.cluster_id,
            controller_id=image.leader_id if has_leader else -1,
            brokers=controllers,
            cluster_authorized_operations=operations,
        )

    # ------------------------------------------------------------ authorization
    def _is_node(self, context: RequestContext) -> bool:
        return self._is_authorized(context, Operation.CLUSTER_ACTION)

    def _is_authorized(self, context: RequestContext, operation: str) -> bool:
        return self._authorizer.authorize(context.principal, operation, Resource.CLUSTER, CLUSTER_NAME)


def _wrong_endpoint(context: RequestContext, endpoint_type: int) -> DescribeClusterResponse:
    if endpoint_type == _BROKERS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        sentence = "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
    else:
        code, sentence = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {endpoint_type}"
    return _error_response(ErrorCode.INVALID_REQUEST if context.api_version == 0 else code, sentence)


def _error_response(code: ErrorCode, sentence: str | None) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=code, error_message=sentence, cluster_id="", brokers=[])
