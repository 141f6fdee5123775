"""`barnabas pipeline` where only `pip install barnabas` was run: without Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from barnabas.__main__ import main; sys.exit(main())"


def barnabas(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [("pipeline", "--help"), ("man", "pipeline")])
def test_help_names_the_jobs(arguments: tuple[str, ...]) -> None:
    done = barnabas(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Compare an archive with its topics, record by record." in done.stdout


def test_completion_names_the_jobs() -> None:
    done = barnabas(_BARNABAS_COMPLETE="bash_complete", COMP_WORDS="barnabas pipeline a", COMP_CWORD="2")
    assert (done.stdout.split(), done.stderr) == (["plain,aggregate", "plain,archive", "plain,audit"], "")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--topic", "flights", "--into", "/data")])
def test_a_job_says_what_is_missing(arguments: tuple[str, ...]) -> None:
    done = barnabas("pipeline", "archive", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"barnabas: pyspark\S* is missing: pip install 'barnabas\[spark\]'\.\n", done.stderr)
