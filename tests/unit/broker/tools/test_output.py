"""The tools when standard output is closed, or its disk is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_TOOLS = {
    "doctor": ["doctor", "."],
    "dump-log": ["dump-log", "plain-0/00000000000000000000.log", "--deep-iteration"],
    "convert": ["convert", "--log-dir", ".", "--to", "commitlog", "--dry-run"],
}
_ROOT = Path(__file__).parents[4]


def run(data: Path, tool: str, redirection: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "barnabas", *_TOOLS[tool]]
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$@" {redirection}', "bash", *command],
        capture_output=True, text=True, cwd=data, env={"PYTHONPATH": str(_ROOT)}, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("tool", _TOOLS)
def test_an_error_of_standard_output_is_one_sentence(data: Path, tool: str) -> None:
    done = run(data, tool, "> /dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "barnabas: Standard output cannot be written: No space left on device.\n",
    )
    done = run(data, tool, ">&-")
    assert (done.returncode, done.stderr) == (1, "barnabas: Standard output is closed.\n")


def test_the_doctors_exit_status_does_not_depend_on_the_reader_of_its_report(data: Path) -> None:
    done = run(data, "doctor", "| true")
    assert (done.returncode, done.stderr) == (0, "")
