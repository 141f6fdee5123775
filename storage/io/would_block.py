"""What would wait for the disk, as closed work for a thread: news from a log to whoever may not wait (design D6).

RULES    1. Only who asks with `may_block=False` hears of it; nothing has happened then, and the same question may be
            asked again once `run` and `finish` are done. What `run` found is at hand then: the next asking gets
            further, however cold the disk stays.
         2. `run` sees what was closed over and nothing else; it may run in any thread. A KafkaError (damaged batches) is
            what it found, a StorageError is raised.
         3. `finish` runs on the thread that asked, and makes what was found known. By then the world may have changed:
            what does not fit any more is dropped.
         4. When all who waited have asked again, `forget` drops what nobody else may be told.
         5. Who finds the same thing being looked for already is handed the same object, so it is done once.
NOT HERE Threads, and who waits (`replication/partition/replica_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from protocol.errors import KafkaError

T = TypeVar("T")


class WouldBlock(Exception, Generic[T]):
    """The answer needs the disk, and the caller did not want to wait."""

    def __init__(
        self,
        look: Callable[[], T],
        adopt: Callable[[T | KafkaError], object],
        forget: Callable[[], object] | None = None,
    ) -> None:
        """`look` is the closed work, `adopt` takes what it returned, or the KafkaError that it raised."""
        super().__init__()
        self._look = look
        self._adopt = adopt
        self._forget = forget
        self._outcome: T | KafkaError | None = None

    def run(self) -> None:
        """Wait for the disk.

        Raises:
            StorageError: the disk failed.
        """
        try:
            self._outcome = self._look()
        except KafkaError as error:
            self._outcome = error

    def finish(self) -> None:
        """Make known what `run` found; not to be called when it raised."""
        self._adopt(self._outcome)  # type: ignore[arg-type]  # `run` came before

    def forget(self) -> None:
        """Those who waited have asked again."""
        if self._forget is not None:
            self._forget()
