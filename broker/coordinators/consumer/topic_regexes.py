"""The regular expressions that members of consumer groups subscribe with, and the topics that they match.

RULES    1. The syntax is RE2's, and a name must match as a whole.
         2. All expressions of a group are resolved together, outside of the heartbeat that asks for it, so that one
            change of topics leads to one rebalance; not more often than every `PAUSE_MS`.
         3. They are resolved anew when one is not yet, when there are other topics, and from time to time.
         4. Only topics that the member who caused it may know of are found.
NOT HERE What becomes of a group whose topics change (`consumer_group_heartbeat.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from broker.coordinators.consumer import consumer_group_records as stored
from broker.coordinators.consumer.consumer_group import ConsumerGroup, ConsumerMember, ResolvedRegex
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Host, StoredRecord
from protocol.errors import ErrorCode, KafkaError
from replication.metadata.image import MetadataImage
from replication.re2_patterns import BadRegex, Matches, compile_regex

_log = logging.getLogger("barnabas.groups")

PAUSE_MS: Final = 10_000

_IN_KAFKAS_WORDS: Final = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
}
"""What RE2 says is wrong, as its Java edition puts it."""

MayDescribe = Callable[[str], bool]
"""Whether somebody may know of a topic."""
NextEpoch = Callable[[ConsumerGroup, Mapping[str, ConsumerMember], MetadataImage], StoredRecord]


class RegexNews(Enum):
    """What a member's heartbeat brought."""

    NONE = 0
    CHANGED = 1
    RESOLVED = 2
    """Changed, and the topics are known already."""


class TopicRegexes:
    """The expressions of one shard's groups."""

    def __init__(
        self,
        groups: dict[str, ConsumerGroup],
        host: Host,
        refresh_interval_ms: int,
        image: Callable[[], MetadataImage],
        next_epoch: NextEpoch,
    ) -> None:
        self._groups = groups
        self._host = host
        self._refresh_interval_ms = refresh_interval_ms
        self._image = image
        self._next_epoch = next_epoch

    def changed(
        self,
        group: ConsumerGroup,
        old: ConsumerMember,
        new: ConsumerMember,
        may_describe: MayDescribe | None,
        records: list[StoredRecord],
    ) -> RegexNews:
        """A member has told of itself: note its expression, and see whether it is time to resolve them all.

        `may_describe` is None where nobody is at hand for whom they could be resolved.

        Raises:
            KafkaError: INVALID_REGULAR_EXPRESSION.
        """
        if not (old.regex or new.regex or group.regexes):
            return RegexNews.NONE
        counts = group.regex_counts()
        news, is_new = RegexNews.NONE, False
        if old.regex != new.regex:
            news = RegexNews.CHANGED
            if old.regex and counts.get(old.regex) == 1:
                records.append(stored.regex_tombstone(group.group_id, old.regex))
            if new.regex and new.regex not in counts:
                compile_subscription(new.regex)
                is_new = True
            elif not new.regex or new.regex in group.regexes:
                news = RegexNews.RESOLVED
        members = {**group.members, new.member_id: new}
        wanted = {member.regex for member in members.values() if member.regex}
        is_wanted = bool(wanted) and not group.is_resolving
        if may_describe is not None and is_wanted and self._is_time(group, wanted, is_new=is_new):
            self._resolve_later(group, may_describe)
        return news

    def _is_time(self, group: ConsumerGroup, wanted: set[str], *, is_new: bool) -> bool:
        last = group.last_resolved
        if last is None:
            return True
        since_ms = self._host.wall_ms() - last.wall_ms
        if since_ms <= PAUSE_MS:
            return False
        has_other_topics = group.resolved_topics is not self._image().topics_by_name
        return is_new or len(wanted) != len(group.regexes) or has_other_topics or since_ms > self._refresh_interval_ms

    def _resolve_later(self, group: ConsumerGroup, may_describe: MayDescribe) -> None:
        """Behind the heartbeat's own records; a group that those make is another object than this."""
        group_id = group.group_id
        group.is_resolving = True

        def event() -> CoordinatorDecision[None] | None:
            group.is_resolving = False
            known = self._groups.get(group_id)
            return None if known is None else self._resolve(known, may_describe)

        self._host.after(0, event)

    def _resolve(self, group: ConsumerGroup, may_describe: MayDescribe) -> CoordinatorDecision[None]:
        image = self._image()
        group.resolved_topics = image.topics_by_name
        wall_ms = self._host.wall_ms()
        records: list[StoredRecord] = []
        after = ConsumerGroup(group.group_id)
        after.epoch, after.regexes = group.epoch, dict(group.regexes)
        for regex in group.regex_counts():
            topics = frozenset(name for name in matching(regex, image.topics_by_name) if may_describe(name))
            after.regexes[regex] = ResolvedRegex(topics, image.offset, wall_ms)
            records.append(stored.regex_record(group.group_id, regex, after.regexes[regex]))
        before = {regex: one.topics for regex, one in group.regexes.items()}
        epoch = self._next_epoch(after, group.members, image)
        has_other_topics = any(one.topics != before.get(regex, frozenset()) for regex, one in after.regexes.items())
        if has_other_topics or stored.metadata_hash_of(epoch) != group.metadata_hash:
            _log.info("group %s: its regular expressions match other topics", group.group_id)
            records.append(epoch)
        return CoordinatorDecision(records, None)


def compile_subscription(text: str) -> Matches:
    """What tells whether a name matches.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION.
    """
    try:
        return compile_regex(text)
    except BadRegex as error:
        why = str(error)
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {_IN_KAFKAS_WORDS.get(why, why)}.",
        ) from None


def matching(regex: str, names: Iterable[str]) -> list[str]:
    """The names that match as a whole; an expression that is valid no more, after an upgrade, matches nothing."""
    try:
        matches = compile_subscription(regex)
    except KafkaError as error:
        _log.warning("%s", error.message)
        return []
    return [name for name in names if matches(name)]
