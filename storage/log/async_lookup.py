"""Questions to an open log that only reading can answer, looked up by a thread in a copy of the engine.

RULES    1. An answer is told to those who asked while it was looked for, and then forgotten: a later one asks anew.
         2. When the log is cut or closed meanwhile, nobody gets the answer, and an error of the disk means nothing.
NOT HERE Finding a batch for a Fetch, where the answer is remembered (segments/lookups.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from protocol.errors import KafkaError
from storage.engine import Engine
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock

T = TypeVar("T")


class Elsewhere:
    """The questions to one engine."""

    __slots__ = ("_answers", "_engine", "_under_way")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._under_way: dict[Hashable, WouldBlock[object]] = {}
        self._answers: dict[Hashable, object] = {}

    def ask(self, question: Hashable, look: Callable[[Engine], T]) -> T:
        """What `look` finds in a copy of the engine.

        Raises:
            WouldBlock: nobody has looked yet.
            KafkaError: what was read makes no sense.
        """
        if question in self._answers:
            answer = self._answers[question]
            if isinstance(answer, KafkaError):
                raise answer
            return cast("T", answer)
        if question not in self._under_way:
            self._under_way[question] = self._question(question, look)
        raise self._under_way[question]  # which no name here may stand for: it would keep itself, by its own trace

    def give_up(self) -> None:
        """The log is cut or closed (rule 2)."""
        under_way, self._under_way = self._under_way, {}
        under_way.clear()  # each knows where it stood

    def _question(self, question: Hashable, look: Callable[[Engine], object]) -> WouldBlock[object]:
        engine, under_way, copy = self._engine, self._under_way, self._engine.copy()

        def is_obsolete() -> bool:
            return under_way is not self._under_way or engine.start_offset != copy.start_offset

        def closed_look() -> object:
            try:
                return look(copy)
            except StorageError:
                if is_obsolete():
                    return None
                raise

        def adopt(answer: object) -> None:
            under_way.pop(question, None)
            if not is_obsolete():
                engine.learn(copy)
                self._answers[question] = answer

        return WouldBlock(closed_look, adopt, lambda: self._answers.pop(question, None))
