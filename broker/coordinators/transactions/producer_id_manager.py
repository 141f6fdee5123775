"""Generates producer ids from blocks of the controller (Kafka: ProducerIdManager).

RULES    1. The rest of a block is lost in a crash and never used again.
         2. A new block is requested when the last one is used up; requests wait for it. After an error of the controller
            they get COORDINATOR_LOAD_IN_PROGRESS.
NOT HERE The users (`transaction_coordinator.py`, `handlers/transactions/transactions.py`), the next block
         (`replication/controller/`).
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.quorum import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from replication.completion import Completion
from replication.controller.controller_client import Controller


class ProducerIdManager:
    """Generates producer ids."""

    def __init__(self, controller: Controller, broker_id: int, broker_epoch: Callable[[], int]) -> None:
        """`broker_epoch` returns the epoch of this broker's registration."""
        self._controller = controller
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._next = 0
        self._end = 0
        self._in_flight = False
        self._waiting: list[Completion[int]] = []

    def generate_producer_id(self) -> Completion[int]:
        """A new id, or a KafkaError after an error of the controller."""
        generated: Completion[int] = Completion()
        self._waiting.append(generated)
        self._serve()
        return generated

    def _serve(self) -> None:
        while self._waiting and self._next < self._end:
            producer_id = self._next
            self._next += 1
            self._waiting.pop(0).complete(producer_id)
        if self._waiting and not self._in_flight:
            self._in_flight = True
            request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
            self._controller.submit(request).then(self._on_block)

    def _on_block(self, done: Completion[AllocateProducerIdsResponse]) -> None:
        response = done.result()
        self._in_flight = False
        if response.error_code:
            waiting, self._waiting = self._waiting, []
            for generated in waiting:
                generated.fail(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len
        self._serve()
