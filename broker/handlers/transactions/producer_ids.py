"""InitProducerId.

RULES    1. Without a transactional id every response has a new producer id with epoch 0. If the controller has returned
            an error, the client gets COORDINATOR_LOAD_IN_PROGRESS and retries, as in Kafka.
         2. With a transactional id its coordinator decides. An empty one is INVALID_REQUEST.
NOT HERE Transactional ids (`transactions.py`), blocks of ids (`coordinators/transactions/producer_id_manager.py`),
         sequence checks (`storage/log/producer_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.coordinators.transactions.producer_id_manager import ProducerIdManager
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from replication.completion import Completion, completed


class ProducerIdsHandler(AuthorizingHandlers):
    """Handles InitProducerId."""

    def __init__(
        self,
        producer_ids: ProducerIdManager,
        init_transactional: Callable[[RequestContext, InitProducerIdRequest], Completion[InitProducerIdResponse]],
        authorizer: Authorizer,
    ) -> None:
        """`init_transactional` handles requests with a transactional id."""
        self._producer_ids = producer_ids
        self._init_transactional = init_transactional
        super().__init__(authorizer)

    def handle(self, ctx: RequestContext, request: InitProducerIdRequest) -> Completion[InitProducerIdResponse]:
        """Handle InitProducerId."""
        code = self._request_error(ctx, request)
        if code is not None:
            return completed(_error_response(code))
        if request.transactional_id is not None:
            return self._init_transactional(ctx, request)
        return self._producer_ids.generate_producer_id(ctx.wall_ms).handle(_response)

    def _request_error(self, ctx: RequestContext, request: InitProducerIdRequest) -> ErrorCode | None:
        name = request.transactional_id
        if name is None:
            denial = self._denial(ctx, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME)
        else:
            denial = self._denial(ctx, Operation.WRITE, Resource.TRANSACTIONAL_ID, name)
        if denial:
            return denial
        if (request.producer_id == NO_PRODUCER_ID) is not (request.producer_epoch == NO_PRODUCER_EPOCH):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.INVALID_REQUEST if name == "" else None  # null: no transactions


def _response(generated: Completion[int]) -> InitProducerIdResponse:
    if isinstance(generated.error, KafkaError):
        return _error_response(generated.error.code)
    return InitProducerIdResponse(error_code=0, producer_id=generated.result(), producer_epoch=0)


def _error_response(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def routes(handler: ProducerIdsHandler) -> list[Route]:
    """The routes; version 6 is unstable in Apache Kafka 4.3."""
    return [Route(ApiKey.INIT_PRODUCER_ID, 0, 5, handler.handle)]
