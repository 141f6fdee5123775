"""Resolves the regular expressions that members of consumer groups subscribe to.

RULES    1. The syntax is RE2's; the whole topic name must match.
         2. All expressions of a group are resolved together, after the heartbeat that triggers it, so that one
            change of topics causes one rebalance; at most once per `MIN_RESOLVE_INTERVAL_MS`.
         3. Triggers: a new expression, changed topics, group.consumer.regex.refresh.interval.ms.
         4. Only topics that the triggering member may describe are included.
NOT HERE The rebalance (`consumer_group_heartbeat.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.coordinators.consumer import consumer_group_records as stored
from broker.coordinators.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
    MemberUpdate,
    ResolvedRegex,
    metadata_hash,
)
from broker.coordinators.consumer.dependencies import GroupDependencies
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision
from broker.coordinators.runtime.stored_records import StoredRecord
from protocol.errors import ErrorCode, KafkaError
from replication.re2_patterns import BadRegex, Matches, compile_regex

_log = logging.getLogger("barnabas.groups")

MIN_RESOLVE_INTERVAL_MS: Final = 10_000

_RE2J_MESSAGES: Final = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
}
"""RE2's error messages as RE2/J words them."""

MayDescribe = Callable[[str], bool]
"""Whether the client may describe a topic."""


class TopicRegexes:
    """The regular expressions of one shard's groups."""

    def __init__(self, deps: GroupDependencies) -> None:
        self._deps = deps

    def update_regexes(self, update: MemberUpdate, may_describe: MayDescribe | None) -> bool:
        """Update a member's expression, and schedule a resolution if needed; returns whether a new one is resolved already.

        `may_describe` is None for classic members: nothing is resolved.

        Raises:
            KafkaError: INVALID_REGULAR_EXPRESSION.
        """
        group, old, new = update.group, update.old, update.new
        if not (old.regex or new.regex or group.regexes):
            return False
        counts = group.regex_counts
        is_resolved = is_new = False
        if old.regex != new.regex:
            if old.regex and counts.get(old.regex) == 1:
                update.records.append(stored.regex_tombstone(group.group_id, old.regex))
            if new.regex and new.regex not in counts:
                compile_subscription(new.regex)
                is_new = True
            else:
                is_resolved = not new.regex or new.regex in group.regexes
        subscribed = _subscribed_regexes(group, new)
        can_resolve = subscribed > 0 and not group.is_resolving
        if may_describe is not None and can_resolve and self._should_resolve(group, subscribed, is_new=is_new):
            self._resolve_later(group, may_describe)
        return is_resolved

    def _should_resolve(self, group: ConsumerGroup, subscribed: int, *, is_new: bool) -> bool:
        if not group.regexes:
            return True
        elapsed_ms = self._deps.context.wall_ms() - max(one.wall_ms for one in group.regexes.values())
        if elapsed_ms <= MIN_RESOLVE_INTERVAL_MS:
            return False
        has_other_topics = group.resolved_topics is not self._deps.image().topics_by_name
        return (
            is_new
            or subscribed != len(group.regexes)
            or has_other_topics
            or elapsed_ms > self._deps.settings.consumer.regex_refresh_interval_ms
        )

    def _resolve_later(self, group: ConsumerGroup, may_describe: MayDescribe) -> None:
        """Resolve after the heartbeat's records; the group may be created by them."""
        group_id = group.group_id
        group.is_resolving = True

        def event() -> CoordinatorDecision[None] | None:
            group.is_resolving = False
            current_group = self._deps.consumer_groups.get(group_id)
            return None if current_group is None else self._resolve(current_group, may_describe)

        self._deps.context.schedule(0, event)

    def _resolve(self, group: ConsumerGroup, may_describe: MayDescribe) -> CoordinatorDecision[None]:
        image = self._deps.image()
        group.resolved_topics = image.topics_by_name
        wall_ms = self._deps.context.wall_ms()
        records: list[StoredRecord] = []
        schedule = ConsumerGroup(group.group_id, group.epoch, regexes=dict(group.regexes))
        for regex in group.regex_counts:
            topics = frozenset(name for name in matching(regex, image.topics_by_name) if may_describe(name))
            schedule.regexes[regex] = ResolvedRegex(topics, image.offset, wall_ms)
            records.append(stored.regex_record(group.group_id, regex, schedule.regexes[regex]))
        before = {regex: one.topics for regex, one in group.regexes.items()}
        found = metadata_hash(schedule, group.members, image)
        has_other_topics = any(one.topics != before.get(regex, frozenset()) for regex, one in schedule.regexes.items())
        if has_other_topics or found != group.metadata_hash:
            _log.info("group %s: the topics of its regular expressions have changed", group.group_id)
            records.append(stored.epoch_record(group.group_id, group.epoch + 1, found))
        return CoordinatorDecision(records, None, on_commit=partial(_resolve_again, group))


def _subscribed_regexes(group: ConsumerGroup, new: ConsumerMember) -> int:
    """How many regular expressions the members have with `new`, which every heartbeat asks: it does not count all members."""
    counts, known = group.regex_counts, group.members.get(new.member_id)
    added = bool(new.regex) and new.regex not in counts
    removed = known is not None and known.regex != new.regex and counts.get(known.regex) == 1
    return len(counts) + added - removed


def _resolve_again(group: ConsumerGroup, error: ErrorCode) -> None:
    """If the records failed, resolve the expressions again."""
    if error is not ErrorCode.NONE:
        group.resolved_topics = None


def compile_subscription(text: str) -> Matches:
    """The matcher of a regular expression; raises KafkaError: INVALID_REGULAR_EXPRESSION."""
    try:
        return compile_regex(text)
    except BadRegex as error:
        reason = str(error)
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {_RE2J_MESSAGES.get(reason, reason)}.",
        ) from None


def matching(regex: str, names: Iterable[str]) -> list[str]:
    """The names that match; none for an expression that is invalid since an upgrade."""
    try:
        matches = compile_subscription(regex)
    except KafkaError as error:
        _log.warning("%s", error.message)
        return []
    return [name for name in names if matches(name)]
