"""The dependencies are what `constraints.txt` says, so that `make audit` checks all of them.

RULES    1. Every package that is needed, also by others, has the pinned version.
         2. Every package that pyproject.toml names is pinned.
NOT HERE Known vulnerabilities: `make audit`, which needs the network.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions

from tests.house.sources import ROOT

TOOLS = frozenset({"barnabas", "pip", "setuptools", "wheel"})
"""Of the virtual environment itself."""


def normalised(name: str) -> str:
    """The name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    """The versions in constraints.txt."""
    rows = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {normalised(name): version for name, version in rows}


def named() -> set[str]:
    """The packages that pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    lists.append(project["build-system"]["requires"])
    return {normalised(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for texts in lists for text in texts} - TOOLS


def needed() -> dict[str, str]:
    """The installed versions of the named packages, and of those that they need; a developer may install others."""
    installed = {normalised(one.metadata["Name"]): one for one in distributions()}
    found, waiting = dict[str, str](), list(named())
    while waiting:
        name = waiting.pop()
        if name in installed and name not in found:
            found[name] = installed[name].version
            waiting += [normalised(re.split(r"[^\w.-]", text)[0]) for text in installed[name].requires or ()]
    return found


def test_every_needed_package_has_its_pinned_version() -> None:
    pins = pinned()
    assert {
        name: version for name, version in needed().items() if name not in TOOLS and pins.get(name) != version
    } == {}
    assert {"cffi", "mdurl"} <= needed().keys(), "packages that others need are not found"


def test_every_named_package_is_pinned() -> None:
    assert named() - pinned().keys() == set()
    assert "cryptography" in named()
