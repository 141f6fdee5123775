"""Guards broker/node/format_options.py: what a cluster is founded with, in the words of kafka-storage format."""

from __future__ import annotations

from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.node.format_options import Founding, founding, settled, version_name
from broker.peers.quorum_config import quorum_places
from protocol.primitives import uuid_from_text
from replication.metadata_log.formatting import FINALIZED_FEATURES, METADATA_VERSION_LEVEL, InitialController

DIRECTORY = "JEXY6aqzQY-32P5TStzaFg"
CONTROLLER = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
}
OTHERS = {"controller.quorum.bootstrap.servers": "localhost:9093,b:9093"}
STATIC = {"controller.quorum.voters": "1@a:9093,2@b:9093"}


def settle(asked: Founding, **settings: str) -> Founding:
    """What a node with these settings does."""
    config = BrokerConfig({**CONTROLLER, **{name.replace("_", "."): text for name, text in settings.items()}})
    return settled(asked, config, quorum_places(config))


def test_the_initial_controllers_are_read_with_their_directories() -> None:
    """As kafka-storage takes them; an address of IPv6 stands in brackets."""
    found = founding("c", initial_controllers=f"1@a:9093:{DIRECTORY}, 2@[::1]:9094:{DIRECTORY}").controllers
    directory = uuid_from_text(DIRECTORY)
    assert found == (InitialController(1, "a", 9093, directory), InitialController(2, "::1", 9094, directory))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initial_controllers": "foo"}, "id@host:port:directory"),
        ({"initial_controllers": "1@a:9093"}, "id@host:port:directory"),
        ({"initial_controllers": "1@a:9093:short"}, "id@host:port:directory"),
        ({"initial_controllers": f"1@a:1:{DIRECTORY},1@b:1:{DIRECTORY}"}, "named twice"),
        ({"standalone": True, "no_initial_controllers": True}, "exclude each other"),
        ({"release": "9.9"}, "Unknown metadata.version '9.9'. Supported metadata.version are: 3.3-IV3, 3.4-IV0"),
        (
            {"release": "3.9", "features": ["eligible.leader.replicas.version=1"]},
            "depends on metadata.version level 23",
        ),
        ({"features": ["group.version"]}, "feature=level"),
        ({"features": ["group.version=7"]}, "group.version is at 0 to 1"),
        (
            {"features": ["metadata.version=7"]},
            "Unsupported feature: metadata.version. Supported features are: eligible",
        ),
        ({"cluster_id": " "}, "it is empty"),
    ],
)
def test_what_cannot_be_meant_is_said(options: dict[str, Any], words: str) -> None:
    """In a sentence."""
    with pytest.raises(ConfigError, match=words):
        founding(**options)


def test_without_a_release_a_cluster_begins_as_apache_kafka_4_3_does() -> None:
    """Rule 3."""
    assert founding().features == FINALIZED_FEATURES
    assert version_name(METADATA_VERSION_LEVEL) == "4.3-IV0"
    assert founding(release="4.0.1").features == (
        ("metadata.version", 25),
        ("group.version", 1),
        ("transaction.version", 2),
    )
    assert founding(release="4.0-IV0", features=["group.version=0"]).features == (("metadata.version", 22),)


def test_a_controller_that_knows_of_no_other_begins_alone() -> None:
    """Rule 2: as where nothing is set, so where it is named as its own bootstrap server."""
    assert settle(Founding()).is_standalone
    assert settle(Founding(), **{"controller.quorum.bootstrap.servers": "localhost:9093"}).is_standalone
    assert not settle(Founding(), **{"process.roles": "broker", **OTHERS}).is_standalone
    assert not settle(Founding(), **STATIC).is_standalone


@pytest.mark.parametrize(
    ("asked", "settings", "words"),
    [
        (founding("c"), OTHERS, "must specify one of the following: --standalone, --initial-controllers, or --no-init"),
        (
            founding("c", standalone=True),
            STATIC,
            "You cannot specify controller.quorum.voters and format the node with",
        ),
        (founding("c", standalone=True), {"process.roles": "broker"}, "You can only use --standalone on a controller."),
        (founding("c", standalone=True, features=["kraft.version=0"]), {}, "Cannot set kraft.version to 0 if"),
        (founding("c", features=["kraft.version=1"]), STATIC, "needs a quorum without controller.quorum.voters"),
    ],
)
def test_options_and_settings_that_contradict_each_other_are_refused(
    asked: Founding, settings: dict[str, str], words: str
) -> None:
    """In Apache Kafka's words where it has some."""
    with pytest.raises(ConfigError, match=words):
        settle(asked, **settings)
