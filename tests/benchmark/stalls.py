"""Quiet producers while their broker is kept busy with disks: python -m tests.benchmark stalls [OPTION]...

    --quick              one short round of everything in about three minutes; else three longer ones
    --rounds N           so many rounds
    --only TEXT          scenes whose name contains TEXT; may be repeated
    --alone              Barnabas alone, without Apache Kafka
    --directory DIR      where the brokers' data lie: the disk that is measured; a temporary one unless said
    --output FILE        where everything goes, as JSON; build/bench/stalls.json unless said
    --figure FILE        where the chart goes; build/bench/stalls.svg unless said

Twenty producers send fifty records a second each to one topic, acks=1, and each answer is timed from when its request
was due. Meanwhile, in turn: nothing else; a consumer scans cold data; four producers have every record synced; a large
topic is deleted; topics of 1,000 partitions come and go; and a second log directory takes 200 ms for every write, read
and rename, while it is written to, rolled, committed to, and topics are made and deleted in it. The reference of each
scene is the same work on the same disk by another program, the broker serving the quiet producers only.

It answers 0 when the p99 of the producers is at most twice the reference's, and no stall of Barnabas' loop was longer
than 50 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.embedded import Broker
from tests.benchmark.standing import results
from tests.benchmark.standing.disturbances import going_on
from tests.benchmark.standing.producers import measure
from tests.benchmark.standing.results import BROKER, PROGRAM, Phase
from tests.benchmark.standing.scenes import FULL, QUICK, QUIET, SCENES, Actor, Scale, Scene, Stage, prepare
from tests.support.faulty_directory import TroubledDirectory, why_no_troubled_directory
from tests.support.kafka import STOCK_JVM, ApacheKafka, why_no_kafka

OURS, THEIRS = "Barnabas", "Apache Kafka"
WARM_UP_S = 3.0
REST_S = 0.5
SETTLE_S = 2.5
"""Longer than the watchdog keeps quiet after a line: then all stalls of a phase are told of."""
SETTINGS = {
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "log.segment.delete.delay.ms": 0,
    "log.initial.task.delay.ms": 0,
}
"""The last two have files go as soon as their topic is deleted, in the scene that is about that."""


@contextlib.contextmanager
def stages(root: Path, *, alone: bool) -> Iterator[list[Stage]]:
    """One node of each with two log directories, started."""
    with contextlib.ExitStack() as held:
        found = []
        for name in (OURS,) if alone else (OURS, THEIRS):
            home = root / name.lower().replace(" ", "-")
            quick = home / "quick"
            quick.mkdir(parents=True)
            slow = None
            if why_no_troubled_directory() is None:
                slow = held.enter_context(TroubledDirectory(home / "backing", home / "slow"))
            directories = ",".join(map(str, [quick] if slow is None else [quick, slow.path]))
            node: Broker | ApacheKafka
            if name == OURS:
                node = Broker(directories, settings=SETTINGS, start_timeout_s=120, stop_timeout_s=120)
            else:
                node = ApacheKafka({**SETTINGS, "log.dirs": directories}, data_dir=quick, jvm=STOCK_JVM)
            held.enter_context(node)
            log = node.log if isinstance(node, Broker) else str
            found.append(Stage(name, node.bootstrap, quick, slow, log))
        yield found


def play(stage: Stage, scene: Scene, beside: str, scale: Scale, actor: Actor) -> Phase:
    """One phase of one scene."""
    with actor(stage, scale) as task:
        time.sleep(REST_S)
        log_end = len(stage.log())
        with going_on(task):
            samples = measure(stage.bootstrap, QUIET, scale.seconds)
    time.sleep(SETTLE_S if stage.name == OURS else REST_S)
    return results.phase(stage.name, scene.name, beside, samples, stage.log()[log_end:])


def play_all(found: list[Stage], scenes: list[Scene], scale: Scale) -> list[Phase]:
    """Every scene in every round on every broker, the first one changing."""
    for stage in found:
        prepare(stage, scale)
        measure(stage.bootstrap, QUIET, WARM_UP_S)
    phases = []
    for turn in range(scale.rounds):
        for scene in scenes:
            for stage in found if turn % 2 == 0 else reversed(found):
                for beside, actor in ((BROKER, scene.beside_broker), (PROGRAM, scene.beside_program)):
                    if actor is None:
                        continue
                    phases.append(play(stage, scene, beside, scale, actor))
                    say(turn, phases[-1])
    return phases


def say(turn: int, one: Phase) -> None:
    """Tell whoever looks on how it goes."""
    figures = " ".join(f"{name} {value:g}" for name, value in one.produced.items() if name != "count")
    where = "; ".join(f"{stall['times']} x, {stall['longest_ms']:.0f} ms in {stall['in']}" for stall in one.stalls)
    print(
        f"{turn + 1} {one.scene}, {one.broker} beside {one.beside}: {figures} ms {where}", file=sys.stderr, flush=True
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stalls", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--output", type=Path, default=Path("build/bench/stalls.json"))
    parser.add_argument("--figure", type=Path, default=Path("build/bench/stalls.svg"))
    return parser.parse_args()


def chosen(wanted: argparse.Namespace) -> list[Scene]:
    """The scenes that were asked for and can be played here."""
    scenes = [s for s in SCENES if not wanted.only or any(text.lower() in s.name.lower() for text in wanted.only)]
    if (reason := why_no_troubled_directory()) is not None:
        print(f"Without a slow directory: {reason}")
        scenes = [scene for scene in scenes if not scene.needs_slow_directory]
    return scenes


def settings(scale: Scale, started_s: float) -> dict[str, Any]:
    """What one must know to understand the figures."""
    return {
        "scale": scale._asdict(),
        "seconds": round(time.monotonic() - started_s),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_at_the_end": os.getloadavg(),
    }


def main() -> int:
    wanted = options()
    if not wanted.alone and (reason := why_no_kafka()) is not None:
        print(f"Nothing to compare with, so Barnabas alone: {reason}")
        wanted.alone = True
    scale = QUICK if wanted.quick else FULL
    if wanted.rounds:
        scale = scale._replace(rounds=wanted.rounds)
    started_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="stalls-", dir=wanted.directory) as root,
        stages(Path(root), alone=wanted.alone) as found,
    ):
        phases = play_all(found, chosen(wanted), scale)
    lines = results.lines(phases)
    results.show(lines)
    results.write(wanted.output, phases, settings(scale, started_s))
    results.draw(wanted.figure, lines)
    print(
        f"{scale.rounds} rounds, {time.monotonic() - started_s:.0f} s; everything in {wanted.output}, {wanted.figure}"
    )
    missed = results.missed(lines, OURS)
    print("\n".join(f"behind the aim: {sentence}" for sentence in missed) or "all aims reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
