"""Which broker settings are dynamic, and which changes are refused (KIP-226; Kafka: DynamicBrokerConfig).

RULES    1. Names and messages are those of Apache Kafka 4.3, except for settings of listeners, of which only TLS stores
            are dynamic here.
         2. Some names of `ignored_configs.py` are dynamic too: they are accepted and described, without effect.
         3. An unknown name or value in the metadata is ignored with one log line: another release may have written it.
         4. A security setting that is not enforced is refused, as at startup.
NOT HERE Storing changes (`replication/controller/configs/configs.py`), applying them (`dynamic_config_applier.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from broker.config import ignored_configs
from broker.config.broker_config import BrokerConfig
from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.config_rules import find_conflict
from broker.config.connection_configs import find_connection_error, is_listener_limit
from broker.config.listener_prefix import general_name
from broker.config.security_configs import find_static_setting, find_unenforced_value
from broker.config.ssl_configs import STORE_SETTINGS, store_setting
from broker.config.ssl_definitions import IGNORED_AND_SSL, SSL_DYNAMIC_PER_BROKER, SSL_SETTINGS
from storage.config.config_def import BadSetting, Kind, Setting, at_least, parse
from storage.config.log_config import DYNAMIC_BROKER_SETTINGS, find_default_error

_log = logging.getLogger("barnabas.config")

MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"

DYNAMIC_ONLY: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("follower.replication.throttled.rate", Kind.LONG, None, at_least(0),
                "Most bytes a second that throttled followers fetch."),
        Setting("leader.replication.throttled.rate", Kind.LONG, None, at_least(0),
                "Most bytes a second that throttled followers are sent."),
        Setting(MOVE_RATE, Kind.LONG, None, at_least(0),
                "Most bytes a second that are copied while replicas move between log directories."),
    )
}  # fmt: skip
"""Settings that exist only as dynamic ones; unset: unlimited."""

_APPLIED = """
group.consumer.assignment.interval.ms
log.cleaner.backoff.ms
log.cleaner.dedupe.buffer.size
log.cleaner.io.buffer.load.factor
log.cleaner.io.buffer.size
log.cleaner.io.max.bytes.per.second
log.cleaner.threads
max.connection.creation.rate
max.connections
max.connections.per.ip
max.connections.per.ip.overrides
num.replica.fetchers
producer.id.expiration.ms
transaction.partition.verification.enable
"""

THREAD_COUNTS = (
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)
"""Settings that may at most double, or halve, at a time, like log.cleaner.threads."""

PER_BROKER = (
    ignored_configs.DYNAMIC_PER_BROKER.keys()
    | SSL_DYNAMIC_PER_BROKER.keys()
    | {
        "cordoned.log.dirs",
        "sasl.enabled.mechanisms",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.mechanism.inter.broker.protocol",
    }
)
"""Settings that cannot be set for all brokers at once."""

DYNAMIC = (
    DYNAMIC_BROKER_SETTINGS | DYNAMIC_ONLY.keys() | PER_BROKER | ignored_configs.DYNAMIC.keys() | {*_APPLIED.split()}
)
"""All dynamic broker settings, the defaults of topics included."""


def broker_setting(name: str) -> Setting | None:
    """The definition of a broker's setting; None if it is unknown."""
    general = store_setting(name)
    if general is not None:
        return SSL_SETTINGS[general]._replace(name=name)
    return static_broker_setting(name) or DYNAMIC_ONLY.get(name)


def static_broker_setting(name: str) -> Setting | None:
    """The definition of a setting that a settings file can have, without the prefix of a listener; None if it is unknown."""
    return BROKER_SETTINGS.get(name) or IGNORED_AND_SSL.get(name)


_CONNECTION_LIMITS: Final = ("max.connections", "max.connection.creation.rate")
_CLUSTER_LEVEL_OF_LISTENERS: Final = (*_CONNECTION_LIMITS, "num.network.threads")
"""Settings with the prefix of a listener that can be set for all brokers at once."""


def is_dynamic(name: str) -> bool:
    """Whether a setting can be changed at run time."""
    return name in DYNAMIC or store_setting(name) is not None or is_listener_limit(name)


def is_per_broker(name: str) -> bool:
    """Whether a dynamic setting cannot be set for all brokers at once."""
    own_name = general_name(name)
    return name in PER_BROKER or own_name not in (None, *_CLUSTER_LEVEL_OF_LISTENERS)


class DynamicBrokerConfig:
    """Validates changes of one broker's dynamic settings."""

    def __init__(self, config: BrokerConfig) -> None:
        """`config` is the static config."""
        self._config = config

    def setting(self, name: str) -> Setting | None:
        """The definition of a setting; None if it is unknown."""
        return broker_setting(name)

    def usable(self, texts: Mapping[str, str]) -> dict[str, str]:
        """The dynamic settings that a node uses."""
        return usable_configs(texts)

    def is_fixed(self, name: str) -> bool:
        """Whether a known setting is not dynamic."""
        return not is_dynamic(name) and name not in STORE_SETTINGS and self.setting(name) is not None

    def validation_error(self, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
        """Why the changed settings conflict, although each is valid; None if they do not."""
        changed = {name for name, text in after.items() if before.get(name) != text}
        error = find_static_setting(self._config, changed)
        if error is not None:
            return error
        current, proposed = apply_dynamic_configs(self._config, before), apply_dynamic_configs(self._config, after)
        defaults = ((name, after[name]) for name in changed & DYNAMIC_BROKER_SETTINGS)
        valid = {name: text for name, text in defaults if _find_parse_error(name, text) is None}
        proposed = BrokerConfig({**proposed.given, **valid})  # also those that no topic may have
        error = find_conflict(proposed) or find_connection_error(proposed)
        if error is None:
            return (
                _cleaner_threads_error(current, proposed)
                or _thread_count_error(current, proposed)
                or _connections_error({name: after[name] for name in changed & proposed.given.keys()})
            )
        # Java checks these, Scala's require() the rest.
        return error if error.startswith(("group.", "metric.")) else f"requirement failed: {error}"


def _cleaner_threads_error(current: BrokerConfig, proposed: BrokerConfig) -> str | None:
    before, after = current.number("log.cleaner.threads"), proposed.number("log.cleaner.threads")
    if after == before:
        return None
    if after < 1:
        return "Log cleaner threads should be at least 1"
    if after < before // 2:
        return f"Log cleaner threads cannot be reduced to less than half the current value {before}"
    if after > before * 2:
        return f"Log cleaner threads cannot be increased to more than double the current value {before}"
    return None


def _thread_count_error(current: BrokerConfig, proposed: BrokerConfig) -> str | None:
    for name in THREAD_COUNTS:
        before, after = current.number(name), proposed.number(name)
        if before // 2 <= after <= before * 2:
            continue
        bound = "be at least half" if after < before else "not be greater than double"
        sentence = f"Dynamic thread count update validation failed for {name}={after}"
        return f"{sentence}, value should {bound} the current value {before}"
    return None


def _connections_error(changed: Mapping[str, str]) -> str | None:
    """0 would reject every connection, also that of an operator who changes it back."""
    for name, text in changed.items():
        if (name in _CONNECTION_LIMITS or is_listener_limit(name)) and int(text) == 0:
            return f"Invalid {name} 0"
    return None


def apply_dynamic_configs(config: BrokerConfig, changed: Mapping[str, str]) -> BrokerConfig:
    """The static config with the dynamic settings applied (rule 3)."""
    known = {name: text for name, text in changed.items() if _is_known(name, text)}
    return BrokerConfig({**config.given, **known})


def usable_configs(texts: Mapping[str, str]) -> dict[str, str]:
    """The dynamic settings without those that a node ignores (rule 3); unknown ones remain, and have no effect."""
    dynamic = ((name, text) for name, text in texts.items() if is_dynamic(name) or broker_setting(name) is None)
    return {name: text for name, text in dynamic if _find_value_error(name, text) is None}


def _is_known(name: str, text: str) -> bool:
    if not is_dynamic(name):
        _log.warning("ignoring the dynamic setting %s: it is unknown or not dynamic", name)
        return False
    unenforced = find_unenforced_value({name: text})
    if unenforced is not None:
        _log.warning("ignoring a dynamic setting: %s", unenforced)
        return False
    error = _find_value_error(name, text)
    if error is not None:
        _log.warning("ignoring a dynamic setting: %s", error)
    return error is None


def _find_value_error(name: str, text: str) -> str | None:
    """Why a node cannot use the value of a dynamic setting; None if it can."""
    return _find_parse_error(name, text) or find_default_error(name, text)


def _find_parse_error(name: str, text: str) -> str | None:
    setting = BROKER_SETTINGS.get(name) or DYNAMIC_ONLY.get(name) or ignored_configs.DYNAMIC.get(name)
    try:
        if setting is not None:
            parse(setting, text)
    except BadSetting as error:
        return str(error)
    return None
