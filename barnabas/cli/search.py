"""`barnabas search`: finds records by key or header in a topic with a key index (docs/search.md).

RULES    1. What an answer lacks is said on standard error: records that are not indexed yet, and older ones that match too.
NOT HERE The requests (`client/search.py`).
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import click

from barnabas.cli.admin.common import complete_topics, time_ms, time_text
from barnabas.cli.connection import Connection, connection_options
from barnabas.cli.output import json_option, note, print_json, print_rows
from barnabas.cli.verb import run_verb

if TYPE_CHECKING:
    from barnabas.client.search import FoundRecord, SearchAnswer

_COLUMNS = ("partition", "offset", "time", "key", "value", "headers")
_BOUNDS = ("partition", "from_offset", "to_offset", "end_offset", "from_time", "to_time", "cut")


@click.command()
@click.option("-t", "--topic", required=True, metavar="TOPIC", shell_complete=complete_topics, help="The topic.")
@click.option("-k", "--key", metavar="TEXT", help="Records with this key.")
@click.option("-H", "--header", metavar="NAME=VALUE", help="Records with this header.")
@click.option("--from", "since", metavar="MOMENT", help="Records with a timestamp from then on: -1h, 2026-01-31.")
@click.option("--to", "until", metavar="MOMENT", help="Records with a timestamp before then.")
@click.option(
    "--max", "limit", type=click.IntRange(1, 10_000), default=64, show_default=True, metavar="N", help="The newest N."
)
@click.option("--bounds", is_flag=True, help="Print from where to where the index is complete, instead of records.")
@connection_options
@json_option
def search(
    topic: str,
    *,
    key: str | None,
    header: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    bounds: bool,
    connection: Connection,
    as_json: bool,
) -> None:
    """Find the newest records with a key, or a header, in a topic with barnabas.index.keys.

    \b
    barnabas search -t orders -k 42 --from -1d
    barnabas search -t orders -H trace-id=7f3a --json
    """  # noqa: D301 click's mark
    field, value = _condition(key, header)
    times = time_ms("--from", since) if since else None, time_ms("--to", until) if until else None
    from barnabas.client import search as api

    first, last = (given if given is not None else free for given, free in zip(times, api.ALL_TIMES, strict=True))
    with closing(connection.cluster()) as cluster:
        answer = api.search(cluster, topic, field, value, (first, last), limit)
    if bounds:
        rows = [
            (*part[:4], time_text(part.from_timestamp), time_text(part.to_timestamp), part.is_cut)
            for part in answer.partitions
        ]
        print_rows(_BOUNDS, rows, as_json=as_json)
    elif as_json:
        for record in answer.records:
            print_json(_fields(record))
    else:
        print_rows(_COLUMNS, [_row(record) for record in answer.records])
    _note_limits(answer)


def _condition(key: str | None, header: str | None) -> tuple[str, bytes]:
    """The field and the value."""
    name, equals, value = (header or "").partition("=")
    if (key is None) == (header is None) or (header is not None and not (name and equals)):
        raise click.UsageError("Name what is searched: --key TEXT, or --header NAME=VALUE.")
    if key is not None:
        return "key", key.encode("utf-8", "surrogateescape")
    return f"header:{name}", value.encode("utf-8", "surrogateescape")


def _row(record: FoundRecord) -> tuple[object, ...]:
    headers = [f"{_text(name)}={'null' if value is None else _text(value)}" for name, value in record.headers]
    return (*record[1:3], time_text(record.timestamp), _text(record.key), _text(record.value), headers)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace").replace("\n", "\\n")


def _fields(record: FoundRecord) -> dict[str, object]:
    """As `consume` prints records."""
    from barnabas.cli.records.json_lines import json_value

    headers = [{"key": json_value(name), "value": json_value(value)} for name, value in record.headers]
    return {**record._asdict(), "key": json_value(record.key), "value": json_value(record.value), "headers": headers}


def _note_limits(answer: SearchAnswer) -> None:
    for part in answer.partitions:
        if part.to_offset < part.end_offset:
            behind = part.end_offset - part.to_offset
            note(
                f"Partition {part.partition}: the last {behind} offsets, from {part.to_offset} on, are not indexed yet."
            )
    if any(part.is_cut for part in answer.partitions):
        note("Older records match too: give a larger --max, or --to.")


main = partial(run_verb, search, "search")
