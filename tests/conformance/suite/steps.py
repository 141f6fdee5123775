"""The elements of scenarios: steps, each a verb with its expectations.

FORMAT   A driver reads one JSON object per line, {"verb": …, argument: …}, and answers with one per line:
             {"told": {…}}                              success, with the result
             {"refused": CODE or NAME, "message": …}    the broker's error code, or the client's own name of the error
             {"unsupported": REASON}                    the client has no such function
         Bytes are base64. A record is {partition, key, value, headers: [[name, bytes]…], timestamp}, and a consumed one also
         has {offset}. `docs/conformance.md` lists the verbs.
RULES    1. A string that starts with $ is a name that is unique to the run: topics, groups, transactional ids.
         2. An expectation checks only the fields that it names.
         3. `becomes` repeats the request until the response is as expected; `gives` sends it once.
         4. A driver's arguments are HOST:PORT and, on a secured listener, a JSON object with the fields of `Login`
            (`tests/support/security_profiles.py`). It connects at the first request, so an error of that is a refusal:
            `authentication` and `certificate` where the client has no code for it.
NOT HERE Running the steps (`player.py`), the scenarios (`tables/`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Record(NamedTuple):
    """A record that a scenario writes or expects; a timestamp or offset of None is not compared."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    offset: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "key": encoded(self.key),
            "value": encoded(self.value),
            "headers": [[name, encoded(value)] for name, value in self.headers],
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_json(cls, response: Mapping[str, Any]) -> Record:
        return cls(
            response["partition"],
            decoded(response["key"]),
            decoded(response["value"]),
            tuple((name, decoded(value)) for name, value in response["headers"]),
            response["timestamp"],
            response["offset"],
        )

    def accepts(self, read: Record) -> bool:
        """Whether a consumed record matches this one."""
        return (
            self[:4] == read[:4]
            and self.timestamp in (None, read.timestamp)
            and self.offset in (None, read.offset)
        )  # fmt: skip


def encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Matcher(NamedTuple):
    """An expectation other than equality."""

    says: str
    holds: Callable[[Any], bool]

    def __repr__(self) -> str:
        return self.says


class Naming(NamedTuple):
    """A matcher with names of the run; made when the names are known."""

    make: Callable[[Any], Matcher]
    value: Any


class Step(NamedTuple):
    """One verb, the process that runs it, and the expectations."""

    verb: str
    arguments: Mapping[str, Any]
    process: str = "main"
    expected: Mapping[str, Any] | None = None
    refusals: tuple[str, ...] = ()
    is_eventual: bool = False

    def by(self, process: str) -> Step:
        """Runs the step in another process of the client, which may be killed."""
        return self._replace(process=process)

    def gives(self, **expected: Any) -> Step:
        return self._replace(expected=expected)

    def becomes(self, **expected: Any) -> Step:
        """The response eventually has these values."""
        return self._replace(expected=expected, is_eventual=True)

    def is_refused(self, *names: str) -> Step:
        """The response is one of these errors: the broker's, or the client's own name of it."""
        return self._replace(refusals=names)


class Scenario(NamedTuple):
    """Steps that every client runs."""

    subject: str
    name: str
    steps: tuple[Step, ...]


def scenario(subject: str, name: str, *steps: Step) -> Scenario:
    return Scenario(subject, name, steps)


def do(verb: str, **arguments: Any) -> Step:
    return Step(verb, arguments)


def kill(process: str) -> Step:
    return Step("kill", {}, process)


def members(*names: str) -> Step:
    """The combined state of these members of a group; a member of another process is name@process.

    The response: shares (sorted numbers of partitions), assigned (sorted [topic, partition]) and values (a set).
    """
    return Step("members", {"names": names})


def meanwhile(step: Step, *names: str) -> Step:
    """`members` after another step, which is repeated before every attempt."""
    return Step("members", {"names": names, "before": step})


def containing(*values: Any) -> Naming:
    """A list with at least these elements."""
    return Naming(
        lambda all_: Matcher(f"all of {all_} and perhaps more", lambda found: set(all_) <= set(found)), values
    )


def without(value: Any) -> Naming:
    """A list without this element."""
    return Naming(lambda one: Matcher(f"anything without {one}", lambda found: one not in found), value)


def including(**pairs: Any) -> Naming:
    """A mapping with at least these entries; names have _ for a dot."""
    wanted = {name.replace("_", "."): value for name, value in pairs.items()}
    return Naming(
        lambda all_: Matcher(
            f"{all_} and perhaps more",
            lambda found: not any(mismatch(value, found.get(key)) for key, value in all_.items()),
        ),
        wanted,
    )


def at_least(all_: frozenset[bytes]) -> Matcher:
    """A set with at least these elements."""
    return Matcher(f"all of {_short(sorted(all_))}", lambda found: all_ <= found)


def one_of(*values: Any) -> Matcher:
    return Matcher(f"one of {values}", lambda found: found in values)


def all_of(topic: str, partitions: int) -> list[list[Any]]:
    """Every partition of a topic, in the format of `assigned`."""
    return [[topic, index] for index in range(partitions)]


def numbered(count: int, partitions: int = 1, start: int = 0) -> list[Record]:
    """Records "0", "1", … distributed round-robin over the partitions."""
    return [Record(number % partitions, b"k", b"%d" % number) for number in range(start, start + count)]


def values(count: int, start: int = 0) -> frozenset[bytes]:
    """The values of `numbered`, in the format of `members`."""
    return frozenset(b"%d" % number for number in range(start, start + count))


def mismatch(expected: Any, found: Any) -> str | None:
    """Why a response differs from the expectation; None if it does not."""
    if isinstance(expected, Matcher):
        return None if expected.holds(found) else f"{_short(found)} instead of {expected.says}"
    if isinstance(expected, Sequence) and expected and isinstance(expected[0], Record):
        return _records_mismatch(sorted(expected, key=lambda record: record.partition), found)
    return None if expected == found else f"{_short(found)} instead of {_short(expected)}"


def _records_mismatch(expected: Sequence[Record], response: Sequence[Mapping[str, Any]]) -> str | None:
    read = sorted((Record.from_json(one) for one in response), key=lambda record: (record.partition, record.offset))
    if len(read) != len(expected):
        return f"{len(read)} records instead of {len(expected)}"
    for index, (wanted, got) in enumerate(zip(expected, read, strict=True)):
        if not wanted.accepts(got):
            return f"record {index}: {_short(got)} instead of {_short(wanted)}"
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
