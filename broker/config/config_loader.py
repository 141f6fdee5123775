"""Reads the broker's settings from a file, the environment and the command line.

RULES    1. The command line overrides the environment, the environment the file, the file the defaults.
         2. An invalid value stops the startup with a sentence that names its source (file and line, variable) and the valid
            values. An unknown name is only a warning: a shared file may contain settings of client libraries.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from broker.config.broker_config import BrokerConfig, ConfigError, is_utf8
from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.config_rules import find_conflict, find_listener_error
from broker.config.connection_configs import find_connection_error, is_listener_limit
from broker.config.env_config import variable_of
from broker.config.sasl_configs import is_listener_setting
from broker.config.security_configs import AUTHORIZER_SETTINGS, find_unenforced
from broker.config.ssl_configs import is_ssl_setting
from broker.config.ssl_definitions import IGNORED_AND_SSL
from storage.config.config_def import BadSetting, parse

_log = logging.getLogger("barnabas.config")

QUICK_START = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""The settings without a file: one node, like Kafka's example `server.properties`."""


_PROPERTY = re.compile(r"((?:\\.|[^\\=:])*)[=:](.*)", re.DOTALL)
_LINE_END = re.compile(r"\r\n|\r|\n")
_CONTINUES = re.compile(r"(?<!\\)(?:\\\\)*\\$")
"""An odd number of backslashes; two are one that is escaped."""
_OF_LISTENER = re.compile(r"listener\.name\.[^.]+\.(num\.network\.threads|principal\.builder\.class)")
"""Other settings of one listener: the first has no effect, the second is refused (`find_unenforced`)."""
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def load_config(
    path: str | None,
    overrides: Mapping[str, str],
    listen: str | None = None,
    *,
    env_settings: Mapping[str, str] | None = None,
    use_kafka_defaults: bool = False,
) -> BrokerConfig:
    """Reads a settings file (None: the quick start's settings), and applies the values of environment and command line.

    `listen` replaces the client listeners only. With `use_kafka_defaults`, no file means Kafka's defaults.

    Raises:
        ConfigError: the file is unreadable, a line is malformed, or a value is invalid.
    """
    texts = dict(QUICK_START) if path is None and not use_kafka_defaults else {}
    origin = dict.fromkeys(texts, "the built-in settings")
    if path is not None:
        for name, text, line in _read_properties(path):
            texts[name], origin[name] = text, f"{path}, line {line}"
    for name, text in (env_settings or {}).items():
        texts[name], origin[name] = text, f"the environment variable {variable_of(name)}"
    for name, text in overrides.items():
        texts[name], origin[name] = text, "the command line"
    for name, text in texts.items():
        if not is_utf8(name + text):
            raise ConfigError(f"{origin[name]}: the setting {name} is not UTF-8 text")
        setting = BROKER_SETTINGS.get(name) or IGNORED_AND_SSL.get(name)
        if setting is not None:
            try:
                parse(setting, text)
            except BadSetting as invalid:
                raise ConfigError(f"{origin[name]}: {invalid}") from None
        elif not (name in AUTHORIZER_SETTINGS or is_ssl_setting(name) or _is_of_listener(name)):
            _log.warning("unknown setting %s (%s) is ignored%s", name, origin[name], _suggestion(name))
    _complete_node_id(texts)
    config = BrokerConfig(texts)
    if listen is not None:
        controller_listeners = [
            f"{e.name}://{f'[{e.host}]' if ':' in e.host else e.host}:{e.port}" for e in config.controller_listeners
        ]
        config = BrokerConfig({**texts, "listeners": ",".join([f"PLAINTEXT://{listen}", *controller_listeners])})
    error = (
        find_listener_error(config) or find_unenforced(config) or find_conflict(config) or find_connection_error(config)
    )
    if error is not None:
        raise ConfigError(error)
    return config


def _is_of_listener(name: str) -> bool:
    """Whether a name is a setting with the prefix of a listener."""
    return is_listener_setting(name) or is_listener_limit(name) or _OF_LISTENER.fullmatch(name) is not None


def _complete_node_id(texts: dict[str, str]) -> None:
    """Gives node.id and its old name broker.id one value, as Apache Kafka does; without both it is 1."""
    texts.setdefault("node.id", texts.get("broker.id", "1"))
    texts.setdefault("broker.id", texts["node.id"])


def _suggestion(name: str) -> str:
    """The known setting that an unknown name is close to, as a question: it may be misspelled."""
    close = get_close_matches(name, BROKER_SETTINGS, n=1, cutoff=0.8)
    return f"; is it {close[0]}?" if close else ""


def _read_properties(path: str) -> list[tuple[str, str, int]]:
    """The (name, text, line) of a Java properties file, as far as settings use the format."""
    try:
        lines = _LINE_END.split(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read the settings file {path}: {reason}") from None
    properties = []
    joined, first = "", 0
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not joined and (not stripped or stripped[0] in "#!"):
            continue
        first = first if joined else number
        joined += stripped
        if _CONTINUES.search(stripped):
            joined = joined[:-1]
            if number < len(lines):
                continue
        if joined:
            properties.append((*_split_property(joined, path, first), first))
        joined = ""
    return properties


def _split_property(line: str, path: str, number: int) -> tuple[str, str]:
    match = _PROPERTY.fullmatch(line)
    if match is None:
        # The line may be a part of a key or of a JAAS text.
        raise ConfigError(f"{path}, line {number} is not of the form name=value")
    name, value = (re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _unescaped, part.strip()) for part in match.groups())
    return name, value


def _unescaped(escape: re.Match[str]) -> str:
    """Java's escapes in the value of a property."""
    text = escape[1]
    return chr(int(text[1:], 16)) if len(text) > 1 else _ESCAPES.get(text, text)
