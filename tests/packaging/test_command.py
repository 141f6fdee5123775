"""The command `barnabas`: dispatch and error messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_repository_runs_its_own_daemon_files() -> None:
    """An editable install runs the repository's files."""
    assert daemon_folder() == str(ROOT)


def pipeline(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "barnabas", "pipeline", *args],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_demo_reports_missing_java(tmp_path: Path) -> None:
    """One line with the remedy, before anything is started."""
    pytest.importorskip("pyspark")
    outcome = pipeline("demo", "--output", str(tmp_path), PATH=str(tmp_path), JAVA_HOME="")
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("Error: Spark needs Java and there is none on the path: install a JDK 17")
    assert outcome.stdout == ""


def test_the_demo_reports_old_java(tmp_path: Path) -> None:
    """Java 8 and 11 are refused."""
    pytest.importorskip("pyspark")
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    outcome = pipeline("demo", "--output", str(tmp_path), PATH=f"{tmp_path}:/usr/bin:/bin", JAVA_HOME="")
    assert outcome.returncode == 1
    assert f"Spark needs Java 17 and {java} is Java 11: install a JDK 17" in outcome.stderr


def test_the_demo_reports_an_unreachable_address(tmp_path: Path) -> None:
    """One line with the address."""
    pytest.importorskip("pyspark")
    outcome = pipeline("demo", "--output", str(tmp_path), "--bootstrap", "127.0.0.1:1")
    assert outcome.returncode == 1
    assert "No broker answers at 127.0.0.1:1" in outcome.stderr
