"""A sample of the conformance suite: some clients, some scenarios, others every day. `make conformance` plays all.

Python's and Java's clients play every day, one of the other languages in turn; CONFORMANCE_SEED=… plays a day again.
Rust's client takes minutes to build, so it plays only where `make conformance` has built it.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.conformance.suite import matrix
from tests.conformance.suite.clients import CLIENTS, Client, NotHere
from tests.conformance.suite.playing import FAILED, Player
from tests.conformance.suite.table import faults_of
from tests.conformance.suite.tables.everything import KNOWN, NOW_AND_THEN, SCENARIOS
from tests.conformance.suite.tables.records import CODECS
from tests.support.turns import day_of_the_run

SEED = int(os.environ.get("CONFORMANCE_SEED") or day_of_the_run())
DAILY = ("Python", "Java")
EACH = 8
"""Scenarios for a client."""
OWN_FAULTS = KNOWN.keys() | NOW_AND_THEN.keys()


def of_the_day() -> list[Client]:
    """The clients whose turn it is."""
    others = sorted({one.language for one in CLIENTS if one.language not in DAILY and one.is_quick()})
    todays = (*DAILY, *([others[SEED % len(others)]] if others else []))
    return [one for one in CLIENTS if one.language in todays]


def command_of(client: Client) -> list[str]:
    """Build it, or skip with its reason."""
    try:
        return client.command()
    except NotHere as why:
        pytest.skip(f"{client.name}: {why}")


@pytest.mark.parametrize("client", of_the_day(), ids=lambda client: client.name)
def test_a_client_lives_through_some_scenarios(kafka_broker, client: Client) -> None:
    """Every scenario passes, or asks for what the client cannot do, or fails with Apache Kafka as well."""
    todays = random.Random(f"{SEED} {client.name}").sample(SCENARIOS, EACH)
    print(f"CONFORMANCE_SEED={SEED}")
    with Player(command_of(client), kafka_broker.bootstrap) as player:
        outcomes = {one.name: player.play(one) for one in todays if (client.name, one.name) not in OWN_FAULTS}
    assert {name: one.reason for name, one in outcomes.items() if one.state == FAILED} == {}


def test_every_client_of_the_day_reads_what_the_others_wrote(kafka_broker) -> None:
    """One codec a day, every pair of clients."""
    codec = CODECS[SEED % len(CODECS)]
    print(f"CONFORMANCE_SEED={SEED}, {codec}")
    commands = {}
    for client in of_the_day():
        try:
            commands[client.name] = client.command()
        except NotHere as why:
            print(f"{client.name}: {why}")
    assert faults_of(matrix.fill(commands, kafka_broker.bootstrap, [codec])) == []
