"""`barnabas top`: what a cluster does now, as a live view, or once for programs.

RULES    1. Rates are between two samples. The live view goes on when a sample fails, and shows why. A terminal that cannot move
            its cursor (TERM=dumb) has no live view.
         2. rich is imported on a terminal only.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from barnabas.cli.admin.common import ClusterOptions, as_object, cluster_options, duration_ms, show, size_text
from barnabas.cli.output import print_json, visible
from barnabas.cli.verb import run_verb
from barnabas.client.errors import ClientError

if TYPE_CHECKING:
    from rich.console import Group

    from barnabas.admin.activity import Sample
    from barnabas.admin.client import Client
    from barnabas.admin.metrics_page import PageSample

_TOPICS = ("topic", "partitions", "records_per_s", "size", "growth_per_s", "under_replicated", "offline")
_GROUPS = ("group", "type", "state", "lag", "lag_per_s", "committed_per_s", "catch_up")
_NODES = ("node", "address", "controller", "fenced", "leaders", "replicas")
Rows = list[tuple[Any, ...]]


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(top, "top", arguments)


class Both(NamedTuple):
    """A sample of the cluster, and of its metrics pages if there are any."""

    cluster: Sample
    pages: PageSample | None


@click.command()
@click.option("--once", is_flag=True, help="Print it once, after one interval, and end.")
@click.option("--interval", metavar="DURATION", default="2s", help="Between two samples: 500ms, 5s.  [default: 2s]")
@click.option("--internal", is_flag=True, help="Also topics of the cluster itself.")
@click.option(
    "--metrics", "pages", metavar="HOST:PORT", multiple=True, help="The metrics page of a node; may be repeated."
)
@cluster_options
def top(
    *, once: bool, interval: str, internal: bool, pages: tuple[str, ...], cluster: ClusterOptions, as_json: bool
) -> None:
    """Watch a cluster. Shows topics, groups with lag, nodes, and with --metrics requests and connections.

    Without a terminal, on a dumb one, and with --json, it prints a view for each interval until it is interrupted.
    """
    pause_s = max(0.1, duration_ms("--interval", interval) / 1000)
    with cluster.connect() as client:
        before = _sample(client, pages, internal=internal)
        if once or as_json or not _has_live_view():
            while True:
                time.sleep(pause_s)
                after = _sample(client, pages, internal=internal)
                _print(before, after, as_json=as_json)
                before = after
                if once:
                    return
        _watch(client, before, pause_s, pages, internal=internal)


def _has_live_view() -> bool:
    """Whether standard output is a terminal that can replace what it shows."""
    if not sys.stdout.isatty():
        return False
    from rich.console import Console

    return not Console().is_dumb_terminal


def _sample(client: Client, pages: tuple[str, ...], *, internal: bool) -> Both:
    from barnabas.admin.activity import take_sample

    found = take_sample(client, time.monotonic(), internal=internal)
    if not pages:
        return Both(found, None)
    from barnabas.admin.metrics_page import read_pages

    return Both(found, read_pages(pages, time.monotonic()))


def _print(before: Both, after: Both, *, as_json: bool) -> None:
    from barnabas.admin.activity import group_rates, topic_rates

    if as_json:
        fields = {
            "cluster": after.cluster.cluster,
            "seconds": round(after.cluster.at_s - before.cluster.at_s, 3),
            "topics": [as_object(row) for row in topic_rates(before.cluster, after.cluster)],
            "groups": [as_object(row) for row in group_rates(before.cluster, after.cluster)],
            "nodes": [dict(zip(_NODES, row, strict=True)) for row in _node_rows(after.cluster)],
        }
        print_json({**fields, **_page_fields(before.pages, after.pages)})
        return
    click.echo(_headline(before, after))
    for columns, rows in _tables(before, after):
        click.echo()
        show(columns, rows, as_json=False)


def _page_fields(before: PageSample | None, after: PageSample | None) -> dict[str, Any]:
    if before is None or after is None:
        return {}
    from barnabas.admin.metrics_page import request_rates

    seconds = after.at_s - before.at_s
    return {
        "connections": None if after.connections is None else round(after.connections),
        "bytes_in_per_s": max(0.0, after.bytes_in - before.bytes_in) / seconds,  # a restarted node counts from 0
        "bytes_out_per_s": max(0.0, after.bytes_out - before.bytes_out) / seconds,
        "requests_per_s": dict(request_rates(before, after)),
    }


def _headline(before: Both, after: Both) -> str:
    from barnabas.admin.activity import topic_rates

    now = after.cluster
    rate = sum(row.records_per_s for row in topic_rates(before.cluster, now))
    words = [f"cluster {now.cluster}", _counted(len(now.nodes), "node"), _counted(len(now.topics), "topic")]
    words.append(f"{rate:,.0f} records/s")
    words.append(f"lag {sum(group.lag for group in now.groups.values()):,}")
    lacking = sum(topic.under_replicated for topic in now.topics.values())
    offline = sum(topic.offline for topic in now.topics.values())
    words += [f"{_counted(lacking, 'partition')} under-replicated"] if lacking else []
    words += [f"{_counted(offline, 'partition')} without leader"] if offline else []
    if found := _page_fields(before.pages, after.pages):
        words += [] if found["connections"] is None else [_counted(found["connections"], "connection")]
        words.append(f"in {size_text(found['bytes_in_per_s'])}/s, out {size_text(found['bytes_out_per_s'])}/s")
    return "   ".join(words)


def _tables(before: Both, after: Both) -> list[tuple[tuple[str, ...], Rows]]:
    from barnabas.admin.activity import group_rates, topic_rates

    topics: Rows = [
        (
            row.topic,
            row.partitions,
            f"{row.records_per_s:.1f}",
            _size(row.bytes),
            _size(row.bytes_per_s),
            row.under_replicated,
            row.offline,
        )
        for row in topic_rates(before.cluster, after.cluster)
    ]
    groups: Rows = [
        (
            row.group,
            row.type,
            row.state,
            row.lag,
            f"{row.lag_per_s:.1f}",
            f"{row.committed_per_s:.1f}",
            _span(row.catch_up_s),
        )
        for row in group_rates(before.cluster, after.cluster)
    ]
    requests = list(_page_fields(before.pages, after.pages).get("requests_per_s", {}).items())
    tables = [(_TOPICS, topics), (_GROUPS, groups), (_NODES, _node_rows(after.cluster))]
    if requests:
        tables.append((("request", "per_s"), [(api, f"{rate:.1f}") for api, rate in requests]))
    return tables


def _node_rows(sample: Sample) -> Rows:
    return [
        (number, node.address, number == sample.controller, node.fenced, node.leaders, node.replicas)
        for number, node in sample.nodes.items()
    ]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size(count: float | None) -> str | None:
    return None if count is None else size_text(count).replace(" ", "")


def _span(seconds: float | None) -> str | None:
    """A time for people: 12s, 3m, 5h, 2d; None: never."""
    if seconds is None:
        return None
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _watch(client: Client, before: Both, pause_s: float, pages: tuple[str, ...], *, internal: bool) -> None:
    """The live view, until a signal (rule 1)."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        after, problem = before, ""
        live.update(Text(f"cluster {before.cluster.cluster}: the first rates follow in {pause_s:g} s"), refresh=True)
        while True:
            if after is not before:
                live.update(_view(before, after, problem, console.height), refresh=True)
            time.sleep(pause_s)
            try:
                now = _sample(client, pages, internal=internal)
            except ClientError as failure:
                problem = str(failure)
            else:
                before, after, problem = after, now, ""


def _view(before: Both, after: Both, problem: str, height: int) -> Group:
    """Tables of at most the terminal's height; the busiest rows are first."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = [Text(_headline(before, after), style="bold")]
    if problem:
        parts.append(Text(problem, style="red"))
    tables = [(columns, rows) for columns, rows in _tables(before, after) if rows]
    share = max(2, (height - 3) // max(1, len(tables)) - 2)
    for columns, rows in tables:
        table = Table(box=None, pad_edge=False, header_style="bold cyan")
        for name in columns:
            table.add_column(
                name.replace("_", "-").upper(), justify="left" if name == columns[0] else "right", no_wrap=True
            )
        for row in rows[:share]:
            table.add_row(*(Text("-" if cell is None or cell == "" else visible(str(cell))) for cell in row))
        parts += [Text(""), table]
        if len(rows) > share:
            parts.append(Text(f"and {len(rows) - share} more", style="dim"))
    return Group(*parts)
