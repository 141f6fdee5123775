"""Paced producers while their broker does other work: make bench ARGS="stalls"

Twenty producers send fifty records a second each to one topic, acks=1. The latency of a request counts from the time it was
due. Meanwhile, in turn: nothing else; a consumer scans data that is not in the page cache; four producers flush every record;
a large topic is deleted; topics of 1,000 partitions are created and deleted; and a second log directory delays every write,
read and rename by 200 ms, while clients write to it, commit offsets and create and delete topics in it. The reference of each
scenario is the same work on the same disk by another program, while the broker serves the paced producers only.

The exit code is 0 when the p99 of the producers is at most twice the reference's, and no stall of Barnabas' event loop was
longer than 50 ms.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from barnabas.embedded import Broker
from tests.benchmark.builds import MeasuredBroker
from tests.benchmark.load import stall_scenarios as scenarios
from tests.benchmark.load.background_work import running_task
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.paced_producers import Sample, measure
from tests.benchmark.load.running_broker import in_turn
from tests.benchmark.report.publish import measured
from tests.benchmark.report.rows import OURS, THEIRS, Results
from tests.benchmark.report.terminal import (
    Wanted,
    options,
    parse_arguments,
    results_name,
    results_settings,
    show_progress,
)
from tests.support.faulty_directory import FaultyDirectory, why_fuse_is_unavailable
from tests.support.kafka import STOCK_JVM, ApacheKafka
from tests.support.stall_lines import lines_of

WARM_UP_S = 3.0
REST_S = 0.5
SETTLE_S = 2.5
"""Longer than the watchdog's pause after a log line, so that all stalls of a measurement are logged."""
AIM_RATIO = 2.0
AIM_STALL_MS = 50.0
REFERENCE = "reference"
P99, STALL = "p99 ms", "longest stall ms"
SETTINGS = {
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "log.segment.delete.delay.ms": 0,
    "log.initial.task.delay.ms": 0,
}
"""The last two: files are deleted as soon as their topic is."""


@contextlib.contextmanager
def brokers(root: Path, wanted: Wanted) -> Iterator[list[scenarios.BrokerUnderLoad]]:
    """One running broker of each kind, with two log directories."""
    with contextlib.ExitStack() as held:
        found = []
        for name in (OURS,) if wanted.alone else (OURS, THEIRS):
            home = root / name.lower().replace(" ", "-")
            quick = home / "quick"
            quick.mkdir(parents=True)
            slow = None
            if why_fuse_is_unavailable() is None:
                slow = held.enter_context(FaultyDirectory(home / "backing", home / "slow"))
            directories = ",".join(map(str, [quick] if slow is None else [quick, slow.path]))
            node: Broker | ApacheKafka
            if name == OURS:
                limits = {"start_timeout_s": 120.0, "stop_timeout_s": 120.0}
                node = MeasuredBroker(wanted.builds[OURS], directories, settings=SETTINGS, **limits)
            else:
                node = ApacheKafka({**SETTINGS, "log.dirs": directories}, data_dir=quick, jvm=STOCK_JVM)
            held.enter_context(node)
            log = node.log if isinstance(node, Broker) else str
            found.append(scenarios.BrokerUnderLoad(name, node.bootstrap, quick, slow, log))
        yield found


def run(broker: scenarios.BrokerUnderLoad, scale: scenarios.Scale, work: scenarios.Work, *, is_slow: bool) -> Outcome:
    """One scenario's work on one broker, or its reference."""
    task = work(broker, scale)
    with scenarios.slowed(broker) if is_slow else contextlib.nullcontext():
        time.sleep(REST_S)
        log_end = len(broker.log())
        with running_task(task):
            samples = measure(broker.bootstrap, scenarios.QUIET, scale.seconds)
    time.sleep(SETTLE_S if broker.name == OURS else REST_S)
    stalls = [float(found[1]) for line in lines_of(broker.log()[log_end:]) if (found := re.search(r"(\d+) ms", line))]
    latencies_ms = _sorted_ms(samples.produced)
    count = len(latencies_ms)
    quantiles = {"p50 ms": 0.5, P99: 0.99, "p99.9 ms": 0.999}
    figures = {name: latencies_ms[min(count - 1, int(count * quantile))] for name, quantile in quantiles.items()}
    figures |= {"max ms": latencies_ms[-1], "probe max ms": _sorted_ms(samples.probed)[-1]}
    if broker.name == OURS:
        figures[STALL] = max(stalls, default=0.0)
    return Outcome(figures, [latency_ms / 1000 for latency_ms in latencies_ms])


def _sorted_ms(samples: list[Sample]) -> list[float]:
    return sorted(1000 * sample.latency_s for sample in samples)


def run_all(results: Results, wanted: Wanted, scale: scenarios.Scale) -> None:
    """Every scenario in every round on every broker; the order of the brokers alternates."""
    with (
        tempfile.TemporaryDirectory(prefix="stalls-", dir=wanted.directory) as root,
        brokers(Path(root), wanted) as found,
    ):
        for broker in found:
            scenarios.prepare(broker, scale)
            measure(broker.bootstrap, scenarios.QUIET, WARM_UP_S)
        for turn in range(wanted.rounds):
            for scenario in chosen(wanted):
                for broker in in_turn(found, turn):
                    show_progress(f"round {turn + 1} of {wanted.rounds}: {scenario.name}: {broker.name}")
                    works = {"": scenario.broker_work, f", {REFERENCE}": scenario.reference_work}
                    for suffix, work in works.items():
                        if work is not None:
                            outcome = run(broker, scale, work, is_slow=scenario.is_slow)
                            results.add(f"{scenario.name}{suffix}", broker.name, outcome)


def chosen(wanted: Wanted) -> list[scenarios.Scenario]:
    """The scenarios that are wanted and possible here."""
    can_be_slow = why_fuse_is_unavailable() is None
    return [one for one in scenarios.SCENARIOS if wanted.wants(one.name) and (can_be_slow or not one.is_slow)]


def missed_aims(results: Results) -> list[str]:
    """The aims that Barnabas missed, one sentence each."""
    samples = {(row.load, row.figure): row.samples[OURS] for row in results.rows}
    sentences = []
    for (load, figure), values in samples.items():
        if figure == P99 and (reference := samples.get((f"{load}, {REFERENCE}", P99))):
            ratio = statistics.median(ours / other for ours, other in zip(values, reference, strict=True))
            if ratio > AIM_RATIO:
                sentences.append(f"{load}: p99 is {ratio:.1f} x of the reference")
        if figure == STALL and not load.endswith(REFERENCE) and max(values) > AIM_STALL_MS:
            sentences.append(f"{load}: the event loop stalled for {max(values):.0f} ms")
    return sentences


def main() -> int:
    parser = options("stalls", __doc__, quick_rounds=1, has_builds=False)
    where = "the brokers' data directories are created here, on the disk to be measured; default: a temporary one"
    parser.add_argument("--directory", type=Path, help=where)
    wanted = parse_arguments(parser)
    scale = scenarios.QUICK if wanted.quick else scenarios.FULL
    if (reason := why_fuse_is_unavailable()) is not None:
        print(f"Without a slow directory: {reason}")
    results = Results(results_name("stalls", wanted), {**results_settings(wanted), "scale": scale._asdict()})
    measured(results, lambda: run_all(results, wanted, scale), docs=wanted.docs)
    missed = missed_aims(results)
    print("\n".join(f"behind the aim: {sentence}" for sentence in missed) or "all aims reached")
    return 1 if missed else 0
