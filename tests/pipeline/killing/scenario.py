"""A scenario of the kill tests: a job, its input, triggers for kills, and checks."""

from __future__ import annotations

import glob
import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from tests.pipeline.killing.topics import PARTITIONS, Position, Record, send
from tests.pipeline.topics import MINUTE_MS, START_MS, create


class Trigger(NamedTuple):
    """A count that grows while a job works, and its largest growth until the next kill."""

    number: Callable[[], int]
    most: int


class Scenario(ABC):
    """A job on its own topics."""

    name: ClassVar[str]
    is_archive: ClassVar[bool] = False
    """Whether the result is audited."""
    has_steps: ClassVar[bool] = True
    """Whether the driver changes a folder step by step."""
    apart_ms: ClassVar[int] = MINUTE_MS
    """The time between two records' timestamps."""

    def __init__(self, bootstrap: str, folder: Path, rng: random.Random, environment: Mapping[str, str]) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.rng = rng
        self.environment = environment
        """The environment for jobs that use a warm driver."""
        self.into = folder / "into"
        self.topic = f"killed-{self.name}-{secrets.token_hex(3)}"
        self.brokers = create(bootstrap, self.topic, PARTITIONS)
        self.sent: dict[Position, Record] = {}
        self.count = 0
        """The number of records sent."""

    @abstractmethod
    def send_more(self) -> None:
        """Sends records for the next run."""

    @abstractmethod
    def words(self) -> list[str]:
        """Returns the job's command line."""

    @abstractmethod
    def triggers(self) -> dict[str, Trigger]:
        """Returns the triggers for kills."""

    @abstractmethod
    def check(self) -> int:
        """Checks what must hold after every kill; returns the number of records found."""

    @abstractmethod
    def check_complete(self) -> None:
        """Checks what must hold after an undisturbed run."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to send."""
        return False

    def send(self, portion: Sequence[tuple[int, Record]]) -> None:
        """Sends records to their partitions."""
        self.sent |= send(self.bootstrap, self.topic, portion)

    def next_ms(self) -> int:
        self.count += 1
        return START_MS + self.count * self.apart_ms


def count_matches(folder: Path, pattern: str) -> Callable[[], int]:
    """Returns a function that counts the names below a folder."""
    return lambda: sum(1 for _ in glob.iglob(pattern, root_dir=folder, recursive=True))


def headers_of(number: int) -> tuple[tuple[str, bytes | None], ...]:
    """Headers for some records: a repeated name, one null value."""
    return (("a", b"%d" % number), ("a", None)) if number % 2 else ()
