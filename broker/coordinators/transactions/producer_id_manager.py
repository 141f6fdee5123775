"""Producer ids that nobody has had before, out of blocks from the controller.

RULES    1. Ids of a block that are lost in a crash are not given again.
         2. A block is asked for when the last one is used up; who comes meanwhile waits for it. If the controller
            refuses, they get none.
NOT HERE Who is given one (`transaction_coordinator.py`, `handlers/transactions/producer_ids.py`), which block is next (`replication/controller/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocol.messages.quorum import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from protocol.schema import Message


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
