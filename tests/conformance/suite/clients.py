"""The clients of the suite: how each driver is built and started, or why it cannot be here.

RULES    1. Builds lie in the user's cache directory and are done once for what stands in the driver's folder.
         2. A toolchain that is missing makes a client absent, with a sentence; a build that fails is an error.
NOT HERE What drivers answer (their own sources), versions (go.mod, package.json, Cargo.toml, constraints.txt).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Client(NamedTuple):
    """One client library with its driver; `command` builds it when need be and may raise `NotHere`.

    `is_quick` says whether that takes seconds.
    """

    name: str
    language: str
    command: Callable[[], list[str]]
    is_quick: Callable[[], bool] = lambda: True


class NotHere(RuntimeError):
    """A toolchain is missing."""


def _python(module: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-m", f"tests.conformance.python.{module}"]


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barnabas" / "conformance"
HERE = Path(__file__).parent.parent


def _tool(name: str, what: str) -> str:
    """A program of a toolchain, or why the client cannot be here."""
    found = shutil.which(name)
    if found is None:
        raise NotHere(f"no {name} on the path: install {what}")
    return found


def _run(command: list[str], where: Path, **environment: str) -> None:
    """Run a step of a build; its last lines are the error's message."""
    done = subprocess.run(
        command,
        cwd=where,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-3000:].decode(errors="replace")
        raise RuntimeError(f"{' '.join(command)} failed in {where}:\n{said}")


def _go(client: str) -> Callable[[], list[str]]:
    """Go's build cache knows what is up to date."""

    def command() -> list[str]:
        program = CACHE / "go-driver"
        _run([_tool("go", "Go 1.26"), "build", "-o", str(program), "."], HERE / "go")
        return [str(program), client]

    return command


CLIENTS = (
    Client("kafka-python", "Python", _python("kafka_python")),
    Client("aiokafka", "Python", _python("aiokafka_driver")),
    Client("confluent-kafka", "Python", _python("confluent")),
    Client("franz-go", "Go", _go("franz-go")),
    Client("sarama", "Go", _go("sarama")),
)
