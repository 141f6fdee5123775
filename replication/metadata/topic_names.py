"""Valid topic names (org.apache.kafka.common.internals.Topic).

RULES    1. One to 249 ASCII letters, digits, '.', '_' and '-', but neither "." nor "..".
         2. Names that differ only in '.' and '_' collide, because metric names use '_' for both.
         3. Some names are internal topics, whether they exist or not.
NOT HERE Authorization.
"""

from __future__ import annotations

import re

from protocol.errors import ErrorCode, KafkaError

METADATA_TOPIC = "__cluster_metadata"
"""The topic of the metadata log; images do not contain it."""
MAX_LENGTH = 249
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Check a topic name.

    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION with Kafka's message.
    """
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}"
    elif not _LEGAL.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def collision_key(name: str) -> str:
    """Equal for names that collide."""
    return name.replace(".", "_")
