"""The options for formatting empty directories, as in `kafka-storage format`: cluster id, voters, feature levels.

RULES    1. A dynamic quorum starts with this node alone (--standalone), with a list of controllers (--initial-controllers),
            or exists on other nodes (--no-initial-controllers). A controller needs one of these options.
         2. Without an option, a controller without other controllers in its settings is standalone. A broker does not start
            a quorum, nor does a node with static voters.
         3. A release sets the feature levels that Apache Kafka's formatter sets.
NOT HERE The files (`replication/metadata_log/formatting.py`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Final

from broker.config.broker_config import BrokerConfig, ConfigError, is_number, is_utf8
from broker.node.format_credentials import parse_credentials
from broker.peers.quorum_config import VOTERS, QuorumConfig, has_other_controllers, parse_host_port
from protocol.primitives import new_uuid, uuid_from_text, uuid_text
from replication.metadata.feature_levels import (
    KRAFT_VERSION,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    required_metadata_version,
)
from replication.metadata_log.formatting import METADATA_VERSION_LEVEL, FormatOptions, InitialController
from storage.config.config_def import MAX_INT

_LOWEST_LEVEL: Final = 7
_FIRST_WITH_SCRAM: Final = 11
_VERSIONS: Final = "3.3-IV3 3.4-IV0 3.5-IV0-2 3.6-IV0-2 3.7-IV0-4 3.8-IV0 3.9-IV0 4.0-IV0-3 4.1-IV0-1 4.2-IV0-1 4.3-IV0"
_DEFAULT_LEVELS: Final = (
    ("eligible.leader.replicas.version", 1, 26),
    ("group.version", 1, 22),
    ("share.version", 1, 28),
    ("streams.version", 1, 29),
    ("transaction.version", 2, 24),
)
"""The default level of each feature, from which metadata.version on."""


def parse_format_options(
    cluster_id: str | None = None,
    *,
    standalone: bool = False,
    initial_controllers: str | None = None,
    no_initial_controllers: bool = False,
    release: str | None = None,
    features: Sequence[str] = (),
    add_scram: Sequence[str] = (),
) -> FormatOptions:
    """Parses the options.

    Raises:
        ConfigError: an option is malformed, or several determine the voters.
    """
    exclusive = [standalone, initial_controllers is not None, no_initial_controllers]
    if sum(exclusive) > 1:
        raise ConfigError(
            "--standalone, --initial-controllers and --no-initial-controllers exclude each other: give one"
        )
    cluster_id = None if cluster_id is None else cluster_id.strip()  # a file or a secret may end in a line feed
    if cluster_id == "":
        raise ConfigError("--cluster-id: it is empty")
    if not is_utf8("".join((cluster_id or "", initial_controllers or "", *add_scram))):
        raise ConfigError("--cluster-id, --initial-controllers and --add-scram take UTF-8 text")
    if cluster_id is not None and not cluster_id.isprintable():
        raise ConfigError("--cluster-id: it has control characters")
    given = dict(_feature(text) for text in features)
    kraft_version, metadata_version = given.pop(KRAFT_VERSION, None), given.pop(METADATA_VERSION, None)
    if release is not None and metadata_version is not None:
        raise ConfigError(f"Use --release-version instead of --feature {METADATA_VERSION}=X to avoid ambiguity.")
    if release is not None:
        metadata_version = _level_of(release)
    levels = _levels(METADATA_VERSION_LEVEL if metadata_version is None else metadata_version, given)
    if add_scram and levels[0][1] < _FIRST_WITH_SCRAM:
        version = version_name(_FIRST_WITH_SCRAM)
        raise ConfigError(f"SCRAM is only supported in metadata.version {version} or later.")
    return FormatOptions(
        cluster_id,
        standalone,
        _controller_peers(initial_controllers),
        no_initial_controllers,
        levels,
        parse_credentials(add_scram),
        kraft_version,
    )


def resolve_format_options(options: FormatOptions, config: BrokerConfig, quorum_config: QuorumConfig) -> FormatOptions:
    """The options in force on a node with these settings (rules 1 and 2).

    Raises:
        ConfigError: settings and options contradict each other, or an option is missing.
    """
    is_controller = "controller" in config.roles
    if quorum_config.static_voters:
        if options.is_standalone or options.controllers:
            raise ConfigError(
                f"You cannot specify {VOTERS} and format the node with --initial-controllers or --standalone. If you want to "
                f"use dynamic quorum, please remove {VOTERS} and specify controller.quorum.bootstrap.servers instead."
            )
        if options.kraft_version:
            raise ConfigError(
                f"Cannot set {KRAFT_VERSION} to {options.kraft_version} unless {VOTERS} is empty and one of the flags "
                "--standalone, --initial-controllers, or --no-initial-controllers is used. For dynamic controllers support, "
                f"try using one of --standalone, --initial-controllers, or --no-initial-controllers and removing {VOTERS}."
            )
        return options
    if options.kraft_version == 0:
        raise ConfigError(
            f"Cannot set {KRAFT_VERSION} to 0 if {VOTERS} is empty and one of the flags --standalone, --initial-controllers, "
            "or --no-initial-controllers is used. For dynamic controllers support, try removing the --feature flag for "
            f"{KRAFT_VERSION}."
        )
    if options.is_standalone and not is_controller:
        raise ConfigError("You can only use --standalone on a controller.")
    if options.names_voters or not is_controller:
        return options
    if has_other_controllers(config, quorum_config):
        raise ConfigError(
            f"Because {VOTERS} is not set on this controller, you must specify one of the following: --standalone, "
            "--initial-controllers, or --no-initial-controllers."
        )
    return options._replace(is_standalone=True)


def random_uuid() -> str:
    """A new id for a cluster or a directory, as `kafka-storage random-uuid` prints it."""
    return uuid_text(new_uuid(secrets.token_bytes))


def version_name(level: int) -> str:
    """Kafka's name of a metadata.version."""
    return _version_names()[level - _LOWEST_LEVEL]


def _version_names() -> list[str]:
    names = []
    for text in _VERSIONS.split():
        release, first, last = re.fullmatch(r"(.*-IV)(\d)(?:-(\d))?", text).groups()  # type: ignore[union-attr]
        names += [f"{release}{number}" for number in range(int(first), int(last or first) + 1)]
    return names


def _level_of(release: str) -> int:
    """The level of a version such as 4.0-IV2, or the last one of a release such as 4.0 or 4.0.1."""
    names = _version_names()
    short = re.match(r"\d+\.\d+(?=\.\d|$)", release)
    found = [
        number for number, name in enumerate(names) if name == release or (short and name.startswith(f"{short[0]}-"))
    ]
    if not found:
        raise ConfigError(f"Unknown metadata.version '{release}'. Supported metadata.version are: {', '.join(names)}")
    return _LOWEST_LEVEL + found[-1]


def _levels(version: int, given: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """The feature levels of a metadata.version or of single options (rule 3); it is the first record of a metadata log."""
    levels = {name: level for name, level, first_version in _DEFAULT_LEVELS if version >= first_version} | given
    for name, level in levels.items():
        needed = required_metadata_version(name, level)
        if version < needed:
            raise ConfigError(
                f"{name} could not be set to {level} because it depends on {METADATA_VERSION} level {needed}"
            )
    return ((METADATA_VERSION, version), *((name, level) for name, level in sorted(levels.items()) if level))


def _feature(text: str) -> tuple[str, int]:
    name, separator, level = (part.strip() for part in text.partition("="))
    if not separator or not is_number(level, MAX_INT):
        raise ConfigError(f"--feature {text}: give it as feature=level, such as group.version=1")
    if name not in SUPPORTED_FEATURES:
        names = sorted(set(SUPPORTED_FEATURES) - {METADATA_VERSION})
        raise ConfigError(f"Unsupported feature: {name}. Supported features are: {', '.join(names)}")
    lowest, highest = SUPPORTED_FEATURES[name]
    if not lowest <= int(level) <= highest:
        raise ConfigError(f"--feature {text}: {name} is at {lowest} to {highest}")
    return name, int(level)


def _controller_peers(text: str | None) -> tuple[InitialController, ...]:
    if text is None:
        return ()
    controllers = tuple(_controller(one.strip()) for one in text.split(","))
    if len({one.node_id for one in controllers}) != len(controllers):
        raise ConfigError("--initial-controllers: a node is named twice")
    return controllers


def _controller(text: str) -> InitialController:
    node, _, rest = text.partition("@")
    address_text, _, directory = rest.rpartition(":")
    address = parse_host_port(address_text)
    try:
        directory_id = uuid_from_text(directory)
    except ValueError:
        directory_id = b""
    if not is_number(node, MAX_INT) or address is None or not directory_id:
        raise ConfigError(
            f"--initial-controllers: {text!r} is not of the form id@host:port:directory, such as "
            "1@127.0.0.1:9093:JEXY6aqzQY-32P5TStzaFg"
        )
    return InitialController(int(node), address.host, address.port, directory_id)
