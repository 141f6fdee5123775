"""`barnabas produce`: writes records that it reads from standard input or a file.

RULES    1. It takes back what `barnabas consume` prints, byte for byte: key, value, headers, nulls, timestamp, partition.
         2. What was read is written before the verb ends, also after a signal; a transaction is aborted by a signal.
NOT HERE How it is done (`producing.py`), which is imported when the verb is called.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from barnabas.cli.admin.common import complete_topics
from barnabas.cli.connection import Connection, connection_options
from barnabas.cli.number_options import FiniteRange
from barnabas.cli.verb import run_verb, stop_signals

_COMPRESSIONS = click.Choice(("none", "gzip", "snappy", "lz4", "zstd"))


@click.command()
@click.argument("topic", required=False, shell_complete=complete_topics)
@connection_options
@click.option(
    "-p", "--partition", metavar="N|by-key", help="To this partition; by-key: ignore the partition of the input."
)
@click.option("-k", "--key", help="The key of records that have none.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Add a header to all; may be repeated."
)
@click.option("--timestamp", metavar="MS|now", help="The timestamp of all records; Unix milliseconds.")
@click.option(
    "-f",
    "--format",
    "layout",
    metavar="FORMAT",
    help=r"The input: '%k\t%v\n', '%K{big32}%k%V{big32}%v'.  [default: JSON lines]",
)
@click.option("--kcat", is_flag=True, help="FORMAT is kcat's: %s is the value; without -f, lines of kcat -J.")
@click.option("-l", "--lines", is_flag=True, help="Each line is a value.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="With --lines, a line is KEY, this text, and the value.")
@click.option("-D", "--delimiter", metavar="TEXT", help=r"With --lines, the text after a record.  [default: \n]")
@click.option(
    "-Z",
    "--null",
    metavar="TEXT",
    help="With another format than JSON, a key or value that is TEXT is null; '' for tombstones.",
)
@click.option("-z", "--compression", type=_COMPRESSIONS, default="none", show_default=True, help="Of the batches.")
@click.option(
    "--acks",
    type=click.Choice(("all", "1", "0")),
    default="all",
    show_default=True,
    help="With all, repeated batches are stored once.",
)
@click.option("--transactional-id", metavar="ID", help="Write the whole input in one transaction.")
@click.option("--rate", type=FiniteRange(min=0, min_open=True), metavar="N", help="At most N records per second.")
@click.option("-i", "--input", "source", metavar="FILE", help="Read this file instead of standard input.")
@click.option("--allow-auto-topic-creation", "may_create", is_flag=True, help="Let the cluster create the topic.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no notes.")
def produce(topic: str | None, connection: Connection, **options: Any) -> None:
    """Write records to TOPIC, or to the topic that each record names.

    \b
    echo '{"key":"a","value":"hello"}' | barnabas produce greetings
    echo hello | barnabas produce greetings --lines
    barnabas consume orders | barnabas produce -b other:9092
    """  # noqa: D301 click's mark
    from barnabas.cli.producing import ProduceOptions, run_produce

    run_produce(connection, ProduceOptions(topic=topic, **options), stop_signals())


main = partial(run_verb, produce, "produce", takes_bytes=True)
