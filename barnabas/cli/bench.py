"""`barnabas bench`: measures a cluster with librdkafka, prints a table and draws it.

RULES    1. Without --topic it makes a topic of its own, and deletes it at the end, also after Ctrl-C.
         2. An existing topic is only read, unless `produce` or `latency` is named.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.admin.common import ClusterOptions, cluster_options, complete_topics, duration_ms, show, size_text
from barnabas.cli.number_options import FiniteRange
from barnabas.cli.output import note, print_json
from barnabas.cli.verb import run_verb
from barnabas.client.errors import ClientError

if TYPE_CHECKING:
    from barnabas.admin.client import Client
    from barnabas.bench.loads import Load, Result
    from barnabas.client.topic_partition import TopicPartition

LOADS = ("produce", "consume", "latency")
MAX_SIZE = 100_000_000
"""Far above the default of max.message.bytes; librdkafka takes 1,000,000,000 at most."""
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_COLUMNS = ("load", "records", "seconds", "records_per_s", "bytes_per_s", "p50_ms", "p95_ms", "p99_ms", "p99.9_ms")
_TITLES = {"produce": "produce, ms until the acknowledgement", "latency": "end to end, ms"}
_BAR_CHARS = 30


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(bench, "bench", arguments)


@click.command()
@click.argument("loads", metavar="[produce|consume|latency]...", nargs=-1, type=click.Choice(LOADS))
@click.option(
    "--topic",
    metavar="NAME",
    shell_complete=complete_topics,
    help="An existing topic.  [default: one of its own, deleted at the end]",
)
@click.option(
    "-p", "--partitions", metavar="N", type=click.IntRange(min=1), default=6, help="Of its own topic.  [default: 6]"
)
@click.option(
    "-r",
    "--replicas",
    metavar="N",
    type=click.IntRange(min=1),
    help="Of its own topic.  [default: the cluster's setting]",
)
@click.option(
    "-s",
    "--size",
    metavar="BYTES",
    type=click.IntRange(1, MAX_SIZE),
    default=1024,
    help="Of a value.  [default: 1024]",
)
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", help="Acknowledgements.  [default: all]")
@click.option(
    "--compression", type=click.Choice(COMPRESSIONS), default="none", help="Values compress to half.  [default: none]"
)
@click.option("-d", "--duration", metavar="DURATION", default="10s", help="Of each load: 30s, 5m.  [default: 10s]")
@click.option(
    "--rate", metavar="N", type=FiniteRange(min=0.1), help="Records per second.  [default: as fast as possible]"
)
@cluster_options
def bench(
    loads: tuple[str, ...],
    *,
    topic: str | None,
    partitions: int,
    replicas: int | None,
    duration: str,
    cluster: ClusterOptions,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure a cluster. Produces, consumes, and measures end-to-end latency, or only the loads that are named.

    Values are hexadecimal digits. `consume` reads what `produce` wrote. `latency` sends one record at a time.
    """
    chosen = [name for name in LOADS if name in loads] if loads else list(LOADS) if topic is None else ["consume"]
    if topic is None and chosen == ["consume"]:
        raise click.UsageError("A topic of its own is empty: name a topic with --topic, or add produce.")
    seconds = duration_ms("--duration", duration) / 1000
    if not seconds:
        raise click.UsageError("--duration is 0: nothing would be measured.")
    try:
        from barnabas.bench.loads import Load
    except ImportError as missing:
        raise ClientError(f"{missing.name} is missing: pip install confluent-kafka.") from missing
    settings = _librdkafka(cluster)
    with cluster.connect() as client, _topic(client, topic, partitions, replicas) as name:
        load = Load(name, options["size"], seconds, options["rate"], options["acks"], options["compression"])
        results = [_run(client, test, settings, load) for test in chosen]
    if as_json:
        for result in results:
            print_json(_fields(result, load))
        return
    show(_COLUMNS, [_row(result) for result in results], as_json=False)
    _draw(results)


def _librdkafka(cluster: ClusterOptions) -> dict[str, Any]:
    from barnabas.client.client_settings import for_librdkafka, is_security_setting

    connection = cluster.connection
    as_kafka_python = connection.for_kafka_python()
    security = {name: value for name, value in connection.settings.items() if is_security_setting(name)}
    return {
        **for_librdkafka(security),
        "client.id": as_kafka_python["client_id"],
        "bootstrap.servers": ",".join(as_kafka_python["bootstrap_servers"]),
        "log_level": 0,
    }


@contextmanager
def _topic(client: Client, given: str | None, partitions: int, replicas: int | None) -> Iterator[str]:
    """The name of the topic (rule 1)."""
    from barnabas.admin.topics import DEFAULT, create_topic, delete_topic

    if given is not None:
        yield given
        return
    name = f"barnabas-bench-{secrets.token_hex(4)}"
    create_topic(client, name, partitions=partitions, replicas=replicas or DEFAULT)
    try:
        yield name
    finally:
        delete_topic(client, name)


def _run(client: Client, name: str, settings: dict[str, Any], load: Load) -> Result:
    from barnabas.bench import loads

    found = _leaders_known(client, load.topic)
    with _progress(name) as progress:
        return {"produce": loads.produce, "consume": loads.consume, "latency": loads.latency}[name](
            client, found, settings, load, progress
        )


def _leaders_known(client: Client, topic: str) -> list[TopicPartition]:
    from barnabas.admin.topics import partitions_of

    return partitions_of(client, [topic])


@contextmanager
def _progress(name: str) -> Iterator[Any]:
    """A bar on standard error, if that is a terminal."""
    from barnabas.bench.figures import bar

    is_terminal = sys.stderr.isatty()

    def progress(share: float, count: int) -> None:
        if is_terminal:
            sys.stderr.write(
                f"\r\x1b[K{name:8}{bar(share, _BAR_CHARS):{_BAR_CHARS}} {min(1.0, share):4.0%}  {count:,} records"
            )
            sys.stderr.flush()

    yield progress
    if is_terminal:
        sys.stderr.write("\r\x1b[K")


def _row(result: Result) -> tuple[Any, ...]:
    from barnabas.bench.figures import percentiles

    times = percentiles(result.latencies_ms) if result.latencies_ms else {}
    latencies = [f"{times[name]:.2f}" if times else None for name in ("p50", "p95", "p99", "p99.9")]
    speed = f"{size_text(result.bytes_per_s).replace(' ', '')}"
    return (result.name, result.records, f"{result.seconds:.1f}", f"{result.records_per_s:.0f}", speed, *latencies)


def _fields(result: Result, load: Load) -> dict[str, Any]:
    from barnabas.bench.figures import percentiles

    fields = {
        "load": result.name,
        "records": result.records,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
    }
    fields |= {"records_per_s": round(result.records_per_s, 1), "bytes_per_s": round(result.bytes_per_s, 1)}
    times = {name: round(value, 3) for name, value in percentiles(result.latencies_ms).items()}
    given = {"size": load.size, "acks": load.acks, "compression": load.compression, "rate": load.rate}
    more = {"client_cpu": round(result.client_cpu, 3), "by_second": result.by_second, "settings": given}
    return {**fields, "latency_ms": times if result.latencies_ms else None, **more}


def _draw(results: list[Result]) -> None:
    """Draws records by second, and the latencies; says where the client was the limit."""
    from barnabas.bench.figures import histogram, sparkline

    sys.stdout.flush()  # the table is before the drawing
    for result in results:
        if len(result.by_second) > 1:
            note(f"{result.name} by second  {sparkline(result.by_second)}  at most {max(result.by_second):,} records/s")
    for result in results:
        for line in ["", _TITLES[result.name], *histogram(result.latencies_ms)] if result.latencies_ms else []:
            note(line)
    for result in results:
        if result.client_cpu > 0.9 and result.name != "latency":
            note(f"{result.name}: this client used {result.client_cpu:.0%} of a core and may have been the limit.")
