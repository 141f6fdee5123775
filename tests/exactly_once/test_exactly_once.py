"""Exactly-once semantics while clients and broker are killed a few times; `make exactly-once COUNT=100` is the long run.

EXACTLY_ONCE_SEED replays a run.
"""

from __future__ import annotations

from pathlib import Path

from barnabas import Broker
from tests.exactly_once import loop, word_count
from tests.support.kafka import needs_kafka
from tests.support.seeds import seed_of

SEED = seed_of("EXACTLY_ONCE_SEED")


def test_processed_records_arrive_exactly_once_despite_kills(tmp_path: Path) -> None:
    """The consume-transform-produce loop; no anomaly in the histories of the clients."""
    print(f"replay with EXACTLY_ONCE_SEED={SEED}")
    with Broker(settings=loop.SETTINGS) as broker:
        print(dict(loop.run(tmp_path, broker, SEED, 4)))


@needs_kafka
def test_kafka_streams_counts_exactly_despite_kills(tmp_path: Path) -> None:
    """exactly_once_v2 with a repartition topic, a state store and its changelog."""
    print(f"replay with EXACTLY_ONCE_SEED={SEED}")
    with Broker(settings=loop.SETTINGS) as broker:
        print(dict(word_count.run(tmp_path, broker, SEED, 2)))
