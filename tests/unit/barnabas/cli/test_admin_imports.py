"""What a verb imports before it talks to a cluster: a start takes less than 150 ms, and imports are most of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.__main__ import ADMIN_VERBS

_LISTED = "import sys; from barnabas.__main__ import main; main(sys.argv[1:]); sys.stderr.write(' '.join(sys.modules))"
_HEAVY = {"asyncio", "confluent_kafka", "email", "http", "kafka", "numpy", "pyspark", "rich", "ssl", "urllib.request"}
ROOT = Path(__file__).parents[4]


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _LISTED, *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("verb", [*ADMIN_VERBS, "bench", "search", "top", "completion", "man"])
def test_the_help_of_a_verb_imports_no_client(verb: str) -> None:
    assert not _HEAVY & imported(verb, "--help")
