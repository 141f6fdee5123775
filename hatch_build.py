"""Compiles the modules of the hot path with mypyc, for wheels that ask for it.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel .      what `make wheel-compiled` runs

RULES    1. Off by default: without the variable the wheel is pure Python and is built without mypyc and a C compiler.
         2. The modules are listed in pyproject.toml. Their sources are in the wheel too: tracebacks quote them, and without the
            shared libraries Python runs them.
         3. C files and objects stay in `build/mypyc/`, so that the next build compiles only what changed.
NOT HERE What mypyc compiles wrongly (`tests/house/test_compiled.py`), why these modules (docs/decisions/0057).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_INSTALLED = "barnabas/_daemon"
_MYPY_OPTIONS = ("--config-file=", "--explicit-package-bases", "--ignore-missing-imports")
"""`make check` runs mypy with the strict settings; here only types matter, and third-party packages may be missing."""


class CompiledModules(BuildHookInterface[Any]):
    """Adds shared libraries to the wheel and gives it the tag of this interpreter and platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, unless the wheel is an editable one."""
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for library, path in _compile(Path(self.root), self.config["modules"]).items():
            build_data["force_include"][str(library)] = f"{_INSTALLED}/{path}"


def _compile(root: Path, modules: list[str]) -> dict[Path, str]:
    """The shared libraries, with their paths below the folder of the daemon's packages."""
    from mypyc.build import mypycify  # noqa: PLC0415  # only a build that compiles has it
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    build = root / "build" / "mypyc" / str(sys.implementation.cache_tag)
    os.chdir(root)  # mypyc derives the names of modules from relative paths
    sources = [f"{module.replace('.', '/')}.py" for module in modules]
    extensions = mypycify(
        [*_MYPY_OPTIONS, f"--cache-dir={build / 'types'}", *sources],
        multi_file=True,
        debug_level="0",
        group_name="barnabas",
        target_dir=str(build / "c"),
    )
    command = build_ext(Distribution({"ext_modules": extensions}))
    command.build_lib, command.build_temp = str(build / "lib"), str(build / "objects")
    command.ensure_finalized()
    command.run()
    libraries = {Path(path): str(Path(path).relative_to(command.build_lib)) for path in command.get_outputs()}
    for path in Path(command.build_lib).rglob("*"):
        if path.is_file() and path not in libraries:
            path.unlink()  # of a module that is not listed any more
    return libraries
