"""The verb `barnabas pipeline`: one sub-command a job.

RULES    1. What a user can mend (a package, Java, a broker that is not there) is one sentence and exit code 1.
         2. A job's modules, and with them Spark, are imported when the job is asked for.
NOT HERE The jobs (`jobs/`), how one is run (`running.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from barnabas.pipeline.running import Job, command_of
from barnabas.pipeline.trouble import JobError


def _archive() -> Job:
    from barnabas.pipeline.jobs.archive import ArchiveSettings, archive
    from barnabas.pipeline.store.folder import ArchiveFolder

    def formats(settings: ArchiveSettings) -> list[str]:
        folder = ArchiveFolder(settings.into)
        begun = folder.identity().decoding["format"] if folder.exists() else None
        return ["avro"] if "avro" in (begun, settings.decode) else []

    return Job("archive", "Topics to Parquet, exactly once.", ArchiveSettings, archive, formats)


def _audit() -> Job:
    from barnabas.pipeline.jobs.audit import AuditSettings, audit

    return Job("audit", "A topic against its archive: do they hold the same?", AuditSettings, audit)


def _replay() -> Job:
    from barnabas.pipeline.jobs.replay import ReplaySettings, replay

    return Job("replay", "A window of an archive or a topic into a topic again, once.", ReplaySettings, replay)


def _table() -> Job:
    from barnabas.pipeline.jobs.table import TableSettings, table

    return Job("table", "The latest value of each key of a topic, brought up to date.", TableSettings, table)


def _search() -> Job:
    from barnabas.pipeline.jobs.search import SearchSettings, search

    return Job("search", "Records by key, time, header or JSON path, in topic and archive.", SearchSettings, search)


def _stats() -> Job:
    from barnabas.pipeline.jobs.stats import StatsSettings, stats

    return Job("stats", "Rates, sizes, skew of keys and lag over time, drawn.", StatsSettings, stats)


JOBS: dict[str, Callable[[], Job]] = {
    "archive": _archive,
    "audit": _audit,
    "replay": _replay,
    "table": _table,
    "search": _search,
    "stats": _stats,
}
"""What imports a job, by its name."""


def all_jobs() -> list[Job]:
    """Every job that takes a settings file."""
    return [load() for load in JOBS.values()]


class Jobs(click.Group):
    """A group whose jobs are imported when they are asked for (rule 2)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The jobs' names."""
        return sorted([*super().list_commands(ctx), *JOBS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The sub-command of a job."""
        if cmd_name not in JOBS:
            return super().get_command(ctx, cmd_name)
        try:
            return command_of(JOBS[cmd_name](), all_jobs)
        except ModuleNotFoundError as missing:
            raise click.ClickException(f"{missing.name} is missing: pip install 'barnabas[spark]'.") from missing


@click.group(cls=Jobs)
def pipeline() -> None:
    """Run a Spark job on a broker."""


@pipeline.command()
@click.option("--bootstrap", metavar="HOST:PORT", help="Use this broker instead of starting one.")
@click.option("--rows", type=click.IntRange(min=1), help="So many flights instead of all 336,776.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("barnabas-demo"),
    show_default=True,
    help="Where the picture goes.",
)
def demo(bootstrap: str | None, rows: int | None, output: Path) -> None:
    """A year of real flights through a broker, Spark and consumers, every figure checked."""
    try:
        from barnabas.pipeline.demo import NoBroker, Options, run_demo
    except ImportError as missing:
        raise click.ClickException(f"{missing.name} is missing: pip install 'barnabas[demo]'.") from missing
    from kafka.errors import KafkaError

    from barnabas.embedded import BrokerError
    from barnabas.pipeline.flights import NoFlights
    from barnabas.pipeline.session import NoJava

    try:
        exit_code = run_demo(Options(bootstrap, rows, output))
    except (NoJava, NoFlights, NoBroker, BrokerError) as failure:
        raise click.ClickException(str(failure)) from failure
    except KafkaError as failure:
        raise click.ClickException(f"The broker refused: {failure}") from failure
    raise SystemExit(exit_code)


def main(args: list[str]) -> int:
    """Run the verb; the answer is the exit code."""
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
