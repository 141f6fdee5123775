"""Which settings of a broker can be changed while it runs, and which changes it refuses (KIP-226).

RULES    1. Names and sentences are Apache Kafka 4.3's, but for settings of listeners, and of what TLS needs of files: these
            stay as they were at the start.
         2. Some names of `ignored_configs.py` stand here too: they are taken, shown, and have no effect, as in a file.
         3. What the metadata hold is obeyed as far as it can be: a name or a value that this release does not know is
            passed over with one log line, for another release may have written it.
NOT HERE Keeping changes (`replication/controller/configs/configs.py`), obeying them (`dynamic_config_applier.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from broker.config.broker_config import BrokerConfig, contradiction
from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.ignored_configs import unused_settings
from storage.config.config_def import BadSetting, Kind, Setting, at_least, parse
from storage.config.log_config import DYNAMIC_BROKER_SETTINGS

_log = logging.getLogger("barnabas.config")

MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"

NOT_IN_FILES: dict[str, Setting] = {
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
"""Settings that can only be made while a broker runs; unset: no limit."""

_OBEYED = """
group.consumer.assignment.interval.ms
log.cleaner.backoff.ms
log.cleaner.dedupe.buffer.size
log.cleaner.io.buffer.load.factor
log.cleaner.io.buffer.size
log.cleaner.io.max.bytes.per.second
log.cleaner.threads
max.connections
max.connections.per.ip
producer.id.expiration.ms
transaction.partition.verification.enable
"""
_TAKEN = """
background.threads
config.providers
follower.fetch.last.tiered.offset.enable
group.coordinator.cached.buffer.max.bytes
group.share.assignment.interval.ms
group.streams.assignment.interval.ms
max.connection.creation.rate
max.connections.per.ip.overrides
metric.reporters
num.io.threads
num.network.threads
num.recovery.threads.per.data.dir
num.replica.fetchers
remote.fetch.max.wait.ms
remote.list.offsets.request.timeout.ms
remote.log.index.file.cache.total.size.bytes
remote.log.manager.copier.thread.pool.size
remote.log.manager.copy.max.bytes.per.second
remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second
remote.log.manager.follower.thread.pool.size
remote.log.reader.threads
share.coordinator.cached.buffer.max.bytes
"""
_TAKEN_PER_BROKER = """
sasl.enabled.mechanisms
sasl.jaas.config
sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin
sasl.kerberos.principal.to.local.rules
sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor
sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds
sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter
sasl.mechanism.inter.broker.protocol
ssl.cipher.suites
ssl.client.auth
ssl.enabled.protocols
ssl.endpoint.identification.algorithm
ssl.engine.factory.class
ssl.keymanager.algorithm
ssl.protocol
ssl.provider
ssl.secure.random.implementation
ssl.trustmanager.algorithm
"""

PER_BROKER = frozenset({"cordoned.log.dirs", *_TAKEN_PER_BROKER.split()})
"""Settings that cannot be made for all brokers at once."""

DYNAMIC = DYNAMIC_BROKER_SETTINGS | NOT_IN_FILES.keys() | PER_BROKER | {*_OBEYED.split(), *_TAKEN.split()}
"""All settings that can be changed while a broker runs: the defaults of topics too."""


class BrokerRules:
    """What one broker says of changes of its settings."""

    def __init__(self, config: BrokerConfig) -> None:
        """`config` is what it was started with."""
        self._config = config

    def setting(self, name: str) -> Setting | None:
        """The row of a setting; None when there is none such."""
        return BROKER_SETTINGS.get(name) or NOT_IN_FILES.get(name) or unused_settings().get(name)

    def is_fixed(self, name: str) -> bool:
        """Whether a setting stays what it was at the start; of a name that nobody knows nothing is said."""
        return name not in DYNAMIC and self.setting(name) is not None

    def is_per_broker(self, name: str) -> bool:
        """Whether a setting cannot be made for all brokers at once."""
        return name in PER_BROKER

    def why_not(self, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
        """Why these changed settings cannot be in force together, where they can be one by one."""
        now, then = with_changes(self._config, before), with_changes(self._config, after)
        found = contradiction(then)
        if found is None:
            return _why_not_so_many(now, then)
        return found if found.startswith("group.") else f"requirement failed: {found}"  # as Java's require, and Scala's


def _why_not_so_many(now: BrokerConfig, then: BrokerConfig) -> str | None:
    before, after = now.number("log.cleaner.threads"), then.number("log.cleaner.threads")
    if after == before:
        return None
    if after < 1:
        return "Log cleaner threads should be at least 1"
    if after < before // 2:
        return f"Log cleaner threads cannot be reduced to less than half the current value {before}"
    if after > before * 2:
        return f"Log cleaner threads cannot be increased to more than double the current value {before}"
    return None


def with_changes(config: BrokerConfig, changed: Mapping[str, str]) -> BrokerConfig:
    """What is in force when these settings were changed (rule 3)."""
    taken = {name: text for name, text in changed.items() if _is_known(name, text)}
    return BrokerConfig({**config.given, **taken})


def _is_known(name: str, text: str) -> bool:
    if name not in DYNAMIC:
        _log.warning("the dynamic setting %s is unknown, or cannot be changed, and is passed over", name)
        return False
    setting = BROKER_SETTINGS.get(name) or NOT_IN_FILES.get(name)
    try:
        if setting is not None:
            parse(setting, text)
    except BadSetting as error:
        _log.warning("a dynamic setting is passed over: %s", error)
        return False
    return True
