"""Benchmarks start the chosen build on the chosen interpreter, and name both."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from tests.benchmark import interpreters
from tests.benchmark.builds import ROOT, Build, MeasuredBroker
from tests.benchmark.interpreters import (
    Interpreter,
    best_interpreter,
    interpreter_at,
    interpreter_for_venv,
    this_interpreter,
)

PLAIN = Interpreter("/plain/python3", "3.11.7", [])
FAST = Interpreter("/fast/python3", "3.11.2", ["PGO", "LTO"])
DEBUG = Interpreter("/debug/python3", "3.11.2", ["PGO", "debug"])
NEWER = Interpreter("/newer/python3", "3.12.1", ["PGO"])
BARE = Interpreter("/bare/python3", "3.11.2", ["PGO", "LTO"], can_make_venv=False)


@pytest.mark.parametrize(
    ("variables", "prefix", "features"),
    [
        ({"CONFIG_ARGS": "'--enable-optimizations' '--with-lto=full'"}, "/usr/local", ["PGO", "LTO"]),
        ({"PY_CORE_CFLAGS": "-O2 -flto -fprofile-use"}, "/opt", ["PGO", "LTO"]),
        ({"CONFIG_ARGS": "'--enable-shared'", "PY_CORE_CFLAGS": "-O3"}, "/opt", []),
        ({"CONFIG_ARGS": "'--with-pydebug'", "Py_DEBUG": 1}, "/opt", ["debug"]),
    ],
)
def test_the_build_is_what_configure_recorded(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, object], prefix: str, features: list[str]
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_vars", lambda: variables)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    assert this_interpreter().features == features


@pytest.mark.parametrize(("prefix", "features"), [("/usr", ["PGO", "LTO"]), ("/usr/local", [])])
def test_debians_own_python_is_optimised_though_it_does_not_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str, features: list[str]
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_vars", lambda: {"CONFIG_ARGS": "'--enable-shared' '--prefix=/usr'"})
    monkeypatch.setattr(sys, "base_prefix", prefix)
    monkeypatch.setattr(interpreters, "_DEBIAN", tmp_path)
    assert this_interpreter().features == features


def test_an_executable_describes_itself() -> None:
    """The probe runs in it; a virtual environment is described as the interpreter that it was made with."""
    assert interpreter_at(sys.executable) == this_interpreter()
    assert interpreter_at("/bin/false") is None


@pytest.mark.parametrize(
    ("own", "others", "best"),
    [(FAST, [PLAIN], FAST), (PLAIN, [DEBUG, FAST], FAST), (PLAIN, [DEBUG], PLAIN)],
)
def test_the_first_optimised_interpreter_is_chosen(
    monkeypatch: pytest.MonkeyPatch, own: Interpreter, others: list[Interpreter], best: Interpreter
) -> None:
    monkeypatch.setattr(interpreters, "this_interpreter", lambda: own)
    monkeypatch.setattr(interpreters, "_others", lambda: iter(others))
    assert best_interpreter() == best


@pytest.mark.parametrize(
    ("own", "others", "best"),
    [(FAST, [PLAIN], FAST), (PLAIN, [DEBUG, NEWER, BARE, FAST], FAST), (PLAIN, [DEBUG, NEWER, BARE], PLAIN)],
)
def test_the_environment_gets_an_optimised_interpreter_of_the_same_minor_version(
    monkeypatch: pytest.MonkeyPatch, own: Interpreter, others: list[Interpreter], best: Interpreter
) -> None:
    monkeypatch.setattr(interpreters, "this_interpreter", lambda: own)
    monkeypatch.setattr(interpreters, "_others", lambda: iter(others))
    assert interpreter_for_venv() == best


def test_a_measured_broker_is_that_of_its_build() -> None:
    broker = MeasuredBroker(Build(Path("/env/python"), Path("/before")), settings={"num.partitions": 4})
    command = broker._command()
    assert command[:4] == ["/env/python", "-P", "/before/barnabas/__main__.py", "serve"]
    assert command[-2:] == ["--set", "num.partitions=4"]
    assert sys.executable not in command


def test_a_build_is_described_by_its_own_words() -> None:
    assert Build(Path(sys.executable), ROOT).describe().startswith("barnabas ")


def test_the_bytecode_of_a_build_is_written_before_it_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in ("barnabas", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").touch()
    Build(Path(sys.executable), tmp_path).compile_bytecode()
    assert [path.parts[-3] for path in tmp_path.rglob("*.pyc")] == ["barnabas"]
