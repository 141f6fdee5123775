"""Controller APIs for other nodes: registration, heartbeats, AlterPartition, AllocateProducerIds, DescribeCluster.

RULES    1. All require CLUSTER_ACTION on the cluster, else CLUSTER_AUTHORIZATION_FAILED (DescribeCluster requires ALTER, as
            Kafka's controller does).
         2. The response is sent after the controller's records are committed.
         3. They are on the controller listener only.
NOT HERE The decisions (`replication/controller`), topics and configs (`topics.py`).
"""

from __future__ import annotations

import logging

from broker.handlers.admin.metadata import CONTROLLERS, endpoint_error
from broker.handlers.authorization import ForwardingHandlers, authorization_error
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Operation
from broker.security.operations import NOT_REQUESTED
from protocol.api import ApiKey, error_response
from protocol.errors import ErrorCode
from protocol.messages.metadata import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.quorum import (
    AlterPartitionRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    BrokerState,
)
from protocol.schema import Message
from replication.completion import Completion

_log = logging.getLogger("barnabas.controller")


class ControllerHandlers(ForwardingHandlers):
    """The handlers of the controller APIs."""

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.ALTER_PARTITION, 2, 3, self.alter_partition),
            Route(ApiKey.DESCRIBE_CLUSTER, 0, 2, self.describe_cluster),
            Route(ApiKey.BROKER_REGISTRATION, 0, 4, self.register),
            Route(ApiKey.BROKER_HEARTBEAT, 0, 2, self.forward),
            Route(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, self.forward),
            Route(ApiKey.CONTROLLER_REGISTRATION, 0, 0, self.forward),
            Route(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, self.forward),
        ]

    # ------------------------------------------------------------ nodes
    def forward(self, context: RequestContext, request: Message) -> Message | Completion[Message]:
        """Handle a request that the controller handles as it is."""
        return self._forward(context, request, Operation.CLUSTER_ACTION)

    def register(self, context: RequestContext, request: BrokerRegistrationRequest) -> Message | Completion[Message]:
        """Handle BrokerRegistration."""
        if not self._is_authorized(context, Operation.CLUSTER_ACTION):
            return authorization_error(request, None)

        def log(response: BrokerRegistrationResponse) -> BrokerRegistrationResponse:
            if response.error_code == ErrorCode.NOT_CONTROLLER:
                return response  # the broker looks for the active controller, which logs the decision
            if response.error_code:
                name = ErrorCode(response.error_code).name
                host = context.connection.peer_host
                _log.warning("registration of broker %d at %s was rejected: %s", request.broker_id, host, name)
            else:
                _log.info("registered broker %d with epoch %d", request.broker_id, response.broker_epoch)
            return response

        return self._controller.submit(request).map(log)

    def alter_partition(self, context: RequestContext, request: AlterPartitionRequest) -> Message | Completion[Message]:
        """Handle AlterPartition."""
        if context.api_version < 3:
            for topic in request.topics:
                for partition in topic.partitions:
                    partition.new_isr_with_epochs = [BrokerState(broker_id=member) for member in partition.new_isr]
        return self.forward(context, request)

    # ------------------------------------------------------------ controllers
    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> Message:
        """Handle DescribeCluster for controllers."""
        if not self._is_authorized(context, Operation.ALTER):
            return authorization_error(request)
        if request.endpoint_type != CONTROLLERS:
            code, sentence = endpoint_error(request.endpoint_type, CONTROLLERS)
            return error_response(
                context.api_key, ErrorCode.INVALID_REQUEST if context.api_version == 0 else code, sentence
            )
        image = self._controller.image
        controllers = [
            DescribeClusterBroker(broker_id=controller_id, host=endpoint.host, port=endpoint.port, rack=None)
            for controller_id, controller in sorted(image.controllers.items())
            for endpoint in controller.endpoints
            if endpoint.listener == context.connection.listener_name
        ]
        operations = NOT_REQUESTED
        if request.include_cluster_authorized_operations:
            may_see = self._is_authorized(context, Operation.DESCRIBE)
            operations = self._authorized_operations(context) if may_see else 0
        has_leader = any(node.broker_id == image.leader_id for node in controllers)
        return DescribeClusterResponse(
            error_code=ErrorCode.NONE,
            endpoint_type=CONTROLLERS,
            cluster_id=image.cluster_id,
            controller_id=image.leader_id if has_leader else -1,
            brokers=controllers,
            cluster_authorized_operations=operations,
        )
