"""A job as a command: settings from file and command line, a Spark session, the job, its report, an exit code.

RULES    1. Whatever a user can mend is one sentence and exit code 1; a job whose answer is no (an audit that does not agree)
            ends with 3.
         2. The broker is looked for before Spark is started: that costs ten seconds.
         3. Scratch files go when the job has ended. What Spark said is kept when it failed, and the sentence says where.
NOT HERE Which jobs there are (`command.py`).
"""

from __future__ import annotations

import errno
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from barnabas.pipeline.settings import BrokerSettings, filled, options_of, read_settings
from barnabas.pipeline.telling import Telling
from barnabas.pipeline.trouble import JobError, sentence_of

ANSWER_IS_NO = 3


class Job(NamedTuple):
    """A job and what it takes. `run` gets the session, the settings, and whom to tell of each step."""

    name: str
    words: str
    settings: type
    run: Callable[[Any, Any, Callable[[dict[str, Any]], None]], Any]
    formats: Callable[[Any], Sequence[str]] = lambda _: ()
    """The formats that need jars of their own, by the settings."""


def command_of(job: Job, all_jobs: Callable[[], Sequence[Job]]) -> click.Command:
    """The sub-command of a job."""
    from barnabas.pipeline.session import SessionSettings

    own = [
        click.Option(
            ["--settings", "file"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="A TOML file with these settings.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Say everything as JSON lines."),
    ]

    def run(*, file: Path | None, as_json: bool, **given: Any) -> None:
        said: Mapping[str, Any] = {}
        if file is not None:
            said = read_settings(file, job.name, {one.name: (one.settings, SessionSettings) for one in all_jobs()})
        values = {**said, **{name: value for name, value in given.items() if value not in (None, ())}}
        raise SystemExit(_run(job, values, Telling(job.name, as_json=as_json)))

    return click.Command(
        job.name, callback=run, params=[*options_of(job.settings, SessionSettings), *own], help=job.words
    )


def _run(job: Job, values: Mapping[str, Any], telling: Telling) -> int:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from barnabas.pipeline.brokers import Brokers
    from barnabas.pipeline.session import NoJava, SessionSettings, start_session

    settings: Any = filled(job.name, job.settings, values)
    wishes = filled(job.name, SessionSettings, values)
    if isinstance(settings, BrokerSettings):
        Brokers(settings)
    scratch = Path(tempfile.mkdtemp(prefix=f"barnabas-{job.name}-"))
    log = scratch / "spark.log"
    _stop_on_sigterm()
    try:
        spark, source = start_session(
            f"barnabas-{job.name}", scratch, log, wishes=wishes, formats=job.formats(settings)
        )
        telling.note(f"Spark {spark.version} on {wishes.master}, connector: {source}")
        try:
            report = job.run(spark, settings, telling.step)
        finally:
            spark.stop()
    except NoJava as failure:
        raise JobError(str(failure)) from failure
    except (PySparkException, Py4JError, OSError) as failure:
        if isinstance(failure, OSError) and failure.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise JobError(f"{_of_the_disk(failure) or sentence_of(failure)} {_keep(log, job.name)}") from failure
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    telling.report(report)
    return 0 if getattr(report, "agrees", True) else ANSWER_IS_NO


def _of_the_disk(failure: BaseException) -> str | None:
    if isinstance(failure, OSError):
        return f"The disk with {failure.filename or 'the archive'} is full: nothing of this round was kept."
    return None


def _keep(log: Path, job: str) -> str:
    if not log.exists():
        return ""
    kept = Path(tempfile.gettempdir()) / f"barnabas-{job}-spark.log"
    shutil.copyfile(log, kept)
    return f"Spark's own words are in {kept}."


def _stop_on_sigterm() -> None:
    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
