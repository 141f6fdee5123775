"""SIGKILL under load, a short run of `make kill`.

KILL_COUNT makes it longer, KILL_SEED repeats it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.process.killing import run
from tests.support.kafka import needs_kafka
from tests.support.seeds import seed_of

pytestmark = pytest.mark.long

COUNT = int(os.environ.get("KILL_COUNT", "2"))
SEED = seed_of("KILL_SEED")


@pytest.mark.parametrize(
    "with_kafka",
    [
        pytest.param(False, id="read by clients", marks=pytest.mark.smoke),
        pytest.param(True, id="read by Apache Kafka and its dump tool too", marks=needs_kafka),
    ],
)
def test_acknowledged_state_survives_kills_at_random_moments(tmp_path: Path, *, with_kafka: bool) -> None:
    print(f"replay with KILL_SEED={SEED} KILL_COUNT={COUNT}")
    print(dict(run(tmp_path, SEED, COUNT, with_kafka=with_kafka)))
