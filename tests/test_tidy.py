"""The house rules that no other tool checks: sizes, headers, empty faces, banned calls.

RULES    1. A function has at most 70 lines and a file at most 600. What is longer is listed with its
            size, may shrink, may not grow, and leaves the list when it is short enough.
         2. Every module says what it is, and evaluates no annotation.
         3. An `__init__.py` is a docstring: names are imported from the module that defines them.
         4. A banned call comes with what to say instead.
         5. What nobody imports is deleted; doors from outside are listed.
NOT HERE Style (ruff), types (mypy), directions of import (import-linter in pyproject.toml).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = ("protocol", "storage", "replication", "broker")
PACKAGES = (*FLOORS, "barnabas", "tests")

FUNCTION_LINES = 70
FILE_LINES = 600

LONG_FUNCTIONS: dict[str, int] = {}
"""Functions above the wall, as "path:name", with the size that they may not exceed."""

LONG_FILES: dict[str, int] = {}
"""Files above the wall, with the size that they may not exceed. Tables of facts are the usual reason."""

SPEAKING_FACES = {
    "barnabas/__init__.py": "barnabas.Broker is the name that users are promised; it is looked up lazily",
    "barnabas/pipeline/__init__.py": "the jobs' names, which notebooks are promised; they are looked up lazily",
}


DOORS = {
    "barnabas.__main__": "python -m barnabas",
    "barnabas.cluster_command": "imported when the verb is cluster",
    "barnabas.health": "imported when the verb is health",
    "barnabas.pipeline.command": "imported when the verb is pipeline",
    "barnabas.pipeline.progress_listener": "imported by whoever has streams of Spark to be seen",
    "barnabas.pipeline.sources.segments": "imported by whoever wants the format, and by Spark's workers",
    "barnabas.pytest_plugin": "pytest's entry point",
    "broker.cli": "imported when the verb is the daemon's",
    "broker.io.compaction_main": "started by broker.helper in a process of its own",
}
"""Modules that something else than an import statement leads to."""

NOT_WIRED_YET: dict[str, str] = {}
"""Modules whose users are being built; a row goes as soon as somebody imports the module."""


class Ban(NamedTuple):
    """A call that has no business in some folders."""

    call: str
    where: tuple[str, ...]
    instead: str
    but_in: tuple[str, ...] = ()


BANS = (
    Ban(
        "time.sleep",
        (*FLOORS, "tests"),
        "wait for the event itself: a join, the ready line, run_due() of a fake clock; else until() of tests.support.waiting",
        ("tests/support/", "tests/benchmark/"),
    ),
    Ban("print", (*FLOORS, "barnabas"), "use the module's logger in the daemon, rich's console in the face", ()),
    Ban("open", ("protocol", "storage", "replication"), "go through storage/io/disk.py", ("storage/io/disk.py",)),
    *(
        Ban(
            call,
            ("protocol", "storage", "replication"),
            "go through storage/io/disk.py",
            ("storage/io/disk.py", "storage/io/page_cache.py"),
        )
        for call in (
            *("os.open", "os.pread", "os.preadv", "os.pwrite", "os.pwritev", "os.fsync", "os.fdatasync"),
            *("os.rename", "os.replace", "os.unlink", "os.remove", "os.mkdir", "os.makedirs", "os.listdir"),
            *("os.scandir", "os.stat", "os.truncate", "os.ftruncate", "shutil.rmtree", "mmap.mmap"),
        )
    ),
    Ban("asyncio.sleep", ("tests",), "wait for the event itself, or move the fake clock", ("tests/support/",)),
    *(
        Ban(call, ("protocol", "storage", "replication"), "time comes in as wall_ms or mono_ms")
        for call in ("datetime.now", "datetime.utcnow", "datetime.datetime.now", "datetime.datetime.utcnow")
    ),
    Ban("os.system", PACKAGES, "call subprocess.run with a list"),
)


class Module(NamedTuple):
    """A parsed file."""

    path: str
    text: str
    tree: ast.Module


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file of the repository's packages."""
    found = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            text = file.read_text()
            found.append(Module(str(file.relative_to(ROOT)), text, ast.parse(text, str(file))))
    return tuple(found)


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """Every function of a file as "path:name" with its number of lines, decorators not counted."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{module.path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def too_long(sizes: dict[str, int], wall: int, listed: dict[str, int]) -> list[str]:
    """What breaks the ratchet, in sentences."""
    faults = [
        f"{name} has {size} lines; the limit is {listed.get(name, wall)}"
        for name, size in sizes.items()
        if size > listed.get(name, wall)
    ]
    faults += [
        f"{name} is listed with {size} lines and is shorter now: lower or remove its row"
        for name, size in listed.items()
        if sizes.get(name, 0) < size
    ]
    return faults


def test_functions_stay_below_seventy_lines() -> None:
    """Rule 1."""
    sizes: dict[str, int] = {}
    for module in modules():
        for name, size in functions(module):
            sizes[name] = max(size, sizes.get(name, 0))
    assert not too_long(sizes, FUNCTION_LINES, LONG_FUNCTIONS)


def test_files_stay_below_six_hundred_lines() -> None:
    """Rule 1."""
    sizes = {module.path: module.text.count("\n") for module in modules()}
    assert not too_long(sizes, FILE_LINES, LONG_FILES)


def test_every_module_says_what_it_is() -> None:
    """Rule 2."""
    silent = [module.path for module in modules() if not ast.get_docstring(module.tree)]
    assert not silent, f"no docstring: {silent}"


def test_no_module_evaluates_its_annotations() -> None:
    """Rule 2: `from __future__ import annotations` stands in every module that holds code."""
    eager = [
        module.path
        for module in modules()
        if len(module.tree.body) > 1 and "from __future__ import annotations\n" not in module.text
    ]
    assert not eager, f"no `from __future__ import annotations`: {eager}"


def test_faces_are_empty() -> None:
    """Rule 3."""
    speaking = [
        module.path
        for module in modules()
        if module.path.endswith("__init__.py") and len(module.tree.body) > 1 and module.path not in SPEAKING_FACES
    ]
    assert not speaking, f"more than a docstring: {speaking}"


def test_every_package_has_a_face() -> None:
    """Rule 3: a folder without `__init__.py` would be a namespace, and the wheel would carry it by luck."""
    faceless = {
        str(Path(module.path).parent)
        for module in modules()
        if not (ROOT / module.path).with_name("__init__.py").exists()
    }
    assert not faceless


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.call)
def test_banned_calls_are_absent(ban: Ban) -> None:
    """Rule 4."""
    faults = []
    for module in modules():
        if not module.path.startswith(tuple(f"{folder}/" for folder in ban.where)):
            continue
        if module.path.startswith(ban.but_in or ("-",)):
            continue
        faults += [
            f"{module.path}:{node.lineno}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == ban.call
        ]
    assert not faults, f"{ban.call} is banned here, {ban.instead}: {faults}"


def test_no_handler_swallows_everything() -> None:
    """Rule 4: `except:` hides KeyboardInterrupt and our own mistakes."""
    faults = [
        f"{module.path}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert not faults, f"name the exception: {faults}"


def imported_names(module: Module) -> Iterator[str]:
    """Every dotted name that may be a module of ours."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_is_dead() -> None:
    """Rule 5: a test alone does not keep a module alive."""
    ours = [module for module in modules() if not module.path.startswith("tests/")]
    imported = {name for module in ours for name in imported_names(module)}
    names = {
        module.path.removesuffix(".py").replace("/", ".") for module in ours if not module.path.endswith("__init__.py")
    }
    assert names - imported - DOORS.keys() == NOT_WIRED_YET.keys()
    assert DOORS.keys() <= names, "a door without a room"
