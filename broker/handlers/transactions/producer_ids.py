"""InitProducerId.

RULES    1. Every answer has an id that nobody has had before, with epoch 0. When there is none to be had, producers are
            told to try again (COORDINATOR_LOAD_IN_PROGRESS, as Kafka does).
         2. A transactional id is its coordinator's to answer for. An empty one is INVALID_REQUEST.
NOT HERE Transactional ids (`transactions.py`), the ids (`coordinators/transactions/producer_id_manager.py`), checking sequences
         (`storage/log/producer_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.coordinators.transactions.producer_id_manager import ProducerIds
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


class ProducerIdsHandler:
    """Answers InitProducerId requests."""

    def __init__(
        self,
        producer_ids: ProducerIds,
        transactional: Callable[[RequestContext, InitProducerIdRequest], InitProducerIdResponse | Pending],
        authorizer: Authorizer,
    ) -> None:
        """`transactional` answers those who come with a transactional id."""
        self._producer_ids = producer_ids
        self._transactional = transactional
        self._authorizer = authorizer

    def handle(self, ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse | Pending:
        """Answer one InitProducerId."""
        code = self._refuse(ctx, request)
        if code is not None:
            return _refusal(code)
        if request.transactional_id is not None:
            return self._transactional(ctx, request)
        pending = Pending()
        self._producer_ids.take(
            ctx.wall_ms,
            lambda producer_id: pending.complete(
                _refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                if producer_id is None
                else InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)
            ),
        )
        return pending

    def _refuse(self, ctx: RequestContext, request: InitProducerIdRequest) -> ErrorCode | None:
        name = request.transactional_id
        if name is not None:
            if not self._authorizer.authorize(ctx.principal, Operation.WRITE, Resource.TRANSACTIONAL_ID, name):
                return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif not self._authorizer.authorize(ctx.principal, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if (request.producer_id == NO_PRODUCER_ID) is not (request.producer_epoch == NO_PRODUCER_EPOCH):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.INVALID_REQUEST if name == "" else None  # null: no transactions


def _refusal(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def routes(handler: ProducerIdsHandler) -> list[Route]:
    """The rows of the API table; version 6 is not stable in Apache Kafka 4.3."""
    return [Route(ApiKey.INIT_PRODUCER_ID, 0, 5, handler.handle)]
