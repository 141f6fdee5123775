"""`barnabas consume`: prints the records of topics.

RULES    1. What it prints, `barnabas produce` takes back, byte for byte.
         2. Whole records are printed: a signal ends the verb between two pages.
NOT HERE How it is done (`consuming.py`), which is imported when the verb is called.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from barnabas.cli.admin.common import complete_groups, complete_topics
from barnabas.cli.connection import Connection, connection_options
from barnabas.cli.verb import run_verb, stop_signals


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@connection_options
@click.option(
    "-o", "--offset", default="start", metavar="RANGE", help="Which records: start, 17, 5:10, +5, -100, :end, @-1h:end."
)
@click.option("-p", "--partition", "partitions", metavar="LIST", help="Only these partitions, such as 0,2,4-6.")
@click.option("-r", "--regex", is_flag=True, help="The topics are regular expressions; they match no internal topics.")
@click.option("-F", "--follow", is_flag=True, help="Wait for new records at the end.")
@click.option("-n", "--count", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option(
    "-g",
    "--group",
    shell_complete=complete_groups,
    help="Read as a member of this group, and commit what was printed.",
)
@click.option(
    "--read-committed/--read-uncommitted", default=True, show_default=True, help="Hide open and aborted transactions."
)
@click.option("--grep", "values", multiple=True, metavar="REGEX", help="Only records whose value matches.")
@click.option("--grep-key", "keys", multiple=True, metavar="REGEX", help="Only records whose key matches.")
@click.option(
    "--grep-header", "headers", multiple=True, metavar="NAME[=REGEX]", help="Only records with such a header."
)
@click.option(
    "--json-path", "paths", multiple=True, metavar="PATH[=VALUE]", help="Only JSON values that have it: .order.id=7."
)
@click.option(
    "-f",
    "--format",
    "layout",
    metavar="FORMAT",
    help="How a record is printed: %t %p %o %k %v %h{%k=%v} %d.  [default: JSON]",
)
@click.option("--kcat", is_flag=True, help="FORMAT is kcat's: %s is the value; without -f, print as kcat -J.")
@click.option("--json", "_as_json", is_flag=True, help="Print JSON; the default.")
@click.option("-Z", "--null", default="", metavar="TEXT", help="Print null keys and values as TEXT with -f.")
@click.option("--meta-only", is_flag=True, help="Print no values (JSON).")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no notes.")
def consume(topics: tuple[str, ...], connection: Connection, **options: Any) -> None:
    """Print the records of TOPICs, one JSON object in a line, from the start to the end.

    \b
    barnabas consume orders -o -10               the last ten of each partition
    barnabas consume orders -o @-1h -F           the last hour, and what is written from now on
    barnabas consume orders | barnabas produce -b other:9092
    """  # noqa: D301 click's mark
    from barnabas.cli.consuming import ConsumeOptions, run_consume

    options.pop("_as_json")
    run_consume(connection, ConsumeOptions(topics=topics, **options), stop_signals())


main = partial(run_verb, consume, "consume", takes_bytes=True)
