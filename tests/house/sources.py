"""The texts that the house rules read: parsed modules, their prose, and the pages of the documentation."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LAYERS = ("protocol", "storage", "replication", "broker")
PRODUCT = (*LAYERS, "barnabas")
PACKAGES = (*PRODUCT, "tests")


class Module(NamedTuple):
    """A parsed file."""

    path: str
    text: str
    tree: ast.Module


class Prose(NamedTuple):
    """A docstring, comment, sentence in a string, or paragraph of a page."""

    place: str
    text: str


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file of the repository's packages."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    found = []
    for file in files:
        text = file.read_text()
        found.append(Module(str(file.relative_to(ROOT)), text, ast.parse(text, str(file))))
    return tuple(found)


@cache
def calls() -> tuple[tuple[str, int, str], ...]:
    """Every call of the repository: path, line, and the called expression where it is a name or a chain of attributes."""
    return tuple(
        (module.path, node.lineno, name)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and (name := dotted(node.func))
    )


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes; empty for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join(reversed([*names, node.id])) if isinstance(node, ast.Name) else ""


@cache
def pages() -> dict[str, str]:
    """The Markdown files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [path for path in listed.stdout.splitlines() if (ROOT / path).is_file()]
    return {path: (ROOT / path).read_text() for path in paths}


def docstrings(module: Module) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands alone: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def comments(module: Module) -> Iterator[tuple[int, str]]:
    """Line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def sentences(module: Module) -> Iterator[tuple[int, str]]:
    """Line and text of each string with a blank in it, such as log lines and errors."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


@cache
def prose() -> tuple[Prose, ...]:
    """All prose of the repository; of test modules no strings, which may be data."""
    found = []
    for module in modules():
        if module.path.startswith("tests/house/"):
            continue
        kinds = [docstrings(module), comments(module)]
        if not module.path.startswith("tests/"):
            kinds.append(sentences(module))
        for line, text in {entry for kind in kinds for entry in kind}:
            found.append(Prose(f"{module.path}:{line}", text))
    for path, text in pages().items():
        without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        found += [Prose(path, paragraph) for paragraph in without_code.split("\n\n")]
    return tuple(found)
