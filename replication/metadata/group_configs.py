"""The settings of groups: a table, the limits that the broker's own settings give, what is in force for a group.

RULES    1. A setting whose name with "group." before it is a broker setting has that one's value for its default, and its
            limits where the broker has a `min` and a `max` of it.
         2. Names, kinds and sentences are Apache Kafka 4.3's (GroupConfig). Settings of share and streams groups are kept
            and shown, and have no effect.
NOT HERE Who changes them (`controller/configs/config_changes.py`), what they do (`broker/coordinators`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from storage.config.config_def import Check, Kind, Setting, Value, at_least, one_of, parse

Broker = Callable[[str], str | None]
"""The text in force of a broker setting; None where there is no such setting."""

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


def _text(name: str, default: str, check: Check | None, documentation: str, kind: Kind = Kind.STRING) -> Setting:
    return Setting(name, kind, default, check, documentation)


GROUP_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _number("consumer.session.timeout.ms", 45_000, 1, "How long a silent consumer stays a member."),
        _number("consumer.heartbeat.interval.ms", 5_000, 1, "How often consumers are asked to be heard of."),
        _number("consumer.assignment.interval.ms", 1_000, 0, "Time between two assignments of a consumer group."),
        _number("share.session.timeout.ms", 45_000, 1, "How long a silent member of a share group stays one."),
        _number("share.heartbeat.interval.ms", 5_000, 1, "How often members of a share group are heard of."),
        _number("share.record.lock.duration.ms", 30_000, 1_000, "How long a record that was handed out is locked."),
        _number("share.delivery.count.limit", 5, 2, "How often a record is handed out at most."),
        _number("share.partition.max.record.locks", 2_000, 100, "Most records of a partition that are locked."),
        _number("share.assignment.interval.ms", 1_000, 0, "Time between two assignments of a share group."),
        _text("share.auto.offset.reset", "latest", _start, "Where a share group begins."),
        _text("share.isolation.level", "read_uncommitted", one_of("read_committed", "read_uncommitted"),
              "Whether a share group sees records of open and aborted transactions."),
        _text("share.renew.acknowledge.enable", "true", None, "Whether locks of a share group can be renewed.",
              Kind.BOOLEAN),
        _number("streams.session.timeout.ms", 45_000, 1, "How long a silent member of a streams group stays one."),
        _number("streams.heartbeat.interval.ms", 5_000, 1, "How often members of a streams group are heard of."),
        _number("streams.num.standby.replicas", 0, 0, "Standby replicas of each task."),
        _number("streams.initial.rebalance.delay.ms", 3_000, 0, "How long a new streams group waits for more members."),
        _number("streams.assignment.interval.ms", 1_000, 0, "Time between two assignments of a streams group."),
    )
}  # fmt: skip


def check_group_settings(settings: Mapping[str, str], broker: Broker) -> None:
    """Refuse what a group may not be told.

    Raises:
        ValueError: with Kafka's sentence.
    """
    for name in settings:
        if name not in GROUP_SETTINGS:
            raise ValueError(f"Unknown group config name: {name}")
    numbers = {name: parse(GROUP_SETTINGS[name], text) for name, text in settings.items()}
    for name, number in numbers.items():
        for which, words in (("min", "greater"), ("max", "less")):
            bound = _bound(name, which)
            text = broker(bound)
            if text is not None and isinstance(number, int) and _is_beyond(which, number, int(text)):
                raise ValueError(f"{name} must be {words} than or equal to {bound}")
    for family in ("consumer", "share", "streams"):
        _check_session(family, settings, broker)


def group_setting(settings: Mapping[str, str], name: str, broker: Broker) -> Value:
    """What is in force for a group with these settings."""
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
    """The broker setting that limits a group's."""
    family, _, rest = name.partition(".")
    return f"group.{family}.{which}.{rest.removeprefix('num.')}"


def _is_beyond(which: str, number: int, bound: int) -> bool:
    return number < bound if which == "min" else number > bound
