"""Structure that no other tool checks: sizes, headers, empty `__init__.py` files, banned calls, dead modules.

RULES    1. A function has at most 70 lines, a file 600. A folder of more than 20 modules has a reason in a list here.
         2. Every module has a docstring and postpones the evaluation of annotations.
         3. An `__init__.py` is a docstring: names are imported from the module that defines them.
         4. A banned call comes with what to say instead.
         5. A module that nothing imports is deleted; entry points from outside are listed.
NOT HERE Style (ruff), types (mypy), directions of imports (import-linter in pyproject.toml), prose (test_language.py).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.house.sources import LAYERS, PACKAGES, ROOT, Module, calls, modules

FUNCTION_LINES = 70
FILE_LINES = 600
FOLDER_MODULES = 20

LARGE_FOLDERS: dict[str, str] = {
    "tests/benchmark": "one file for each benchmark",
    "tests/conformance": "one file for each subject that is compared with Apache Kafka",
    "tests/pipeline": "one file for each job and each of its concerns",
    "tests/process": "one file for each way in which a daemon is started, stopped or disturbed",
    "tests/support": "one file for each thing that tests share",
}
"""Folders of more than 20 modules, with the reason."""

SPEAKING_INITS = {
    "barnabas/__init__.py": "barnabas.Broker is public API; it is looked up lazily",
    "barnabas/pipeline/__init__.py": "the jobs are public API for notebooks; they are looked up lazily",
}

ENTRY_POINTS = {
    "barnabas.__main__": "python -m barnabas",
    "barnabas.certs_command": "imported for the verb certs",
    "barnabas.cli.consume": "imported for the verb consume",
    "barnabas.cli.produce": "imported for the verb produce",
    "barnabas.cluster_command": "imported for the verb cluster",
    **{
        f"barnabas.cli.admin.{verb}": "imported for its verb"
        for verb in (
            "acls",
            "configs",
            "groups",
            "nodes",
            "partitions",
            "quotas",
            "schedules",
            "topics",
            "transactions",
            "users",
        )
    },
    "barnabas.cli.bench": "imported for the verb bench",
    "barnabas.cli.search": "imported for the verb search",
    "barnabas.cli.shell.completion": "imported for the verb completion, and for a shell's script",
    "barnabas.cli.shell.man": "imported for the verb man",
    "barnabas.cli.top": "imported for the verb top",
    "barnabas.health": "imported for the verb health",
    "barnabas.pipeline.command": "imported for the verb pipeline",
    **{
        f"barnabas.pipeline.jobs.{name}": "a job, which barnabas.pipeline looks up"
        for name in ("aggregate.aggregate", "archive.archive", "audit.audit", "replay", "search", "stats", "table")
    },
    "barnabas.pipeline.progress_listener": "imported by programs that show Spark streams as consumer groups",
    "barnabas.pipeline.sources.segments": "imported by programs that read log directories, and by Spark's workers",
    "barnabas.pytest_plugin": "pytest's entry point",
    "broker.cli": "imported for the verbs of the daemon",
    "broker.io.compaction_main": "run by broker.io.compaction_process in a process of its own",
    "broker.io.index_main": "run by broker.io.index_process in a process of its own",
}
"""Modules that are reached without an import statement in the product."""


class Ban(NamedTuple):
    """A call that some folders must not make."""

    call: str
    where: tuple[str, ...]
    instead: str
    allowed_in: tuple[str, ...] = ()


BELOW_THE_BROKER = ("protocol", "storage", "replication")
OWN_FILE_ACCESS = ("storage/io/disk.py", "storage/io/file_lock.py", "storage/io/page_cache.py")
BANS = (
    Ban(
        "time.sleep",
        (*LAYERS, "tests"),
        "wait for the event itself: a join, the ready line, run_due() of a fake clock, or until() of tests.support.waiting",
        ("tests/support/", "tests/benchmark/"),
    ),
    Ban("print", (*LAYERS, "barnabas"), "use the module's logger in the daemon, rich's console in barnabas/"),
    Ban("open", BELOW_THE_BROKER, "use storage/io/disk.py", ("storage/io/disk.py",)),
    *(
        Ban(call, BELOW_THE_BROKER, "use storage/io/disk.py", OWN_FILE_ACCESS)
        for call in (
            *("os.open", "os.pread", "os.preadv", "os.pwrite", "os.pwritev", "os.fsync", "os.fdatasync"),
            *("os.rename", "os.replace", "os.unlink", "os.remove", "os.mkdir", "os.makedirs", "os.listdir"),
            *("os.scandir", "os.stat", "os.truncate", "os.ftruncate", "shutil.rmtree", "mmap.mmap"),
        )
    ),
    Ban("asyncio.sleep", ("tests",), "wait for the event itself, or move the fake clock", ("tests/support/",)),
    *(
        Ban(call, BELOW_THE_BROKER, "take the time as an argument: wall_ms or mono_ms")
        for call in ("datetime.now", "datetime.utcnow", "datetime.datetime.now", "datetime.datetime.utcnow")
    ),
    Ban("os.system", PACKAGES, "call subprocess.run with a list"),
)


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """Every function of a file as "path:name" with its number of lines, without decorators."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{module.path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_functions_have_at_most_seventy_lines() -> None:
    long = [f"{name}: {size}" for module in modules() for name, size in functions(module) if size > FUNCTION_LINES]
    assert not long


def test_files_have_at_most_six_hundred_lines() -> None:
    long = {module.path: lines for module in modules() if (lines := module.text.count("\n")) > FILE_LINES}
    assert not long


def test_folders_of_more_than_twenty_modules_have_a_reason() -> None:
    sizes = Counter(str(Path(module.path).parent) for module in modules() if not module.path.endswith("__init__.py"))
    large = {folder for folder, size in sizes.items() if size > FOLDER_MODULES}
    assert large <= LARGE_FOLDERS.keys(), large - LARGE_FOLDERS.keys()


def test_every_module_has_a_docstring() -> None:
    silent = [module.path for module in modules() if not ast.get_docstring(module.tree)]
    assert not silent


def test_no_module_evaluates_its_annotations() -> None:
    eager = [
        module.path
        for module in modules()
        if len(module.tree.body) > 1 and "from __future__ import annotations\n" not in module.text
    ]
    assert not eager, f"no `from __future__ import annotations`: {eager}"


def test_init_files_are_docstrings() -> None:
    speaking = [
        module.path
        for module in modules()
        if module.path.endswith("__init__.py") and len(module.tree.body) > 1 and module.path not in SPEAKING_INITS
    ]
    assert not speaking


def test_every_package_has_an_init_file() -> None:
    """A folder without one would be a namespace package, which the wheel includes only by chance."""
    missing = {
        str(Path(module.path).parent)
        for module in modules()
        if not (ROOT / module.path).with_name("__init__.py").exists()
    }
    assert not missing


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.call)
def test_banned_calls_are_absent(ban: Ban) -> None:
    folders = tuple(f"{folder}/" for folder in ban.where)
    found = [
        f"{path}:{line}"
        for path, line, name in calls()
        if name == ban.call and path.startswith(folders) and not path.startswith(ban.allowed_in or ("-",))
    ]
    assert not found, f"{ban.call} is banned here, {ban.instead}: {found}"


def test_no_except_clause_catches_everything() -> None:
    """`except:` hides KeyboardInterrupt and our own mistakes."""
    found = [
        f"{module.path}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert not found, f"name the exception: {found}"


def imported_names(module: Module) -> Iterator[str]:
    """Every dotted name in imports that may be a module of the repository."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_is_dead() -> None:
    """A test alone does not keep a module alive."""
    ours = [module for module in modules() if not module.path.startswith("tests/")]
    imported = {name for module in ours for name in imported_names(module)}
    names = {
        module.path.removesuffix(".py").replace("/", ".") for module in ours if not module.path.endswith("__init__.py")
    }
    assert names - imported <= ENTRY_POINTS.keys(), names - imported - ENTRY_POINTS.keys()
    assert ENTRY_POINTS.keys() <= names, "an entry point without its module"
