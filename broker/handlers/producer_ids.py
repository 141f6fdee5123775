"""InitProducerId, and producer ids out of blocks from the controller.

RULES    1. Every answer has an id that nobody has had before, with epoch 0; ids of a block lost in a crash are not
            given again.
         2. A block is asked for when the last one is used up; requests that come meanwhile wait for it. If the
            controller refuses, they are told to try again (COORDINATOR_LOAD_IN_PROGRESS, as Kafka does).
         3. A transactional id is its coordinator's to answer for. An empty one is INVALID_REQUEST.
NOT HERE Transactional ids (`transactions.py`), which block is next (`replication/controller/`), checking sequences
         (`storage/producers.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.quorum import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.schema import Message

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


class Controller(Protocol):
    """What is needed of the controller."""

    def submit(self, request: Message, *, wall_ms: int, reply: Callable[[Message], None]) -> None:
        """Decide on a request; `reply` is called when the decision is committed."""


class ProducerIds:
    """Hands out producer ids, one block after the other."""

    def __init__(self, controller: Controller, broker_id: int, broker_epoch: Callable[[], int]) -> None:
        """Ask `controller` in the name of this broker; `broker_epoch` gives the epoch of its registration."""
        self._controller = controller
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._next = 0
        self._end = 0
        self._is_asking = False
        self._waiting: list[Callable[[int | None], None]] = []

    def take(self, wall_ms: int, give: Callable[[int | None], None]) -> None:
        """Call `give` with a new id, or with None when the controller has none for us now."""
        self._waiting.append(give)
        self._serve(wall_ms)

    def _serve(self, wall_ms: int) -> None:
        while self._waiting and self._next < self._end:
            producer_id = self._next
            self._next += 1
            self._waiting.pop(0)(producer_id)
        if self._waiting and not self._is_asking:
            self._is_asking = True
            request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
            self._controller.submit(request, wall_ms=wall_ms, reply=lambda answer: self._allocated(answer, wall_ms))

    def _allocated(self, answer: Message, wall_ms: int) -> None:
        assert isinstance(answer, AllocateProducerIdsResponse)
        self._is_asking = False
        if answer.error_code:
            waiting, self._waiting = self._waiting, []
            for give in waiting:
                give(None)
            return
        self._next = answer.producer_id_start
        self._end = answer.producer_id_start + answer.producer_id_len
        self._serve(wall_ms)


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
