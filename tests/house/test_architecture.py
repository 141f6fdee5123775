"""ARCHITECTURE.md is true: it lists every folder once, and its walks lead through functions that exist.

RULES    1. The folder table has one row for each folder of the product, and no other.
         2. A walk has at most fifteen numbered steps, each with one `path/file.py:Name`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.sources import PRODUCT, ROOT, modules
from tests.house.test_references import names_of

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
WALKS = ("A produced batch", "A fetch", "A created topic", "A JoinGroup")
MOST_STEPS = 15
STEP = re.compile(r"^\d+\. .*?`([\w/]+\.py):([\w.]+)`", re.MULTILINE)


def steps(walk: str) -> list[tuple[str, str]]:
    """File and name of each step of a walk."""
    section = PAGE.split(f"### {walk}\n")[1].split("\n#")[0]
    numbered = re.findall(r"^\d+\. ", section, re.MULTILINE)
    found = STEP.findall(section)
    assert len(found) == len(numbered), f"a step of {walk!r} has no `path/file.py:Name`"
    return found


def test_every_folder_has_one_row() -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \|", PAGE, re.MULTILINE)
    folders = {
        str(Path(module.path).parent)
        for module in modules()
        if module.path.startswith(PRODUCT) and not module.path.endswith("__init__.py")
    }
    assert sorted(rows) == sorted(folders)


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_leads_through_existing_functions(walk: str) -> None:
    found = steps(walk)
    assert 5 <= len(found) <= MOST_STEPS
    missing = [f"{path}:{name}" for path, name in found if name not in names_of(path)]
    assert not missing
