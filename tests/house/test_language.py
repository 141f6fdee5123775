"""Plain words: terms that must not come back, docstrings that say something, commit subjects of one line.

RULES    1. Prose names the node, thread or request and uses the verb for what it does (`GLOSSARY`).
         2. A docstring that is only a rule number says nothing.
         3. Names that were replaced by the field's standard terms stay replaced (`RETIRED`).
         4. A commit subject has at most 72 characters.
"""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from tests.house.sources import ROOT, docstrings, modules, prose

GLOSSARY = {
    r"\bwho(?:ever|m|mever)\b": "name the node, thread, client or request",
    r"\b(?:no|some)body\b": "name the node, thread, client or request",
    r"\bhad better\b": "should",
    r"\banew\b": "again",
    r"\bamid\b": "during, in the middle of",
    r"\b(?:is|are) done without\b": "is skipped",
    r"\b(?:is|are|was|were|be|been|being) told\b": "is notified, receives, is configured with",
    r"\bheard of\b": "name the message: a heartbeat, a fetch",
    r"\blies? (?:in|there|ready|behind|beyond|before|beside|between)\b": "is stored in, is below, is above",
    r"\bstands? (?:aside|in for|there)\b": "name what it does",
    r"\bof (?:its|their) own accord\b": "by itself",
    r"\b(?:so|that) many (?:it|they|of them) (?:is|are)\b": "say the number",
    r"\bwhat is there\b": "name it",
    r"\bis there again\b": "is back, exists again",
    r"\bby and by\b": "gradually",
    r"\bgoes without saying\b": "say it or leave it out",
}
"""What must not come back, with what to say instead."""

RETIRED = """
Standing NameVoters KeepSnapshot ForkedLog tell_of_epoch lost_before_the_vote asked_elections leave_in_peace
give_sign kept_records isr_watch read_places metadata_loss lie_in vanish is_crowded residency doom vouch
settled_end is_spotless FetchOfOne BrokerLife founding sync_rounds housekeeping metadata_part Around
full_disks own_addresses unused_settings Warmer thaw Rebalancer bury own_end
"""
"""Identifiers of the past; `ARCHITECTURE.md` and the modules have the names of today."""

BASE = "f9d990eda3d0591d01678409b52d40c841770b91"
"""Commits up to this one were made before rule 4."""
PUBLISHED = frozenset(
    {
        "Answer descriptions of configs and ACLs in Apache Kafka's order and texts",
        "Check the types of more tests, and mend planted bugs that failed by accident",
        "Test kills on both engines, and that positions of schedules do not expire",
    }
)
"""Longer subjects that were published: history is not rewritten for them."""
SUBJECT_LIMIT = 72


@pytest.mark.parametrize("pattern", GLOSSARY)
def test_prose_says_it_plainly(pattern: str) -> None:
    found = [
        f"{place}: {text[max(0, match.start() - 40) : match.end() + 40]!r}"
        for place, text in prose()
        for match in [re.search(pattern, text, re.IGNORECASE)]
        if match
    ]
    assert not found, f"{len(found)} places; say instead: {GLOSSARY[pattern]}\n" + "\n".join(found[:40])


def test_no_docstring_is_only_a_rule_number() -> None:
    found = [
        f"{module.path}:{line}"
        for module in modules()
        for line, text in docstrings(module)
        if re.fullmatch(r"(?:Guards r|R)ules? [\d, and]+\.?", text.strip())
    ]
    assert not found, f"name the thing or delete the docstring: {found}"


def test_retired_names_stay_retired() -> None:
    found = [
        f"{module.path}:{node.lineno}: {name}"
        for module in modules()
        for node in ast.walk(module.tree)
        for name in [
            getattr(node, "id", None)
            or getattr(node, "attr", None)
            or getattr(node, "name", None)
            or getattr(node, "arg", None)
        ]
        if name in RETIRED.split() and hasattr(node, "lineno")
    ]
    assert not found, found


def test_commit_subjects_fit_one_line() -> None:
    listed = subprocess.run(
        ["git", "log", "--format=%h %s", f"{BASE}..HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("the history of this checkout does not reach back far enough")
    subjects = {line.partition(" ")[2]: line for line in listed.stdout.splitlines()}
    long = [line for text, line in subjects.items() if len(text) > SUBJECT_LIMIT and text not in PUBLISHED]
    assert not long, f"more than {SUBJECT_LIMIT} characters: {long}"
