"""InitProducerId without a transactional id."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from broker.coordinators.transactions.producer_id_manager import ProducerIdManager
from broker.handlers.router import RequestContext
from broker.handlers.transactions.transactions import TransactionHandlers
from broker.network.exchange import ConnectionInfo
from broker.security.authorizer import AllowAll
from protocol.errors import ErrorCode
from protocol.messages.quorum import AllocateProducerIdsResponse
from protocol.messages.transactions import InitProducerIdRequest
from protocol.schema import Message
from replication.completion import Completion
from replication.controller import controller_client
from replication.timer_queue import TimerQueue


class Controller:
    """Keeps the requests until the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Completion[Any]]] = []
        self.next_start = 0

    def submit(self, request: Message) -> Completion[Any]:
        self.asked.append((request, Completion()))
        return self.asked[-1][1]

    def allocate(self, count: int = 3) -> None:
        _, response = self.asked.pop(0)
        start, self.next_start = self.next_start, self.next_start + count
        response.complete(AllocateProducerIdsResponse(error_code=0, producer_id_start=start, producer_id_len=count))

    def refuse(self) -> None:
        _, response = self.asked.pop(0)
        response.complete(
            AllocateProducerIdsResponse(
                error_code=ErrorCode.STALE_BROKER_EPOCH, producer_id_start=-1, producer_id_len=0
            )
        )


def context() -> RequestContext:
    connection = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 4000), "User:ANONYMOUS")
    return RequestContext(22, 5, 1, "test", connection, 0, 0)


def ask(handler: TransactionHandlers, name: str | None = None, producer_id: int = -1, producer_epoch: int = -1) -> Any:
    """The response, now or later."""
    return handler.init_producer_id(
        context(),
        InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=1000, producer_id=producer_id, producer_epoch=producer_epoch
        ),
    )


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def handler(controller: Controller) -> TransactionHandlers:
    unused: Any = None
    no_coordinators: CoordinatorRuntime[Any] = CoordinatorRuntime("t", unused, unused, TimerQueue(), unused)
    producer_ids = ProducerIdManager(cast("controller_client.Controller", controller), 1, lambda: 77)
    return TransactionHandlers(no_coordinators, no_coordinators, producer_ids, unused, AllowAll(), 1)


def test_requests_wait_for_the_first_block_only(controller: Controller, handler: TransactionHandlers) -> None:
    first, second = ask(handler), ask(handler)
    assert not first.is_done
    assert len(controller.asked) == 1
    request, _ = controller.asked[0]
    assert (request.broker_id, request.broker_epoch) == (1, 77)
    controller.allocate(3)
    assert (first.result().producer_id, second.result().producer_id) == (0, 1)
    third = ask(handler).result()
    assert (third.error_code, third.producer_id, third.producer_epoch) == (0, 2, 0)
    assert controller.asked == []


def test_producer_ids_are_unique_across_blocks(controller: Controller, handler: TransactionHandlers) -> None:
    given = []
    for _ in range(20):
        answer = ask(handler)
        if controller.asked:
            controller.allocate(3)
        given.append(answer.result().producer_id)
    assert given == list(range(20))


def test_more_requests_than_a_block_request_another_block(controller: Controller, handler: TransactionHandlers) -> None:
    answers = [ask(handler) for _ in range(5)]
    controller.allocate(3)
    assert [answer.is_done for answer in answers] == [True] * 3 + [False] * 2
    controller.allocate(3)
    assert [answer.result().producer_id for answer in answers] == [0, 1, 2, 3, 4]


def test_a_controller_error_is_retriable_for_clients(controller: Controller, handler: TransactionHandlers) -> None:
    answer = ask(handler)
    controller.refuse()
    assert answer.result().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    answer = ask(handler)
    controller.allocate()
    assert answer.result().error_code == 0


def test_an_idempotent_producer_always_gets_a_new_id(controller: Controller, handler: TransactionHandlers) -> None:
    answer = ask(handler, producer_id=55, producer_epoch=3)
    controller.allocate()
    assert (answer.result().producer_id, answer.result().producer_epoch) == (0, 0)


def test_requests_with_a_transactional_id_go_to_its_coordinator(handler: TransactionHandlers) -> None:
    assert ask(handler, "tx").result().error_code == ErrorCode.NOT_COORDINATOR
    assert ask(handler, "").result().error_code == ErrorCode.INVALID_REQUEST
