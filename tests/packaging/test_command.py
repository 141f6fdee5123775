"""The command `barnabas`: dispatch and error messages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from barnabas.__main__ import DAEMON_VERBS, USAGE, daemon_folder, main

ROOT = Path(__file__).parents[2]


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """Also without arguments."""
    assert main([]) == 0
    assert capsys.readouterr().out == USAGE
    for verb in (*DAEMON_VERBS, "pipeline"):
        assert f"\n  {verb} " in USAGE


def test_an_unknown_verb_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    assert main(["frobnicate"]) == 2
    assert capsys.readouterr().err == "barnabas: there is no verb 'frobnicate'; barnabas --help lists them.\n"


@pytest.mark.parametrize("verb", ["topics", "doctor"])
def test_ctrl_c_while_a_verb_is_imported_is_no_stack_trace(verb: str) -> None:
    """Which takes longer than all else that most verbs do."""
    with mock.patch("barnabas.__main__.import_module", side_effect=KeyboardInterrupt):
        assert main([verb]) == 128 + signal.SIGINT


def test_a_repository_runs_its_own_daemon_files() -> None:
    """An editable install runs the repository's files."""
    assert daemon_folder() == str(ROOT)


@pytest.mark.parametrize(
    ("args", "path", "message"),
    [
        pytest.param(
            (),
            "{tmp}",
            "^barnabas: Spark needs Java, which is not on the path: install a JDK 17",
            id="missing Java",
        ),
        pytest.param(
            (),
            "{tmp}/old:/usr/bin:/bin",
            "Spark needs Java 17 or newer, and {tmp}/old/java is Java 11: install a JDK 17",
            id="old Java",
        ),
        pytest.param(
            ("--bootstrap", "127.0.0.1:1"),
            os.environ["PATH"],
            "No broker answers at 127.0.0.1:1",
            id="unreachable address",
        ),
    ],
)
def test_the_demo_reports_what_is_missing(args: tuple[str, ...], path: str, message: str, tmp_path: Path) -> None:
    """One line with the remedy or the address, before anything is started."""
    pytest.importorskip("pyspark")
    java = tmp_path / "old" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    variables = {"PATH": path.format(tmp=tmp_path)} | ({} if args else {"JAVA_HOME": ""})
    outcome = subprocess.run(
        [sys.executable, "-m", "barnabas", "pipeline", "demo", "--output", str(tmp_path), *args],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 1
    assert re.search(message.format(tmp=tmp_path), outcome.stderr)
    assert outcome.stdout == ""
