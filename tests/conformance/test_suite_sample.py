"""A sample of the conformance suite: a part of the clients and scenarios, chosen by a seed; `make conformance` runs all.

Python's clients and one of Java always run, one of the other languages in turn; CONFORMANCE_SEED=… repeats a choice.
Rust's client takes minutes to build, so it runs only where `make conformance` has built it.
"""

from __future__ import annotations

import os
import random

import pytest

from barnabas import Broker, Cluster
from tests.conformance.suite import matrix
from tests.conformance.suite.__main__ import SETTINGS
from tests.conformance.suite.clients import CLIENTS, Client, ToolchainMissing, available
from tests.conformance.suite.compatibility_page import faults_of
from tests.conformance.suite.player import FAILED, Player
from tests.conformance.suite.steps import Scenario
from tests.conformance.suite.tables.all_scenarios import CLIENT_FAULTS, SCENARIOS, scenarios_of
from tests.conformance.suite.tables.records import CODECS

SEED = int(os.environ.get("CONFORMANCE_SEED") or os.environ.get("SEED") or 1)
DAILY = ("Python", "Java")
SCENARIOS_PER_CLIENT = 5


def todays_clients() -> list[Client]:
    """The clients selected by the seed."""
    python, java = ([one for one in CLIENTS if one.language == language] for language in DAILY)
    others = sorted({one.language for one in CLIENTS if one.language not in DAILY and one.is_quick()})
    other = others[SEED % len(others)] if others else None
    return [*python, java[SEED % len(java)], *(one for one in CLIENTS if one.language == other)]


def command_of(client: Client) -> list[str]:
    """Builds the client; skips the test without its toolchain."""
    try:
        return client.command()
    except ToolchainMissing as why:
        pytest.skip(f"{client.name}: {why}")


def failures(client: Client, bootstrap: str, scenarios: list[Scenario]) -> dict[str, str]:
    """The reasons of the scenarios that fail and are no known failure with Apache Kafka too."""
    with Player(command_of(client), bootstrap) as player:
        outcomes = {one.name: player.play(one) for one in scenarios if (client.name, one.name) not in CLIENT_FAULTS}
    return {name: one.reason for name, one in outcomes.items() if one.state == FAILED}


@pytest.mark.parametrize("client", todays_clients(), ids=lambda client: client.name)
def test_a_client_runs_some_scenarios(kafka_broker: Broker, client: Client) -> None:
    """Every scenario passes, or is unsupported by the client, or is a known failure with Apache Kafka too."""
    print(f"CONFORMANCE_SEED={SEED}")
    todays = random.Random(f"{SEED} {client.name}").sample(SCENARIOS, SCENARIOS_PER_CLIENT)
    assert failures(client, kafka_broker.bootstrap, todays) == {}


@pytest.mark.long
@pytest.mark.parametrize("client", [one for one in CLIENTS if one.language == "Python"], ids=lambda client: client.name)
def test_a_python_client_runs_every_scenario(kafka_broker: Broker, client: Client) -> None:
    assert failures(client, kafka_broker.bootstrap, list(SCENARIOS)) == {}


@pytest.mark.long
@pytest.mark.parametrize("client", [one for one in CLIENTS if one.language == "Python"], ids=lambda client: client.name)
def test_a_python_client_runs_every_scenario_on_three_nodes(client: Client) -> None:
    with Cluster(3, settings=SETTINGS) as cluster:
        assert failures(client, cluster.nodes[1].bootstrap, list(scenarios_of(3))) == {}


def test_every_python_client_reads_what_the_others_wrote(kafka_broker: Broker) -> None:
    """Every codec, every pair: key, value, headers, timestamp and the order within a partition."""
    commands = {client.name: client.command() for client in CLIENTS if client.language == "Python"}
    assert faults_of(matrix.fill(commands, kafka_broker.bootstrap)) == []


@pytest.mark.long
def test_every_installed_client_reads_what_the_others_wrote(kafka_broker: Broker) -> None:
    """One codec, every pair of clients."""
    codec = CODECS[SEED % len(CODECS)]
    print(f"CONFORMANCE_SEED={SEED}, {codec}")
    commands, absent = available(todays_clients())
    print(absent)
    assert faults_of(matrix.fill(commands, kafka_broker.bootstrap, [codec])) == []
