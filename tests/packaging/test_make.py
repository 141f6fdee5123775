"""Error messages of the Makefile for missing tools."""

from __future__ import annotations

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


def test_an_old_python_is_reported(checkout: Path) -> None:
    """One line, non-zero exit code, nothing built."""
    old = checkout / "python-old"
    old.write_text(OLD)
    old.chmod(0o755)
    outcome = make(checkout, "run", f"PYTHON={old}")
    assert outcome.returncode != 0
    assert outcome.stderr.startswith(f"Barnabas needs Python 3.11 or newer; {old} is Python 3.8.2: install one")
    assert not (checkout / ".venv").exists()


def test_a_missing_python_is_reported(checkout: Path) -> None:
    outcome = make(checkout, "test", "PYTHON=/no/such/python")
    assert outcome.returncode != 0
    assert outcome.stderr.startswith("Barnabas needs Python 3.11 or newer; /no/such/python is not there: install one")


def test_a_python_without_venv_is_reported(checkout: Path) -> None:
    """Debian's python3 has no venv module."""
    bare = checkout / "python-bare"
    bare.write_text(BARE)
    bare.chmod(0o755)
    outcome = make(checkout, "run", f"PYTHON={bare}")
    assert outcome.returncode != 0
    assert "cannot make a virtual environment: install its venv module (Debian: python3-venv)" in outcome.stderr


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
