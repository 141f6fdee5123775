"""References in prose lead to something: decisions, files, and names in files; none leads out of the repository.

RULES    1. A path of the repository that is named in prose exists.
         2. A file named without its folder exists in some folder.
         3. `path/file.py:Name.attribute` names a definition of that file.
         4. "decision 0022" is a page in docs/decisions; every page there has another number.
         5. Documents that are not in the repository are not referred to.
"""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.house.sources import ROOT, prose

FOLDERS = r"(?:broker|storage|replication|protocol|barnabas|tests|docs|config|docker)"
ENDINGS = r"(?:py|md|toml|properties|yml|java|svg|ddl|json)"
PATH = re.compile(rf"(?<![\w/.-])({FOLDERS}/[\w./-]+\.{ENDINGS})(?![\w/])(?::([A-Za-z_][\w.]*\w))?")
BARE = re.compile(r"(?<![\w/.*{<-])([a-z][a-z0-9_]*\.py)\b")
DECISION = re.compile(r"\bdecisions? (\d{4})\b|decisions/(\d{4})")
OUTSIDE = re.compile(r"\bdesign (?:D\d|section)|\bseam \d|\btrap \d|\bapi-table\b|\bhouse\.md\b|\bseeds\.md [A-Z]\d")


@cache
def file_names() -> frozenset[str]:
    """The names of all Python files, and of those that tests write."""
    return frozenset(path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts)


@cache
def names_of(path: str) -> frozenset[str]:
    """Every definition of a file, as `Class.method`, and its module-level names."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    visit(ast.parse((ROOT / path).read_text()).body, "")
    return frozenset(found)


def test_paths_in_prose_exist() -> None:
    missing = sorted(
        {
            f"{place}: {match[1]}"
            for place, text in prose()
            for match in PATH.finditer(text)
            if not (ROOT / match[1]).exists()
        }
    )
    assert not missing, "\n".join(missing)


def test_files_named_without_a_folder_exist() -> None:
    missing = sorted(
        {
            f"{place}: {match[1]}"
            for place, text in prose()
            for match in BARE.finditer(text)
            if match[1] not in file_names()
        }
    )
    assert not missing, "\n".join(missing)


def test_names_in_files_exist() -> None:
    missing = sorted(
        {
            f"{place}: {match[0]}"
            for place, text in prose()
            for match in PATH.finditer(text)
            if match[2]
            and match[1].endswith(".py")
            and (ROOT / match[1]).exists()
            and match[2] not in names_of(match[1])
        }
    )
    assert not missing, "\n".join(missing)


def test_decisions_exist_once() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")]
    assert len(numbers) == len(set(numbers))
    missing = sorted(
        {
            f"{place}: {number}"
            for place, text in prose()
            for match in DECISION.finditer(text)
            if (number := match[1] or match[2]) not in numbers
        }
    )
    assert not missing, missing


def test_nothing_refers_outside_the_repository() -> None:
    found = sorted({f"{place}: {match[0]}" for place, text in prose() for match in OUTSIDE.finditer(text)})
    assert not found, "\n".join(found)
