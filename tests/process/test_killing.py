"""SIGKILL under load, a short run of `make kill`.

KILL_COUNT makes it longer, KILL_SEED repeats it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.process.killing import run
from tests.support.seeds import seed_of

pytestmark = pytest.mark.long

COUNT = int(os.environ.get("KILL_COUNT", "2"))
SEED = seed_of("KILL_SEED")


def test_acknowledged_state_survives_kills_at_random_moments(tmp_path: Path) -> None:
    print(f"replay with KILL_SEED={SEED} KILL_COUNT={COUNT}")
    print(dict(run(tmp_path, SEED, COUNT, with_kafka=False)))
