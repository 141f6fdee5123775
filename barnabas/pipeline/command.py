"""The command `barnabas pipeline`, with one sub-command per job.

RULES    1. An error that the user can fix (a missing package, Java, the broker) is one sentence and exit code 1.
         2. A job's modules, and Spark, are imported when the job is called.
NOT HERE The jobs (`jobs/`), running one (`job_runner.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.job_runner import Job, job_command


def _formats(archive: Path | None, *named: str | None) -> list[str]:
    """The formats with extra jars (`jars.py`) that the settings or the archive's metadata name."""
    from barnabas.pipeline.spark.jars import FORMATS
    from barnabas.pipeline.store.folder import ArchiveFolder

    names = set(named)
    if archive is not None and (folder := ArchiveFolder(archive)).exists():
        metadata = folder.metadata()
        names |= {metadata.sink, metadata.decoding["format"]}
    return [name for name in FORMATS if name in names]


def _archive() -> Job:
    from barnabas.pipeline.jobs.archive.archive import ArchiveSettings, archive

    def formats(settings: ArchiveSettings) -> list[str]:
        return _formats(settings.into, settings.decode, settings.format)

    return Job("archive", "Topics to Parquet, Delta or Iceberg, exactly once.", ArchiveSettings, archive, formats)


def _audit() -> Job:
    from barnabas.pipeline.jobs.audit.audit import AuditSettings, audit

    help_text = "A topic against its archive: do they hold the same?"
    return Job("audit", help_text, AuditSettings, audit, lambda settings: _formats(settings.archive))


def _replay() -> Job:
    from barnabas.pipeline.jobs.replay import ReplaySettings, replay

    help_text = "A window of an archive or a topic into a topic again, once."
    return Job("replay", help_text, ReplaySettings, replay, lambda settings: _formats(settings.archive))


def _table() -> Job:
    from barnabas.pipeline.jobs.table import TableSettings, table

    return Job("table", "The latest value of each key of a topic, brought up to date.", TableSettings, table)


def _aggregate() -> Job:
    from barnabas.pipeline.jobs.aggregate.aggregate import AggregateSettings, aggregate

    def formats(settings: AggregateSettings) -> list[str]:
        return ["avro"] if settings.decode == "avro" else []

    help_text = "Windows of event time over a topic: counts, sums and averages by group."
    return Job("aggregate", help_text, AggregateSettings, aggregate, formats)


def _search() -> Job:
    from barnabas.pipeline.jobs.search import SearchSettings, search

    help_text = "Records by key, time, header or JSON path, in topic and archive."
    return Job("search", help_text, SearchSettings, search, lambda settings: _formats(settings.archive))


def _stats() -> Job:
    from barnabas.pipeline.jobs.stats import StatsSettings, stats

    return Job("stats", "Rates, sizes, skew of keys and lag over time, drawn.", StatsSettings, stats)


JOBS: dict[str, Callable[[], Job]] = {
    "archive": _archive,
    "audit": _audit,
    "replay": _replay,
    "table": _table,
    "aggregate": _aggregate,
    "search": _search,
    "stats": _stats,
}
"""Imports a job, by its name."""


def all_jobs() -> list[Job]:
    """Returns every job that accepts a settings file."""
    return [load() for load in JOBS.values()]


class Jobs(click.Group):
    """A group that imports jobs on demand (rule 2)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the jobs."""
        return sorted([*super().list_commands(ctx), *JOBS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of a job."""
        if cmd_name not in JOBS:
            return super().get_command(ctx, cmd_name)
        try:
            return job_command(JOBS[cmd_name](), all_jobs)
        except ModuleNotFoundError as missing:
            raise click.ClickException(f"{missing.name} is missing: pip install 'barnabas[spark]'.") from missing


@click.group(cls=Jobs)
def pipeline() -> None:
    """Run a Spark job on a broker."""


@pipeline.command()
@click.option("--bootstrap", metavar="HOST:PORT", help="Use this broker instead of starting one.")
@click.option("--rows", type=click.IntRange(min=1), help="The number of flights.  [default: all 336,776]")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("barnabas-demo"),
    show_default=True,
    help="The folder of the plot.",
)
def demo(bootstrap: str | None, rows: int | None, output: Path) -> None:
    """A year of real flights through a broker, Spark and consumers, every figure checked."""
    try:
        from barnabas.pipeline.demo.demo import NoBroker, Options, run_demo
    except ImportError as missing:
        raise click.ClickException(f"{missing.name} is missing: pip install 'barnabas[demo]'.") from missing
    from kafka.errors import KafkaError

    from barnabas.embedded import BrokerError
    from barnabas.pipeline.demo.flights import NoFlights
    from barnabas.pipeline.session import NoJava

    try:
        exit_code = run_demo(Options(bootstrap, rows, output))
    except (NoJava, NoFlights, NoBroker, BrokerError) as failure:
        raise click.ClickException(str(failure)) from failure
    except KafkaError as failure:
        raise click.ClickException(f"The broker refused: {failure}") from failure
    raise SystemExit(exit_code)


def main(args: list[str]) -> int:
    """Runs the command and returns its exit code."""
    try:
        pipeline.main(args, prog_name="barnabas pipeline", standalone_mode=False)
    except JobError as failure:
        click.echo(f"Error: {failure}", err=True)
        return 1
    except click.ClickException as failure:
        failure.show()
        return failure.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except SystemExit as end:
        return int(end.code or 0)
    return 0
