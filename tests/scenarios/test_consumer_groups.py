"""The scenarios of consumer groups (KIP-848), in memory. `tests/conformance/test_groups.py` holds them against Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.run import Runner, settings_of
from tests.support.group_harness import local_world

FILES = sorted((Path(__file__).parent / "consumer_groups").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_consumer_groups_answer_as_the_scenario_says(file: Path) -> None:
    """consumer_groups.py rule 2: answers are Apache Kafka's; `python -m tests.scenarios` shows what differs."""
    text = file.read_text()
    assert Runner(local_world(settings_of(text))).run(text) == text
