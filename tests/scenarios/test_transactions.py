"""The scenarios of transactions, in memory. `tests/conformance/test_transactions.py` holds them against Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.run import Runner, settings_of
from tests.support.group_harness import local_world

FILES = sorted((Path(__file__).parent / "transactions").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_transactions_answer_as_the_scenario_says(file: Path) -> None:
    """transactions.py rules 1 to 4 and 6: answers and states are Apache Kafka's."""
    text = file.read_text()
    assert Runner(local_world(settings_of(text))).run(text) == text
