"""`barnabas --version` names the build."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from barnabas import __main__ as command


@pytest.mark.parametrize(
    ("library", "build"),
    [
        (None, "pure Python"),
        (f"barnabas__mypyc{EXTENSION_SUFFIXES[0]}", "compiled"),
        ("barnabas__mypyc.cpython-39-of-another-interpreter.so", "pure Python"),
    ],
)
def test_the_version_names_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], library: str | None, build: str
) -> None:
    monkeypatch.setattr(command, "daemon_folder", lambda: str(tmp_path))
    if library is not None:
        (tmp_path / library).touch()
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f" ({build})\n")


def test_a_compiled_build_runs_its_libraries() -> None:
    """The file that `--version` looks for is the library that the modules come from."""
    from protocol import records

    assert (not str(records.__file__).endswith(".py")) is command.is_compiled()
    assert ("barnabas__mypyc" in sys.modules) is command.is_compiled()
