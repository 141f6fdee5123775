"""Compares random group histories with Apache Kafka: `make compare-groups ARGS="[OPTION]..."`.

    --kind KIND          classic, consumer or mixed; default: all in turn
    --seed N             seed of the first history; printed
    --lives N            number of histories
    --steps N            requests per history

A difference is printed with the whole scenario; `--kind` and `--seed` repeat it.
"""

from __future__ import annotations

import argparse
import difflib
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from tests.scenarios.kafka_brokers import Brokers, PatientGroupHarness
from tests.scenarios.random_histories import KINDS, PARTITIONS, History
from tests.support.group_harness import SocketGroupHarness
from tests.support.storage_engine import use_engine_of

SETTLE_MS = 2000
_NOT_COMPARED = re.compile(r" (error_message|leader)=('[^']*'|\"[^\"]*\")")
"""Error messages, and the leader that a hash map decides."""


def with_topics(bootstrap: str, names: Iterable[str]) -> Mapping[str, bytes]:
    """Create the topics of some histories; returns their ids after the coordinators know them."""
    with closing(SocketGroupHarness(bootstrap)) as harness:
        for name in names:
            harness.create_topic(name, PARTITIONS)
        harness.advance(SETTLE_MS)
    return harness.topic_ids


def play(text: str, bootstrap: str, topic_ids: Mapping[str, bytes]) -> str:
    """The transcript of a history on a broker with its topic."""
    with closing(PatientGroupHarness(bootstrap, topic_ids)) as harness:
        return harness.play(text)


def comparable(text: str) -> list[str]:
    """A transcript without the parts that may differ."""
    return [_NOT_COMPARED.sub("", line) for line in text.splitlines()]


def differences(ours: str, theirs: str) -> Iterator[str]:
    """The differences of two transcripts."""
    return difflib.unified_diff(comparable(ours), comparable(theirs), "here", "Apache Kafka", lineterm="", n=100)


def main() -> int:
    """Generate, play, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--lives", type=int, default=30)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    kinds = KINDS if args.kind is None else (args.kind,)
    histories = [History(kinds[number % len(kinds)], args.seed + number) for number in range(args.lives)]
    texts = [history.text(args.steps) for history in histories]
    differing = 0
    with Brokers() as brokers:
        bootstrap = brokers.bootstrap("")
        topic_ids = with_topics(bootstrap, [history.topic for history in histories])
        for history, text in zip(histories, texts, strict=True):
            found = list(differences(text, play(text, bootstrap, topic_ids)))
            print(f"{history}: {'differs' if found else 'the same'}", flush=True)
            if found:
                differing += 1
                print("\n".join(found), flush=True)
    print(f"{differing} of {args.lives} lives differ (from seed {args.seed})")
    return 1 if differing else 0


if __name__ == "__main__":
    use_engine_of()
    sys.exit(main())
