"""Plays random lives of groups to Apache Kafka: `make compare-groups ARGS="[OPTION]..."`.

    --kind KIND          classic, consumer or mixed; all of them in turn unless said
    --seed N             the first life; printed
    --lives N            so many of them
    --steps N            requests in each

What differs is printed with the whole scenario: `--kind` and `--seed` play it again.
"""

from __future__ import annotations

import argparse
import difflib
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

from tests.scenarios.kafka_brokers import Brokers, PatientWorld
from tests.scenarios.random_lives import KINDS, PARTITIONS, Life
from tests.support.group_harness import SocketWorld

SETTLE_MS = 2000
_SAID = re.compile(r" (error_message|leader)=('[^']*'|\"[^\"]*\")")
"""Words, and what a hash map decides."""


def with_topics(bootstrap: str, names: Iterable[str]) -> Mapping[str, bytes]:
    """Make the topics of some lives; their ids, when coordinators have heard of them too."""
    world = SocketWorld(bootstrap)
    for name in names:
        world.create_topic(name, PARTITIONS)
    world.advance(SETTLE_MS)
    world.close()
    return world.topic_ids


def played(text: str, bootstrap: str, topic_ids: Mapping[str, bytes]) -> str:
    """The transcript of a life with a broker that has its topic."""
    world = PatientWorld(bootstrap, topic_ids)
    try:
        return world.play(text)
    finally:
        world.close()


def seen(text: str) -> list[str]:
    """A transcript without what a hash map decides."""
    return [_SAID.sub("", line) for line in text.splitlines()]


def differences(mine: str, theirs: str) -> Iterator[str]:
    """Where Apache Kafka's transcript is another."""
    return difflib.unified_diff(seen(mine), seen(theirs), "here", "Apache Kafka", lineterm="", n=100)


def main() -> int:
    """Draw, play, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--lives", type=int, default=30)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    kinds = KINDS if args.kind is None else (args.kind,)
    lives = [Life(kinds[number % len(kinds)], args.seed + number) for number in range(args.lives)]
    texts = [life.text(args.steps) for life in lives]
    differing = 0
    with Brokers() as brokers:
        bootstrap = brokers.bootstrap("")
        topic_ids = with_topics(bootstrap, [life.topic for life in lives])
        for life, text in zip(lives, texts, strict=True):
            found = list(differences(text, played(text, bootstrap, topic_ids)))
            print(f"{life}: {'differs' if found else 'the same'}", flush=True)
            if found:
                differing += 1
                print("\n".join(found), flush=True)
    print(f"{differing} of {args.lives} lives differ (from seed {args.seed})")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
