"""Error messages of the Makefile for missing tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLD = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.8.2' && exit 0\nexit 1\n"
BARE = '#!/bin/sh\n[ "$1" = -m ] && exit 1\nexit 0\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("make") is None:
        pytest.skip("no make on the path")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *args], cwd=checkout, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("target", "script", "message"),
    [
        pytest.param("run", OLD, r"^Barnabas needs Python 3\.11 or newer; {} is Python 3\.8\.2: install one", id="old"),
        pytest.param(
            "test", None, r"^Barnabas needs Python 3\.11 or newer; {} is not there: install one", id="missing"
        ),
        pytest.param(
            "run",
            BARE,
            r"cannot make a virtual environment: install its venv module \(Debian: python3-venv\)",
            id="without venv",
        ),
    ],
)
def test_an_unsuitable_python_is_reported(checkout: Path, target: str, script: str | None, message: str) -> None:
    """One line, non-zero exit code, nothing built. Debian's python3 has no venv module."""
    python = checkout / "other-python"
    if script is not None:
        python.write_text(script)
        python.chmod(0o755)
    outcome = make(checkout, target, f"PYTHON={python}")
    assert outcome.returncode != 0
    assert re.search(message.format(python), outcome.stderr)
    assert script == BARE or not (checkout / ".venv").exists()


def test_help_lists_the_targets(checkout: Path) -> None:
    """`make` without a target prints help and builds nothing."""
    outcome = make(checkout)
    assert outcome.returncode == 0
    listed = {line.split()[1] for line in outcome.stdout.splitlines()}
    assert {"run", "demo", "test", "check", "fmt", "bench", "setup"} <= listed
    assert not (checkout / ".venv").exists()


def test_no_file_names_a_package_index() -> None:
    """Versions are pinned; package indexes are configured by the environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run"):
        text = (ROOT / name).read_text()
        assert "http" not in text, name
        assert "index-url" not in text, name
