"""CPythons on this machine and how they were built; only the standard library, so that each can run this file.

    PYTHON tests/benchmark/interpreters.py               describes PYTHON as JSON
    PYTHON tests/benchmark/interpreters.py --for-venv    prints the path of the interpreter that `make` builds .venv with

CPython is faster with PGO (profile-guided optimization) and LTO (link-time optimization). Most builds record both as options
of `configure`. Debian and Ubuntu build with both and remove them from `sysconfig`, because extensions would be built with them
too; an interpreter of their packages is recognised by its prefix.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

OLDEST = (3, 11)
_PROBE_LIMIT_S = 20.0
_DEBIAN = Path("/etc/debian_version")
_NAME = re.compile(r"python3(\.\d+)?")
_SYSTEM_FOLDERS = ("/usr/local/bin", "/usr/bin")
"""Searched after the path."""
_SIGNS = {
    "PGO": ("--enable-optimizations", "-fprofile-use", "-fprofile-instr-use"),
    "LTO": ("--with-lto", "-flto"),
    "BOLT": ("--enable-bolt",),
}
_MODES = {"debug": "Py_DEBUG", "free-threaded": "Py_GIL_DISABLED"}


class Interpreter(NamedTuple):
    path: str
    """Without symbolic links; of a virtual environment the one that it was made with."""
    version: str
    features: list[str]
    """PGO, LTO, debug, ...; empty for a plain build."""
    can_make_venv: bool = True
    """Whether it has what .venv needs: pip for a new environment, and the headers for `make compile`."""

    @property
    def is_optimised(self) -> bool:
        return "PGO" in self.features and "debug" not in self.features

    def __str__(self) -> str:
        return f"CPython {self.version} ({', '.join(self.features) or 'plain build'}), {self.path}"


def this_interpreter() -> Interpreter:
    """The interpreter of this process."""
    values = sysconfig.get_config_vars()
    recorded = " ".join(str(values.get(name)) for name in ("CONFIG_ARGS", "PY_CORE_CFLAGS", "PY_CORE_LDFLAGS"))
    features = [feature for feature, signs in _SIGNS.items() if any(sign in recorded for sign in signs)]
    if sys.base_prefix == "/usr" and _DEBIAN.exists():
        features = ["PGO", "LTO"]
    features += [feature for feature, name in _MODES.items() if values.get(name)]
    has_headers = Path(str(values.get("INCLUDEPY")), "Python.h").exists()
    can_make_venv = has_headers and find_spec("ensurepip") is not None
    return Interpreter(str(Path(sys.executable).resolve()), platform.python_version(), features, can_make_venv)


def interpreter_at(path: str | Path) -> Interpreter | None:
    """The CPython of this executable; None if it does not run, is too old, or is another implementation."""
    try:
        output = subprocess.run([path, "-I", __file__], capture_output=True, timeout=_PROBE_LIMIT_S, check=True).stdout
        return Interpreter(**json.loads(output))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def best_interpreter() -> Interpreter:
    """An optimised CPython: this one, one of the same minor version, any other; this one if there is none."""
    own = this_interpreter()
    return own if own.is_optimised else next((one for one in _others() if one.is_optimised), own)


def interpreter_for_venv() -> Interpreter:
    """An optimised CPython of this one's minor version that can make an environment; this one if there is none."""
    own = this_interpreter()
    same = own.version.split(".")[:2]
    others = (one for one in _others() if one.is_optimised and one.can_make_venv and one.version.split(".")[:2] == same)
    return own if own.is_optimised else next(others, own)


def _others() -> Iterator[Interpreter]:
    """Those of the search path; of the same minor version first."""
    folders = dict.fromkeys([*os.get_exec_path(), *_SYSTEM_FOLDERS])
    paths = [path for folder in folders for path in sorted(Path(folder).glob("python3*")) if _NAME.fullmatch(path.name)]
    same = f"python3.{sys.version_info.minor}"
    for path in sorted(paths, key=lambda path: path.resolve().name != same):
        if (found := interpreter_at(path)) is not None:
            yield found


if __name__ == "__main__":
    if sys.version_info < OLDEST or platform.python_implementation() != "CPython":
        sys.exit(1)
    if sys.argv[1:] == ["--for-venv"]:
        print(interpreter_for_venv().path)
    else:
        print(json.dumps(this_interpreter()._asdict()))
