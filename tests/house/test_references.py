"""References in prose lead to something: decisions, files, and names in files; none leads out of the repository.

RULES    1. A path of the repository that is named in prose exists.
         2. A file named without its folder exists in some folder.
         3. `path/file.py:Name.attribute` names a definition of that file.
         4. "decision 0022" is a page in docs/decisions; every page there has another number.
         5. Documents that are not in the repository are not referred to.
         6. `make TARGET` is a target of the Makefile.
         7. Each figure in docs/figures is shown on a page.
         8. Each link of a page leads to a file of the repository, and its fragment to a heading of that page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.house.sources import ROOT, pages, prose

FOLDERS = r"(?:broker|storage|replication|protocol|barnabas|tests|docs|config|docker)"
ENDINGS = r"(?:py|md|toml|properties|yml|java|svg|ddl|json)"
PATH = re.compile(rf"(?<![\w/.-])({FOLDERS}/[\w./-]+\.{ENDINGS})(?![\w/])(?::([A-Za-z_][\w.]*\w))?")
BARE = re.compile(r"(?<![\w/.*{<-])([a-z][a-z0-9_]*\.py)\b")
DECISION = re.compile(r"\bdecisions? (\d{4})\b|decisions/(\d{4})")
TARGET = re.compile(r"`make ([a-z-]+)[` ]")
LINK = re.compile(r"\]\(([\w./-]+)[)#]")
FRAGMENT = re.compile(r"\]\(([\w./-]*\.md|)#([^)\s]+)\)")
OUTSIDE = re.compile(r"\bdesign (?:D\d|section)|\bseam \d|\btrap \d|\bapi-table\b|\bhouse\.md\b|\bseeds\.md [A-Z]\d")


@cache
def file_names() -> frozenset[str]:
    """The names of all Python files of the repository, without what was built or installed in it."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"]
    return frozenset(path.name for folder in folders for path in folder.rglob("*.py")).union(
        path.name for path in ROOT.glob("*.py")
    )


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


@cache
def decisions() -> list[str]:
    """The numbers of the pages of decisions."""
    return [path.name[:4] for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")]


@cache
def targets() -> list[str]:
    """The targets of the Makefile."""
    return re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def is_undefined(path: str, name: str | None) -> bool:
    """Whether a file is said to define a name that it does not define."""
    return bool(name) and path.endswith(".py") and (ROOT / path).exists() and name not in names_of(path)


FALSE_REFERENCES: dict[str, Callable[[str], Iterable[str]]] = {
    "a path that does not exist": lambda text: [m[1] for m in PATH.finditer(text) if not (ROOT / m[1]).exists()],
    "a file that no folder has": lambda text: [m[1] for m in BARE.finditer(text) if m[1] not in file_names()],
    "a name that its file does not define": lambda text: [
        m[0] for m in PATH.finditer(text) if is_undefined(m[1], m[2])
    ],
    "a decision without a page": lambda text: {m[1] or m[2] for m in DECISION.finditer(text)}.difference(decisions()),
    "a target that the Makefile does not have": lambda text: {m[1] for m in TARGET.finditer(text)}.difference(
        targets()
    ),
    "a document outside the repository": lambda text: [m[0] for m in OUTSIDE.finditer(text)],
}


@pytest.mark.parametrize("kind", FALSE_REFERENCES)
def test_prose_never_refers_to(kind: str) -> None:
    found = sorted({f"{place}: {reference}" for place, text in prose() for reference in FALSE_REFERENCES[kind](text)})
    assert not found, "\n".join(found)


def test_decisions_have_unique_numbers() -> None:
    assert len(decisions()) == len(set(decisions()))


def test_each_figure_is_shown_on_a_page() -> None:
    shown = "\n".join(pages().values())
    figures = sorted(path.name for path in (ROOT / "docs" / "figures").iterdir())
    assert figures
    assert [name for name in figures if f"figures/{name})" not in shown] == []


def test_each_link_of_a_page_leads_to_a_file() -> None:
    links = {(page, link) for page, text in pages().items() for link in LINK.findall(text)}
    assert len(links) > 100
    assert sorted((page, link) for page, link in links if not (ROOT / page).parent.joinpath(link).exists()) == []


def anchors(text: str) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_each_fragment_of_a_link_is_a_heading_of_its_page() -> None:
    links = {(page, link, name) for page, text in pages().items() for link, name in FRAGMENT.findall(text)}
    assert links
    assert (
        sorted(
            (page, link, name)
            for page, link, name in links
            if name not in anchors((ROOT / page).parent.joinpath(link or Path(page).name).read_text())
        )
        == []
    )
