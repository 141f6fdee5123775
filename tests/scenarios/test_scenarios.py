"""The scenarios, in memory. `tests/conformance/test_groups.py` compares them with Apache Kafka.

RULES    1. A transcript contains Apache Kafka's responses; `python -m tests.scenarios` shows the differences.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.run import Runner, settings_of
from tests.support.group_harness import local_world

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER).with_suffix("")))
def test_responses_equal_the_transcript(file: Path) -> None:
    text = file.read_text()
    assert Runner(local_world(settings_of(text))).run(text) == text
