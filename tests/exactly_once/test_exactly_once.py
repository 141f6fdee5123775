"""Exactly once while clients and broker are killed, a few times; `make exactly-once COUNT=100` is the long run of the same.

EXACTLY_ONCE_SEED has everything done again.
"""

from __future__ import annotations

from pathlib import Path

from barnabas import Broker
from tests.exactly_once import loop, word_count
from tests.support.kafka import needs_kafka
from tests.support.seeds import seed_of

SEED = seed_of("EXACTLY_ONCE_SEED")


def test_what_is_carried_arrives_once_however_often_somebody_is_killed(tmp_path: Path) -> None:
    """Issue 6, part 6: consume, transform, produce; no anomaly in the histories of the clients."""
    print(f"replay with EXACTLY_ONCE_SEED={SEED}")
    with Broker(settings=loop.SETTINGS) as broker:
        print(dict(loop.run(tmp_path, broker, SEED, 4)))


@needs_kafka
def test_kafka_streams_counts_exactly_however_often_somebody_is_killed(tmp_path: Path) -> None:
    """Issue 6, part 6: exactly_once_v2 with a repartition topic, a state store and its changelog."""
    print(f"replay with EXACTLY_ONCE_SEED={SEED}")
    with Broker(settings=loop.SETTINGS) as broker:
        print(dict(word_count.run(tmp_path, broker, SEED, 2)))
