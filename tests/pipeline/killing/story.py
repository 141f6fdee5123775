"""What every story of the kill tests is: a job, what it works on, moments to kill it at, and what must hold."""

from __future__ import annotations

import glob
import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from tests.pipeline.killing.topics import brokers_of

START_MS = 1_767_225_600_000
MINUTE_MS = 60_000


class Moment(NamedTuple):
    """Something that grows while a job works, and by how much it grows at most until the next kill."""

    count: Callable[[], int]
    most: int


class Story(ABC):
    """One job on topics of its own."""

    name: ClassVar[str]
    is_archive: ClassVar[bool] = False
    """Whether an audit has the last word."""
    has_steps: ClassVar[bool] = True
    """Whether the driver changes a folder, step by step."""
    apart_ms: ClassVar[int] = MINUTE_MS
    """From a record's timestamp to the next one's."""

    def __init__(self, bootstrap: str, folder: Path, rng: random.Random, environment: Mapping[str, str]) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.rng = rng
        self.environment = environment
        """How what it starts itself comes to a driver that is warm."""
        self.into = folder / "into"
        self.topic = f"killed-{self.name}-{secrets.token_hex(3)}"
        self.brokers = brokers_of(bootstrap)
        self.count = 0
        """How many records were sent."""

    @abstractmethod
    def send_more(self) -> None:
        """Have more to do for the next run."""

    @abstractmethod
    def words(self) -> list[str]:
        """The job and its options."""

    @abstractmethod
    def moments(self) -> dict[str, Moment]:
        """When it may be killed."""

    @abstractmethod
    def check(self) -> int:
        """What must hold after every kill; how many records are there."""

    @abstractmethod
    def check_all(self) -> None:
        """What must hold when a run was not disturbed."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to do."""
        return False

    def next_ms(self) -> int:
        """The timestamp of the next record."""
        self.count += 1
        return START_MS + self.count * self.apart_ms


def counted(folder: Path, pattern: str) -> Callable[[], int]:
    """How many names match below a folder, which may come and go."""
    return lambda: sum(1 for _ in glob.iglob(pattern, root_dir=folder, recursive=True))


def headers_of(number: int) -> tuple[tuple[str, bytes | None], ...]:
    """Headers of some records: two of a name, one without a value."""
    return (("a", b"%d" % number), ("a", None)) if number % 2 else ()
