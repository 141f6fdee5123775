"""`make conformance`: every client runs every scenario; the results are printed and stored in docs/compatibility.md.

python -m tests.conformance.suite                              against its own Barnabas broker; writes the page
python -m tests.conformance.suite --kafka                      against Apache Kafka 4.3.1
python -m tests.conformance.suite --nodes 3                    against its own cluster of three nodes
python -m tests.conformance.suite --bootstrap HOST:PORT        against any broker
python -m tests.conformance.suite --security SASL_SSL/PLAIN    on a listener with security and ACLs, also with --kafka
python -m tests.conformance.suite --client sarama --only transactions
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from barnabas import Broker, Cluster
from tests.conformance.suite import compatibility_page, matrix
from tests.conformance.suite.clients import CLIENTS, available
from tests.conformance.suite.player import FAILED, Outcome, Player
from tests.conformance.suite.steps import Scenario
from tests.conformance.suite.tables import security
from tests.conformance.suite.tables.all_scenarios import CLIENT_FAULTS, scenarios_of
from tests.support.kafka import KAFKA_VERSION, ApacheKafka
from tests.support.security_profiles import PROFILES, SecuredNode
from tests.support.storage_engine import use_engine_of

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 5}
AT_A_TIME = 2
"""How many clients run concurrently; each runs its scenarios in sequence."""


class _Target(NamedTuple):
    """A broker; `security` is what `Player` takes for its listener."""

    bootstrap: str
    name: str
    nodes: int = 1
    security: Mapping[str, Any] = {}
    security_scenarios: Sequence[Scenario] = ()


def main(arguments: Sequence[str]) -> int:
    """Runs the selected clients and scenarios; 1 if a failure is not a known one."""
    options = _parser().parse_args(arguments)
    able = [one for one in CLIENTS if one.has_security or not options.security]
    clients = [one for one in able if not options.client or one.name in options.client]
    with _broker(options) as target:
        every = [*scenarios_of(target.nodes), *target.security_scenarios]
        scenarios = [one for one in every if options.only in f"{one.subject}: {one.name}"]
        is_whole = len(clients) == len(able) and len(scenarios) == len(every)
        commands, absent = available(clients)
        outcomes, versions = _play(commands, scenarios, target)
        cells = matrix.fill(commands, target.bootstrap, **target.security) if is_whole else {}
    languages = {one.name: one.language for one in clients}
    results = compatibility_page.Results(versions, languages, absent, outcomes, cells)
    page = compatibility_page.page(results, target.name)
    if is_whole and target.name == "Barnabas":
        PAGE.write_text(page)
    if is_whole:
        print(page)
    failures = results.failures()
    print("\n".join([*failures, f"{len(outcomes)} played, {len(failures)} failed"]))
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="an existing broker")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="start a cluster of N nodes, ids 1 to N")
    parser.add_argument("--kafka", action="store_true", help="start Apache Kafka and run against it")
    parser.add_argument(
        "--security", choices=list(PROFILES), help="a profile; the clients authenticate and need rights"
    )
    parser.add_argument("--client", action="append", choices=[one.name for one in CLIENTS])
    parser.add_argument("--only", default="", metavar="TEXT", help="scenarios whose subject or name contains TEXT")
    return parser


@contextlib.contextmanager
def _broker(options: argparse.Namespace) -> Iterator[_Target]:
    name = f"Apache Kafka {KAFKA_VERSION}" if options.kafka else "Barnabas"
    if options.bootstrap:
        yield _Target(options.bootstrap, f"the broker at {options.bootstrap}", options.nodes)
    elif options.security:
        with SecuredNode(PROFILES[options.security], SETTINGS, kafka=options.kafka) as node:
            security.grant(node)
            secured = {"logins": security.logins(node), "inside": node.inside}
            yield _Target(node.bootstrap, f"{name}, {options.security}", 1, secured, security.scenarios(node))
    elif options.kafka:
        with ApacheKafka(SETTINGS) as kafka:
            yield _Target(kafka.bootstrap, name)
    elif options.nodes > 1:
        with Cluster(options.nodes, settings=SETTINGS) as cluster:
            yield _Target(cluster.nodes[1].bootstrap, f"{name}, {options.nodes} nodes", options.nodes)
    else:
        with Broker(settings=SETTINGS) as broker:
            yield _Target(broker.bootstrap, name)


def _play(
    commands: dict[str, list[str]], scenarios: Sequence[Scenario], target: _Target
) -> tuple[dict[tuple[str, str], Outcome], dict[str, str]]:
    outcomes: dict[tuple[str, str], Outcome] = {}
    versions = dict.fromkeys(commands, "")

    def play_all(name: str) -> None:
        with Player(commands[name], target.bootstrap, **target.security) as player:
            versions[name] = player.ask("hello")["version"]
            for scenario in scenarios:
                outcome = outcomes[name, scenario.name] = player.play(scenario)
                is_new_failure = outcome.state == FAILED and (name, scenario.name) not in CLIENT_FAULTS
                print(
                    f"{outcome.seconds:6.1f} s  {name:15} {outcome.state:11} {scenario.subject}: {scenario.name}"
                    + (f"\n    {outcome.reason}" if is_new_failure else ""),
                    flush=True,
                )

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(play_all, commands))
    return outcomes, versions


if __name__ == "__main__":
    use_engine_of()
    sys.exit(main(sys.argv[1:]))
