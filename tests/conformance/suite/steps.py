"""What scenarios are made of: steps, each a verb with what is expected of it.

FORMAT   A driver reads one JSON object a line, {"verb": …, argument: …}, and answers with one a line:
             {"told": {…}}                              done, and this was seen
             {"refused": CODE or NAME, "message": …}    the broker's error code, or the client's own name of an error
             {"unsupported": REASON}                    the client cannot be asked this
         Bytes travel in base64. A record is {partition, key, value, headers: [[name, bytes]…], timestamp}, and when it
         was read also {offset}. `docs/conformance.md` lists the verbs.
RULES    1. A string that begins with $ is a name of this run's own: topics, groups, transactional ids.
         2. An expectation names only what it is about; what else a driver tells is not looked at.
         3. `becomes` asks again until the answer is as expected; `gives` asks once.
NOT HERE Playing them (`playing.py`), the scenarios themselves (`tables/`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Record(NamedTuple):
    """A record as a scenario writes or expects it; what is None here for time and offset is not compared."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    offset: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As drivers read it."""
        return {
            "partition": self.partition,
            "key": _encoded(self.key),
            "value": _encoded(self.value),
            "headers": [[name, _encoded(value)] for name, value in self.headers],
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Record:
        """As drivers write it."""
        return cls(
            told["partition"],
            _decoded(told["key"]),
            _decoded(told["value"]),
            tuple((name, _decoded(value)) for name, value in told["headers"]),
            told["timestamp"],
            told["offset"],
        )

    def accepts(self, read: Record) -> bool:
        """Whether what was read is what was expected."""
        return (
            self[:4] == read[:4]
            and self.timestamp in (None, read.timestamp)
            and self.offset in (None, read.offset)
        )  # fmt: skip


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Matcher(NamedTuple):
    """An expectation that is more than a value."""

    says: str
    holds: Callable[[Any], bool]

    def __repr__(self) -> str:
        return self.says


class Naming(NamedTuple):
    """A matcher that holds names of this run's own: made when the names are known."""

    make: Callable[[Any], Matcher]
    value: Any


class Step(NamedTuple):
    """One verb, whom it is asked of, and what is expected."""

    verb: str
    arguments: Mapping[str, Any]
    process: str = "main"
    expected: Mapping[str, Any] | None = None
    refusals: tuple[str, ...] = ()
    is_eventual: bool = False

    def by(self, process: str) -> Step:
        """Ask another process of the same client: one that may be killed."""
        return self._replace(process=process)

    def gives(self, **expected: Any) -> Step:
        """The answer holds this."""
        return self._replace(expected=expected)

    def becomes(self, **expected: Any) -> Step:
        """The answer holds this sooner or later."""
        return self._replace(expected=expected, is_eventual=True)

    def is_refused(self, *names: str) -> Step:
        """The broker answers with one of these errors; a client's own name of an error stands beside the broker's."""
        return self._replace(refusals=names)


class Scenario(NamedTuple):
    """A story of a few steps that every client is asked to live through."""

    subject: str
    name: str
    steps: tuple[Step, ...]


def scenario(subject: str, name: str, *steps: Step) -> Scenario:
    """A row of a table."""
    return Scenario(subject, name, steps)


def do(verb: str, **arguments: Any) -> Step:
    """Ask a driver."""
    return Step(verb, arguments)


def kill(process: str) -> Step:
    """SIGKILL a process of the client."""
    return Step("kill", {}, process)


def members(*names: str) -> Step:
    """What these members of a group have and have seen, taken together; a member of another process is name@process.

    The answer: shares (sorted numbers of partitions), assigned (sorted [topic, partition]) and values (a set).
    """
    return Step("members", {"names": names})


def meanwhile(step: Step, *names: str) -> Step:
    """What `members` tells after another step, which is taken again before every look."""
    return Step("members", {"names": names, "before": step})


def containing(*values: Any) -> Naming:
    """A list that holds all of these, and perhaps more."""
    return Naming(
        lambda all_: Matcher(f"all of {all_} and perhaps more", lambda found: set(all_) <= set(found)), values
    )


def without(value: Any) -> Naming:
    """A list that does not hold this."""
    return Naming(lambda one: Matcher(f"anything without {one}", lambda found: one not in found), value)


def including(**pairs: Any) -> Naming:
    """A mapping that holds all of these, and perhaps more; names are written with _ for a dot."""
    wanted = {name.replace("_", "."): value for name, value in pairs.items()}
    return Naming(
        lambda all_: Matcher(
            f"{all_} and perhaps more",
            lambda found: not any(mismatch(value, found.get(key)) for key, value in all_.items()),
        ),
        wanted,
    )


def at_least(all_: frozenset[bytes]) -> Matcher:
    """A set that holds all of these, and perhaps more."""
    return Matcher(f"all of {_short(sorted(all_))}", lambda found: all_ <= found)


def one_of(*values: Any) -> Matcher:
    """Any of these."""
    return Matcher(f"one of {values}", lambda found: found in values)


def satisfying(says: str, holds: Callable[[Any], bool]) -> Matcher:
    """Anything that a function accepts."""
    return Matcher(says, holds)


def all_of(topic: str, partitions: int) -> list[list[Any]]:
    """Every partition of a topic, as `assigned` lists them."""
    return [[topic, index] for index in range(partitions)]


def numbered(count: int, partitions: int = 1, start: int = 0) -> list[Record]:
    """Records "0", "1", … dealt out to the partitions in turn."""
    return [Record(number % partitions, b"k", b"%d" % number) for number in range(start, start + count)]


def values(count: int, start: int = 0) -> frozenset[bytes]:
    """The values of `numbered`, as `members` tells them."""
    return frozenset(b"%d" % number for number in range(start, start + count))


def mismatch(expected: Any, found: Any) -> str | None:
    """Why an answer is not the expected one, in a sentence; None when it is."""
    if isinstance(expected, Matcher):
        return None if expected.holds(found) else f"{_short(found)} instead of {expected.says}"
    if isinstance(expected, Sequence) and expected and isinstance(expected[0], Record):
        return _records_mismatch(sorted(expected, key=lambda record: record.partition), found)
    return None if expected == found else f"{_short(found)} instead of {_short(expected)}"


def _records_mismatch(expected: Sequence[Record], told: Sequence[Mapping[str, Any]]) -> str | None:
    read = sorted((Record.from_json(one) for one in told), key=lambda record: (record.partition, record.offset))
    if len(read) != len(expected):
        return f"{len(read)} records instead of {len(expected)}"
    for place, (wanted, got) in enumerate(zip(expected, read, strict=True)):
        if not wanted.accepts(got):
            return f"record {place}: {_short(got)} instead of {_short(wanted)}"
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
