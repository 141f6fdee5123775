"""Group configs: their definitions, the bounds in the broker config, and the effective values (Kafka: GroupConfig).

RULES    1. If the broker has a config with the same name after "group.", its value is the default, and its `min` and `max`
            variants are the bounds.
         2. Names, types and messages are those of Apache Kafka 4.3. Configs of share and streams groups are stored and
            described, and have no effect.
NOT HERE Changing them (`controller/configs/config_changes.py`), their effects (`broker/coordinators`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import gt, lt

from storage.config.config_def import Kind, Setting, Value, at_least, one_of, parse

Broker = Callable[[str], str | None]
"""Returns the effective text of a broker config; None if it does not exist."""

_DURATION = re.compile(r"by_duration:P(?!$)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d{1,9})?S)?)?", re.IGNORECASE)
_START = (
    "Invalid value `{}` for configuration share.auto.offset.reset. The value must be either 'earliest', 'latest' or of "
    "the format 'by_duration:<PnDTnHnMn.nS>'."
)


def _start(value: Value) -> str | None:
    text = str(value)
    return None if text in ("earliest", "latest") or _DURATION.fullmatch(text) else _START.format(text)


def _number(name: str, default: int, lowest: int, documentation: str) -> Setting:
    return Setting(name, Kind.INT, str(default), at_least(lowest), documentation)


GROUP_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _number("consumer.session.timeout.ms", 45_000, 1, "The session timeout of a consumer."),
        _number("consumer.heartbeat.interval.ms", 5_000, 1, "The heartbeat interval of consumers."),
        _number("consumer.assignment.interval.ms", 1_000, 0, "The minimum time between two assignments of a consumer group."),
        _number("share.session.timeout.ms", 45_000, 1, "The session timeout of a share group member."),
        _number("share.heartbeat.interval.ms", 5_000, 1, "The heartbeat interval of share group members."),
        _number("share.record.lock.duration.ms", 30_000, 1_000, "How long an acquired record is locked."),
        _number("share.delivery.count.limit", 5, 2, "How many times a record is delivered at most."),
        _number("share.partition.max.record.locks", 2_000, 100, "The maximum number of locked records of a partition."),
        _number("share.assignment.interval.ms", 1_000, 0, "The minimum time between two assignments of a share group."),
        Setting("share.auto.offset.reset", Kind.STRING, "latest", _start, "The offset at which a share group starts."),
        Setting("share.isolation.level", Kind.STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"),
                "Whether a share group sees records of open and aborted transactions."),
        Setting("share.renew.acknowledge.enable", Kind.BOOLEAN, "true", None,
                "Whether locks of a share group can be renewed."),
        _number("streams.session.timeout.ms", 45_000, 1, "The session timeout of a streams group member."),
        _number("streams.heartbeat.interval.ms", 5_000, 1, "The heartbeat interval of streams group members."),
        _number("streams.num.standby.replicas", 0, 0, "The number of standby replicas of each task."),
        _number("streams.initial.rebalance.delay.ms", 3_000, 0, "How long a new streams group waits for members."),
        _number("streams.assignment.interval.ms", 1_000, 0, "The minimum time between two assignments of a streams group."),
    )
}  # fmt: skip


def check_group_settings(settings: Mapping[str, str], broker: Broker) -> None:
    """Validate the configs of a group.

    Raises:
        ValueError: with Kafka's message.
    """
    for name in settings:
        if name not in GROUP_SETTINGS:
            raise ValueError(f"Unknown group config name: {name}")
    numbers = {name: parse(GROUP_SETTINGS[name], text) for name, text in settings.items()}
    for name, number in numbers.items():
        for which, words, is_beyond in (("min", "greater", lt), ("max", "less", gt)):
            bound = _bound(name, which)
            text = broker(bound)
            if text is not None and isinstance(number, int) and is_beyond(number, int(text)):
                raise ValueError(f"{name} must be {words} than or equal to {bound}")
    for family in ("consumer", "share", "streams"):
        _check_session(family, settings, broker)


def group_setting(settings: Mapping[str, str], name: str, broker: Broker) -> Value:
    """The effective value for a group with these configs."""
    text = settings.get(name) or broker(f"group.{name}") or GROUP_SETTINGS[name].default
    return parse(GROUP_SETTINGS[name], text)


def _check_session(family: str, settings: Mapping[str, str], broker: Broker) -> None:
    session, heartbeat = f"{family}.session.timeout.ms", f"{family}.heartbeat.interval.ms"
    before, after = group_setting(settings, heartbeat, broker), group_setting(settings, session, broker)
    assert isinstance(before, int)
    assert isinstance(after, int)
    if after <= before:
        raise ValueError(f"{session} must be greater than {heartbeat}")


def _bound(name: str, which: str) -> str:
    """The broker config that bounds a group config."""
    family, _, rest = name.partition(".")
    return f"group.{family}.{which}.{rest.removeprefix('num.')}"
