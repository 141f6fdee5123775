"""Plans the offsets of a job's next round; uses neither broker nor Spark.

RULES    1. A round has at most `limit` offsets, shared in proportion to each partition's backlog, at least one for each.
         2. If the broker has deleted unread offsets, the job fails, unless it may continue; then the gap is recorded.
         3. A topic that was deleted and created again, or an end below the last read offset, fails the job: the offsets now
            belong to other records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.settings import BrokerSettings, setting


@dataclass(frozen=True, kw_only=True)
class RoundSettings(BrokerSettings):
    """Settings of every job that reads a topic in rounds."""

    max_offsets_per_trigger: int = setting("The largest number of offsets that a round reads.", 1_000_000)
    fail_on_data_loss: bool = setting("Stop if the broker has deleted offsets before they were read.", True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_offsets_per_trigger < 1:
            raise JobError("--max-offsets-per-trigger takes at least 1.")


@dataclass(frozen=True, kw_only=True)
class ContinuousSettings(RoundSettings):
    """Settings of every job that can repeat its rounds until it is stopped."""

    continuous: bool = setting("Run until stopped, instead of ending at the current ends of the topics.", False)
    interval: float = setting("With --continuous: seconds between two polls of the topics.", 10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.interval < math.inf:
            raise JobError("--interval takes 0 seconds or more.")


@dataclass(frozen=True)
class StartPosition:
    """The offset at which a partition's next round starts; `lost_before` is the first lost offset, if any."""

    start: int
    lost_before: int | None = None

    @property
    def lost(self) -> int:
        """The number of lost offsets."""
        return 0 if self.lost_before is None else self.start - self.lost_before


def start_positions(
    settings: RoundSettings,
    topics: Mapping[TopicPartition, Topic],
    next_offsets: Mapping[TopicPartition, int],
    known_ids: Mapping[str, str],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, StartPosition]:
    """Returns the start position of each partition. Raises JobError (rules 2 and 3).

    Args:
        settings: the job's settings.
        topics: the topic of each partition.
        next_offsets: the offset after the last one that earlier rounds read; new partitions are missing.
        known_ids: the topic ids that earlier rounds recorded.
        starts: the log start offsets.
        ends: the last stable offsets.
    """
    positions = {}
    for tp, topic in topics.items():
        if known_ids.get(tp.topic, topic.id) != topic.id:
            raise JobError(
                f"The topic {tp.topic} was deleted and created again since it was read: start in another folder."
            )
        read_to = next_offsets.get(tp)
        if read_to is None:
            positions[tp] = StartPosition(starts[tp])
        elif read_to < starts[tp]:
            if settings.fail_on_data_loss:
                raise JobError(
                    f"The broker deleted the offsets {read_to} to {starts[tp] - 1} of {tp} before they were read: "
                    "--no-fail-on-data-loss continues after them and records the gap."
                )
            positions[tp] = StartPosition(starts[tp], lost_before=read_to)
        elif read_to > ends[tp]:
            raise JobError(
                f"{tp} ends at {ends[tp]}, but was read up to {read_to}: its log was replaced or truncated. "
                "Run the job again; if the error stays, start in another folder."
            )
        else:
            positions[tp] = StartPosition(read_to)
    return positions


def plan_round(
    positions: Mapping[TopicPartition, StartPosition], ends: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, Span]:
    """Returns the spans of the next round; partitions without backlog are left out (rule 1)."""
    sizes = {tp: ends[tp] - positions[tp].start for tp in positions if ends[tp] > positions[tp].start}
    total = sum(sizes.values())
    share = min(1.0, limit / total) if total else 0.0
    return {
        tp: Span(positions[tp].start, positions[tp].start + max(1, int(size * share))) for tp, size in sizes.items()
    }
