"""Runs one verb: its errors become one sentence and an exit code.

RULES    1. Exit code 0: done. 1: something failed; one sentence on standard error says what to do. 2: the arguments are
            wrong. 130, 143: SIGINT, SIGTERM.
         2. A closed pipe at standard output ends the verb silently with code 0: `| head` is no failure. Other errors of
            standard output, such as a full disk, are failures.
         3. Data is on standard output, in UTF-8 whatever the locale is; everything else is on standard error.
         4. A verb's own modules and libraries are imported when it is called, not for its help (a test measures it).
NOT HERE The verbs, the connection options (`connection.py`), tables (`output.py`).
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Any

import click

from barnabas.cli.output import note
from barnabas.client.errors import ArgumentError, ClientError, require_text
from barnabas.signals import Stopped, StopSignals

FAILED, MISUSED = 1, 2
_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Of an OSError without the name of a file; connections have others."""


def run_verb(command: click.Command, name: str, arguments: list[str], *, takes_bytes: bool = False) -> int:
    """Runs `barnabas NAME ARGUMENTS...`; returns the exit code. The verb finds its `StopSignals` with `stop_signals()`.

    Without `takes_bytes`, arguments must be UTF-8.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for the rest of the process
    if sys.stdout is None:
        return _say("Standard output is closed.")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        with StopSignals() as stopping:
            for text in () if takes_bytes else arguments:
                require_text("The command", text)
            result = _invoke(command, name, arguments, stopping)
            sys.stdout.flush()
    except Stopped as stopped:
        return _flushed(stopped.exit_code)
    except click.ClickException as failure:
        failure.show()
        return failure.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _flushed(128 + signal.SIGINT)
    except BrokenPipeError:
        _drop_output()
        return 0
    except Exception as failure:
        sentence = describe(failure)
        if sentence is None:
            raise
        return _flushed(_say(sentence, MISUSED if isinstance(failure, ArgumentError) else FAILED))
    return result if isinstance(result, int) else 0


def _invoke(command: click.Command, name: str, arguments: list[str], stopping: StopSignals) -> Any:
    """As `click.Command.main`, which would make exit code 1 of a closed pipe."""
    try:
        with command.make_context(
            f"barnabas {name}", list(arguments), obj=stopping, help_option_names=["-h", "--help"]
        ) as context:
            return command.invoke(context)
    except click.exceptions.Exit as done:  # --help
        return done.exit_code


def stop_signals() -> StopSignals:
    """The signal handling of the running verb."""
    found = click.get_current_context().find_object(StopSignals)
    assert found is not None, "called outside of run_verb"
    return found


def describe(failure: Exception) -> str | None:
    """One sentence for a failure that the user can do something about; None for a bug, which keeps its traceback."""
    if isinstance(failure, ClientError):
        return str(failure)
    if isinstance(failure, OSError) and failure.filename is not None:
        return f"{failure.filename} cannot be used: {failure.strerror}."
    if isinstance(failure, OSError) and failure.errno in _OUTPUT_ERRORS:
        return f"Standard output cannot be written: {failure.strerror}."
    if _is_of("kafka.errors", "KafkaError", failure):
        return _kafka_python(failure)
    if _is_of("confluent_kafka", "KafkaException", failure):
        return f"The cluster refused: {failure.args[0].str()}."
    return None


def _kafka_python(failure: Exception) -> str:
    name = type(failure).__name__
    if name in {"NoBrokersAvailable", "KafkaConnectionError", "NodeNotReadyError", "KafkaTimeoutError"}:
        return f"The cluster does not answer: {str(failure) or name}. Check --bootstrap and the listener's security."
    if name.endswith("AuthorizationFailedError"):
        resource = name.removesuffix("AuthorizationFailedError").lower()
        return (
            f"The cluster denies {' '.join((resource, *map(str, failure.args)))}: grant the right with barnabas acls."
        )
    return f"The cluster refused: {str(failure) or name}."


def _is_of(module: str, name: str, failure: Exception) -> bool:
    """Whether it is an error of a library, which is not imported to find out."""
    loaded: Any = sys.modules.get(module)
    return loaded is not None and isinstance(failure, getattr(loaded, name))


def _say(sentence: str, exit_code: int = FAILED) -> int:
    note(f"barnabas: {sentence}")
    return exit_code


def _flushed(exit_code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:  # a closed pipe, or what the verb has just said
        _drop_output()
    return exit_code


def _drop_output() -> None:
    """Python flushes standard output at its end, which would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
