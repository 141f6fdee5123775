"""The listeners of each role (broker/config/config_rules.py)."""

from __future__ import annotations

import pytest

from broker.config.broker_config import ConfigError
from broker.config.config_loader import load_config

QUORUM = "controller.quorum.bootstrap.servers=a:9093"
NAMES = "controller.listener.names=CONTROLLER"
BOTH, BROKER, CONTROLLER = (f"process.roles={roles}" for roles in ("broker,controller", "broker", "controller"))
CLIENTS, VOTERS = "PLAINTEXT://:9092", "CONTROLLER://:9093"
MAP = "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,EXT:PLAINTEXT"


def load(lines: list[str]) -> None:
    load_config(None, {"node.id": "1", **dict(line.split("=", 1) for line in lines)}, use_kafka_defaults=True)


@pytest.mark.parametrize(
    "lines",
    [
        [BOTH, NAMES, QUORUM, f"listeners={CLIENTS},{VOTERS}"],
        [BOTH, f"listeners={CLIENTS}"],
        [BROKER, NAMES, QUORUM, f"listeners={CLIENTS},ext://:9094", MAP, "inter.broker.listener.name=Ext"],
        [CONTROLLER, NAMES, QUORUM, f"listeners={VOTERS}", "advertised.listeners=CONTROLLER://a:9093"],
    ],
)
def test_the_required_listeners_of_a_role_suffice(lines: list[str]) -> None:
    load(lines)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([BROKER, QUORUM, f"listeners={CLIENTS}"], "Missing required configuration"),
        (
            [BROKER, NAMES, QUORUM, f"listeners={CLIENTS},{VOTERS}"],
            "must not contain a value appearing in the 'listeners'",
        ),
        (
            [BROKER, NAMES, f"listeners={CLIENTS}"],
            "If using process.roles, either controller.quorum.bootstrap.servers must",
        ),
        ([CONTROLLER, NAMES, QUORUM, f"listeners={CLIENTS},{VOTERS}"], "The listeners config must only contain KRaft"),
        (
            [CONTROLLER, NAMES, QUORUM, f"listeners={CLIENTS}"],
            "must contain at least one value appearing in the 'listeners'",
        ),
        (
            [BOTH, NAMES, QUORUM, f"listeners={VOTERS}"],
            "There must be at least one broker advertised listener. Perhaps all",
        ),
        (
            [BOTH, f"listeners={CLIENTS}", "inter.broker.listener.name=X"],
            "must be a listener name defined in advertised",
        ),
        (
            [BOTH, f"listeners={CLIENTS}", "advertised.listeners=PLAINTEXT://0.0.0.0:9092"],
            "cannot use the nonroutable meta",
        ),
        (
            [BOTH, f"listeners={CLIENTS}", "advertised.listeners=X://a:9092"],
            "Found X. The valid options based on the current",
        ),
        (["process.roles=broker,foo", NAMES, QUORUM, f"listeners={CLIENTS}"], "foo"),
        ([BOTH, NAMES, QUORUM, f"listeners={CLIENTS},CONTROLLER://:9092"], "port 9092 is named twice"),
    ],
)
def test_wrong_listeners_of_a_role_are_a_sentence(lines: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(lines)
