"""The command `barnabas pipeline`, with one sub-command per job.

RULES    1. An error that the user can fix (a missing package, Java, the broker) is one sentence and exit code 1.
         2. A job's modules, and Spark, are imported when the job is called. Without Spark, help and completion still name the
            jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import click

from barnabas import pipeline as api
from barnabas.client.errors import ClientError, require_text
from barnabas.pipeline.job_runner import Job, job_command

JOBS = {
    "archive": "Write topics to Parquet, Delta or Iceberg, exactly once.",
    "audit": "Compare an archive with its topics, record by record.",
    "replay": "Send records of an archive or a topic again, exactly once.",
    "table": "Keep the latest value of each key of a topic as Parquet.",
    "aggregate": "Count, sum and average records by windows of event time.",
    "search": "Find records by key, time, header or JSON path.",
    "stats": "Draw rates, sizes, frequent keys and lag over time.",
}
"""The jobs, with their help texts. Function and settings of each are in `barnabas.pipeline`."""


def load_job(name: str) -> Job:
    """Imports a job."""
    return Job(name, JOBS[name], getattr(api, f"{name.capitalize()}Settings"), getattr(api, name))


def all_jobs() -> list[Job]:
    """Returns every job that accepts a settings file."""
    return [load_job(name) for name in JOBS]


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
            return job_command(load_job(cmd_name), all_jobs)
        except ModuleNotFoundError as missing:
            return _refusal(cmd_name, f"{missing.name} is missing: pip install 'barnabas[spark]'.")


def _refusal(job: str, reason: str) -> click.Command:
    """The command of a job that cannot be imported: whatever its arguments, it says why (rule 2)."""

    def refuse(**_: Any) -> NoReturn:
        raise click.ClickException(reason)

    arguments = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    context = {"ignore_unknown_options": True}
    return click.Command(job, context, refuse, [arguments], help=JOBS[job], add_help_option=False)


@click.group(cls=Jobs, context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Run a Spark job on the topics of any Kafka cluster.

    Exit status: 0 done, 1 failed, 2 the arguments are wrong, 3 the audit found differences; 130, 143 ended by SIGINT, SIGTERM.
    """


@pipeline.command()
@click.option("-b", "--bootstrap", metavar="HOST:PORT", help="Use this broker instead of starting one.")
@click.option(
    "--command-config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A file with settings of Kafka's clients, as Kafka's tools take it.",
)
@click.option("--rows", type=click.IntRange(min=1), help="The number of flights.  [default: all 336,776]")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("barnabas-demo"),
    show_default=True,
    help="The folder of the plot.",
)
def demo(bootstrap: str | None, command_config: Path | None, rows: int | None, output: Path) -> None:
    """Send flights through a broker, Spark and consumers.

    Every figure is checked.
    """
    try:
        from barnabas.pipeline.demo.demo import Options, run_demo
    except ImportError as missing:
        raise click.ClickException(f"{missing.name} is missing: pip install 'barnabas[demo]'.") from missing
    from confluent_kafka import KafkaException
    from kafka.errors import KafkaError

    from barnabas.embedded import BrokerError

    try:
        exit_code = run_demo(Options(bootstrap, rows, output, command_config))
    except BrokerError as failure:
        raise click.ClickException(str(failure)) from failure
    except (KafkaError, KafkaException) as failure:
        raise click.ClickException(f"The broker refused: {failure}") from failure
    raise SystemExit(exit_code)


def main(args: list[str]) -> int:
    """Runs the command and returns its exit code."""
    try:
        for text in args:
            require_text("The command", text)
        pipeline.main(args, prog_name="barnabas pipeline", standalone_mode=False)
    except click.UsageError as failure:
        failure.show()
        return failure.exit_code
    except (ClientError, click.ClickException) as failure:
        click.echo(f"barnabas: {failure}", err=True)
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    except SystemExit as end:
        return int(end.code or 0)
    return 0
