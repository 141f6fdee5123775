"""Clients on secured listeners with ACLs: a share of the conformance suite; `make conformance ARGS="--security …"` runs all.

A client runs the scenarios of security on one profile, and two more of the suite; CONFORMANCE_SEED chooses all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.conformance.suite.clients import CLIENTS, Client
from tests.conformance.suite.player import FAILED, Player
from tests.conformance.suite.tables import security
from tests.conformance.suite.tables.all_scenarios import CLIENT_FAULTS, SCENARIOS
from tests.conformance.test_suite_sample import SEED, command_of, todays_clients
from tests.support.security_profiles import PROFILES, SecuredNode

SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 5}
TODAYS_PROFILE = list(PROFILES)[SEED % len(PROFILES)]
TODAYS_CLIENT = random.Random(SEED).choice([one for one in todays_clients() if one.has_security])


@pytest.fixture(scope="module", params=[TODAYS_PROFILE])
def node(request: pytest.FixtureRequest) -> Iterator[SecuredNode]:
    with SecuredNode(PROFILES[request.param], SETTINGS) as made:
        security.grant(made)
        yield made


def failures(client: Client, node: SecuredNode) -> dict[str, str]:
    """The reasons of the scenarios that fail and are no known failure with Apache Kafka too."""
    print(f"CONFORMANCE_SEED={SEED}")
    chosen = [*security.scenarios(node), *random.Random(f"{SEED} {client.name}").sample(SCENARIOS, 2)]
    with Player(command_of(client), node.bootstrap, security.logins(node), node.inside) as player:
        outcomes = {one.name: player.play(one) for one in chosen if (client.name, one.name) not in CLIENT_FAULTS}
    return {name: one.reason for name, one in outcomes.items() if one.state == FAILED}


@pytest.mark.parametrize("client", [TODAYS_CLIENT], ids=lambda client: client.name)
def test_a_client_authenticates_and_is_authorized(node: SecuredNode, client: Client) -> None:
    """Every scenario passes, or is unsupported by the client, or is a known failure with Apache Kafka too."""
    assert failures(client, node) == {}


@pytest.mark.long
@pytest.mark.parametrize("node", list(PROFILES), indirect=True)
@pytest.mark.parametrize("client", [one for one in CLIENTS if one.has_security], ids=lambda client: client.name)
def test_every_client_on_every_profile(node: SecuredNode, client: Client) -> None:
    assert failures(client, node) == {}
