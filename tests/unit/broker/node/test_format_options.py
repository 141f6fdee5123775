"""The options for formatting empty directories (broker/node/format_options.py)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from broker import cli
from broker.config.broker_config import BrokerConfig, ConfigError
from broker.node.format_options import parse_format_options, resolve_format_options, version_name
from broker.peers.quorum_config import load_quorum_config
from protocol.primitives import uuid_from_text
from replication.metadata_log.formatting import (
    FINALIZED_FEATURES,
    METADATA_VERSION_LEVEL,
    FormatOptions,
    InitialController,
)

DIRECTORY = "JEXY6aqzQY-32P5TStzaFg"
CONTROLLER = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
}
OTHERS = {"controller.quorum.bootstrap.servers": "localhost:9093,b:9093"}
STATIC = {"controller.quorum.voters": "1@a:9093,2@b:9093"}


def settle(requested: FormatOptions, **settings: str) -> FormatOptions:
    """What a node with these settings does."""
    config = BrokerConfig({**CONTROLLER, **{name.replace("_", "."): text for name, text in settings.items()}})
    return resolve_format_options(requested, config, load_quorum_config(config))


@pytest.mark.parametrize(
    "given",
    [
        {"cluster_id": "\udcff"},
        {"initial_controllers": f"1@\udcff:9093:{DIRECTORY}"},
        {"add_scram": ["SCRAM-SHA-256=[name=\udcff,password=p]"]},
    ],
)
def test_bytes_that_are_no_utf_8_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="take UTF-8 text"):
        parse_format_options(**given)


def test_initial_controllers_are_parsed_with_directory_ids() -> None:
    found = parse_format_options("c", initial_controllers=f"1@a:9093:{DIRECTORY}, 2@[::1]:9094:{DIRECTORY}").controllers
    directory = uuid_from_text(DIRECTORY)
    assert found == (InitialController(1, "a", 9093, directory), InitialController(2, "::1", 9094, directory))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initial_controllers": "foo"}, "id@host:port:directory"),
        ({"initial_controllers": "1@a:9093"}, "id@host:port:directory"),
        ({"initial_controllers": "1@a:9093:short"}, "id@host:port:directory"),
        ({"initial_controllers": f"²@a:9093:{DIRECTORY}"}, "id@host:port:directory"),
        ({"initial_controllers": f"2147483648@a:9093:{DIRECTORY}"}, "id@host:port:directory"),
        ({"initial_controllers": f"1@a:1:{DIRECTORY},1@b:1:{DIRECTORY}"}, "named twice"),
        ({"standalone": True, "no_initial_controllers": True}, "exclude each other"),
        ({"release": "9.9"}, "Unknown metadata.version '9.9'. Supported metadata.version are: 3.3-IV3, 3.4-IV0"),
        (
            {"release": "3.9", "features": ["eligible.leader.replicas.version=1"]},
            "depends on metadata.version level 23",
        ),
        ({"features": ["group.version"]}, "feature=level"),
        ({"features": ["group.version=²"]}, "feature=level"),
        ({"features": ["group.version=7"]}, "group.version is at 0 to 1"),
        (
            {"features": ["metadata.version=7"], "release": "4.0"},
            "Use --release-version instead of --feature metadata.version=X to avoid ambiguity",
        ),
        ({"cluster_id": " "}, "it is empty"),
        ({"cluster_id": "a\nb"}, "it has control characters"),
    ],
)
def test_a_malformed_option_is_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_format_options(**options)


def test_white_space_around_a_cluster_id_does_not_count() -> None:
    """meta.properties would not keep it: the next start would find another id, and refuse the given one."""
    assert parse_format_options(f" {DIRECTORY}\n").cluster_id == DIRECTORY


def test_the_default_feature_levels_are_those_of_kafka_4_3() -> None:
    assert parse_format_options().features == FINALIZED_FEATURES
    assert version_name(METADATA_VERSION_LEVEL) == "4.3-IV0"
    assert parse_format_options(release="4.0.1").features == (
        ("metadata.version", 25),
        ("group.version", 1),
        ("transaction.version", 2),
    )
    assert parse_format_options(features=["metadata.version=21"]).features == (("metadata.version", 21),)
    assert parse_format_options(release="4.0-IV0", features=["group.version=0"]).features == (("metadata.version", 22),)


def test_a_controller_without_other_controllers_is_standalone() -> None:
    assert settle(FormatOptions()).is_standalone
    assert settle(FormatOptions(), **{"controller.quorum.bootstrap.servers": "localhost:9093"}).is_standalone
    assert not settle(FormatOptions(), **{"process.roles": "broker", **OTHERS}).is_standalone
    assert not settle(FormatOptions(), **STATIC).is_standalone


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        ({}, OTHERS, "must specify one of the following: --standalone, --initial-controllers, or --no-init"),
        ({"standalone": True}, STATIC, "You cannot specify controller.quorum.voters and format the node with"),
        ({"standalone": True}, {"process.roles": "broker"}, "You can only use --standalone on a controller."),
        ({"standalone": True, "features": ["kraft.version=0"]}, {}, "Cannot set kraft.version to 0 if"),
        ({"features": ["kraft.version=1"]}, STATIC, "Cannot set kraft.version to 1 unless"),
    ],
)
def test_options_that_contradict_the_settings_are_refused(
    options: dict[str, Any], settings: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        settle(parse_format_options("c", **options), **settings)


def test_a_random_uuid_is_printed_and_nothing_is_formatted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [cli.main(["format", "--random-uuid", "--data-dir", str(tmp_path / "data")]) for _ in range(2)] == [0, 0]
    first, second = capsys.readouterr().out.splitlines()
    assert first != second
    assert len(uuid_from_text(first)) == len(uuid_from_text(second)) == 16
    assert not (tmp_path / "data").exists()


def test_the_replaced_disk_of_a_metadata_log_is_formatted_if_other_controllers_have_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node keeps its other directories. It must not start a quorum, which would not know their topics."""
    settings = {**CONTROLLER, **OTHERS, "log.dirs": f"{tmp_path}/a", "metadata.log.dir": f"{tmp_path}/m"}
    given = [word for name, text in settings.items() for word in ("--set", f"{name}={text}")]
    command = ["format", *given, "--cluster-id", DIRECTORY, "--ignore-formatted"]
    voters = ["--initial-controllers", f"1@a:9093:{DIRECTORY},2@b:9093:{DIRECTORY}"]
    assert cli.main([*command, *voters]) == 0
    shutil.rmtree(tmp_path / "m")
    kept = (tmp_path / "a/meta.properties").read_bytes()
    for options, code in ((voters, 1), (["--standalone"], 1), (["--no-initial-controllers"], 0)):
        assert cli.main([*command, *options]) == code
        assert (tmp_path / "m/meta.properties").exists() is (code == 0)
    assert "the old one first" in capsys.readouterr().err
    assert not (tmp_path / "m/__cluster_metadata-0").exists()
    assert (tmp_path / "a/meta.properties").read_bytes() == kept
