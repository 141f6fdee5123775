"""SIGKILL under load, a few times; `make kill COUNT=200` is the long run of the same.

KILL_COUNT makes it longer, KILL_SEED has everything done again.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.process.killing import run
from tests.support.seeds import seed_of

COUNT = int(os.environ.get("KILL_COUNT", "2"))
SEED = seed_of("KILL_SEED")


def test_what_was_promised_outlives_kills_at_random_moments(tmp_path: Path) -> None:
    """Issue 5: records, their order and offsets, committed offsets, topics and their settings; the rules are `killing.py`'s."""
    print(f"replay with KILL_SEED={SEED} KILL_COUNT={COUNT}")
    print(dict(run(tmp_path, SEED, COUNT, with_kafka=False)))
