"""What the admin verbs share: the client, options, results of several items, times.

RULES    1. A verb that works on several items goes on after one that failed, prints its sentence, and ends with exit code 1.
         2. A change that loses records, offsets or settings is shown first, and made with --execute.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from barnabas.cli.connection import Connection, connect_to, connection_options
from barnabas.cli.number_options import FiniteRange, number_ranges
from barnabas.cli.output import json_option, note, print_rows
from barnabas.cli.times import parse_duration_ms, parse_moment_ms
from barnabas.client.errors import BAD_EXPRESSION, ClientError

if TYPE_CHECKING:
    from barnabas.admin.client import Client
    from barnabas.client.topic_partition import TopicPartition

Item = TypeVar("Item")
NOT_EXECUTED = "Nothing was changed: repeat it with --execute."
COMPLETION_TIMEOUT_S = 2.0
MAX_TIMEOUT_S = ((1 << 31) - 1) // 1000
"""Requests have it as a 32-bit number of milliseconds."""
_YEAR_10000_MS = 253_402_300_800_000
"""The first time that datetime does not have."""


def cluster_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a verb with the connection options, --timeout and --json; it gets `cluster` and `as_json`."""

    @connection_options
    @click.option(
        "--timeout",
        "timeout_s",
        metavar="S",
        type=FiniteRange(min=0.1, max=MAX_TIMEOUT_S),
        default=30.0,
        help="Give up after S seconds.  [default: 30]",
    )
    @json_option
    @wraps(verb)
    def with_cluster(*args: Any, connection: Connection, timeout_s: float, **kwargs: Any) -> Any:
        return verb(*args, cluster=ClusterOptions(connection, timeout_s), **kwargs)

    return with_cluster


class ClusterOptions:
    """The cluster that the options name, and how long to wait for it."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        from barnabas.client.kafka_python import prepare

        prepare()
        self.connection = connection
        self.timeout_s = timeout_s

    @contextmanager
    def connect(self) -> Iterator[Client]:
        """Connects for the length of a `with` block. Raises ClientError.

        Only to a node that has answered: kafka-python would wait for another one, which is silent, until the timeout.
        """
        settings = self.connection.for_kafka_python()
        settings["bootstrap_servers"] = [self.connection.check(self.timeout_s)]
        from barnabas.admin.client import Client

        with Client(settings, self.timeout_s) as client:
            yield client


def complete_topics(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names of topics for a shell; none if the cluster does not answer soon."""

    def names(client: Client) -> Iterable[str]:
        from barnabas.admin.topics import list_topics

        return (row.name for row in list_topics(client) if not row.internal)

    return _complete(context, incomplete, names)


def complete_groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names of groups for a shell, without those with control characters; none if the cluster does not answer soon."""

    def names(client: Client) -> Iterable[str]:
        from barnabas.admin.groups import list_groups

        return (row.name for row in list_groups(client))

    return _complete(context, incomplete, names)


def _complete(context: click.Context, incomplete: str, names: Callable[[Client], Iterable[str]]) -> list[str]:
    given = context.params
    try:
        connection = connect_to(given.get("bootstrap"), given.get("command_config"), given.get("properties") or ())
        with ClusterOptions(connection, COMPLETION_TIMEOUT_S).connect() as client:
            return [name for name in names(client) if name.startswith(incomplete) and name.isprintable()]
    except (ClientError, click.UsageError, OSError):
        return []


def execute_option(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a verb with --execute (rule 2)."""
    return click.option("--execute", is_flag=True, help="Make the change; without it, only show it.")(verb)


def confirm_option(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a verb with --yes; see `confirm`."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask, on a terminal.")(verb)


def confirm(question: str, *, yes: bool) -> None:
    """Asks on a terminal; programs are not asked. Raises click.Abort."""
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)


def for_each(items: Iterable[Item], action: Callable[[Item], Any]) -> tuple[list[Any], int]:
    """Calls `action` with each item (rule 1). Returns what it returned for those that succeeded, and the exit code."""
    from barnabas.admin.errors import Refused

    results, exit_code = [], 0
    for item in items:
        try:
            results.append(action(item))
        except Refused as failure:
            note_failures([failure])
            exit_code = 1
    return results, exit_code


def note_failures(failures: Iterable[ClientError]) -> None:
    """Prints the sentences of items that failed (rule 1)."""
    for failure in failures:
        note(f"barnabas: {failure}")


def show(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool) -> None:
    """Prints rows; a column is spelled with _ in JSON, with - in the heading of a table."""
    print_rows(columns if as_json else [name.replace("_", "-") for name in columns], rows, as_json=as_json)


def show_tuples(kind: Any, rows: Iterable[Any], *, as_json: bool) -> None:
    """Prints rows of a NamedTuple class; columns are its fields."""
    names = kind._fields
    show(names, [[as_object(getattr(row, name)) for name in names] for row in rows], as_json=as_json)


def as_object(value: Any) -> Any:
    """A NamedTuple, with those in it, as dictionaries for JSON."""
    if hasattr(value, "_asdict"):
        return {name: as_object(item) for name, item in value._asdict().items()}
    if isinstance(value, list):
        return [as_object(item) for item in value]
    return value


def topic_partitions(client: Client, texts: Iterable[str]) -> list[TopicPartition]:
    """The partitions of TOPIC or TOPIC:0,2,4-6. Raises Refused for what is missing, ArgumentError for a bad text."""
    from barnabas.admin.topics import partitions_of
    from barnabas.client.topic_partition import TopicPartition

    found: set[TopicPartition] = set()
    for text in texts:
        topic, colon, numbers = text.partition(":")
        existing = partitions_of(client, [topic])
        chosen = _numbers(topic, numbers, len(existing)) if colon else range(len(existing))
        found |= {TopicPartition(topic, number) for number in chosen}
    return sorted(found)


def _numbers(topic: str, text: str, count: int) -> Iterator[int]:
    """The numbers of a list. Raises ArgumentError, and Refused for one that is not below `count`."""
    from barnabas.admin.errors import Refused

    for numbers in number_ranges(text):
        if numbers[-1] >= count:
            raise Refused(f"Topic {topic} has no partition {numbers[-1]}: it has {count}.")
        yield from numbers


def broker_ids(option: str, text: str) -> list[int]:
    """Splits 1,2,3. Raises click.UsageError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as failure:
        raise click.UsageError(f"{option} takes broker ids such as 1,2,3, not {text!r}.") from failure


def duration_ms(option: str, text: str) -> int:
    """Parses a duration (`times.py`). Raises click.UsageError."""
    found = parse_duration_ms(text)
    if found is None:
        raise click.UsageError(f"{option} takes a duration such as 90s, 1h30m or PT1H, not {text!r}.")
    return found


def time_ms(option: str, text: str) -> int:
    """Parses a moment (`times.py`) into Unix milliseconds. Raises click.UsageError."""
    found = parse_moment_ms(text, now_ms())
    if found is None:
        raise click.UsageError(f"{option} takes 2026-01-31T12:00:00, Unix time, -1h or now, not {text!r}.")
    return found


def now_ms() -> int:
    """The time now, in ms since 1970."""
    return round(datetime.now(UTC).timestamp() * 1000)


def time_text(at_ms: int) -> str | None:
    """A time in UTC, after the year 9999 in ms since 1970; None for -1, which means unknown."""
    if at_ms < 0:
        return None
    if at_ms >= _YEAR_10000_MS:
        return str(at_ms)
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def size_text(count: float) -> str:
    """A number of bytes for people: 512 B, 1.5 KiB, 20.0 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression for names; groups may have any characters in theirs. Raises click.UsageError."""
    try:
        return re.compile(pattern, re.DOTALL)
    except BAD_EXPRESSION as failure:
        raise click.UsageError(f"{pattern!r} is not a regular expression: {failure}.") from failure
