"""Which offsets the next round of a job takes: plain figures, no broker and no Spark.

RULES    1. A round takes at most so many offsets, each partition in proportion to what it has waiting, none less than one.
         2. Where the broker has forgotten what was not read yet, the job stops, unless it was told to go on; then the
            gap is written down.
         3. A topic that was deleted and made again, or an end before what was read, stops the job: these are other
            records under the same offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.pipeline.brokers import Place, Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.settings import BrokerSettings, setting


@dataclass(frozen=True, kw_only=True)
class RoundSettings(BrokerSettings):
    """What every job that reads a topic round by round is told."""

    max_offsets_per_trigger: int = setting("The most offsets that a round takes.", 1_000_000)
    fail_on_data_loss: bool = setting("Stop where the broker has forgotten what was not read yet.", True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_offsets_per_trigger < 1:
            raise JobError("--max-offsets-per-trigger takes at least 1.")


@dataclass(frozen=True)
class Waiting:
    """What a partition has that was not read: from `start`; with `lost_before` where something is gone."""

    start: int
    lost_before: int | None = None

    @property
    def lost(self) -> int:
        """How many offsets are gone."""
        return 0 if self.lost_before is None else self.start - self.lost_before


def where_to_start(
    places: Mapping[Place, Topic],
    archived: Mapping[Place, int],
    archived_ids: Mapping[str, str],
    starts: Mapping[Place, int],
    ends: Mapping[Place, int],
    *,
    fail_on_data_loss: bool,
) -> dict[Place, Waiting]:
    """For each partition the offset to go on from (rules 2 and 3)."""
    waiting = {}
    for place, topic in places.items():
        known = archived_ids.get(place.topic, topic.id)
        if known != topic.id:
            raise JobError(
                f"The topic {place.topic} was deleted and made again since it was read: begin in another folder."
            )
        held = archived.get(place)
        if held is None:
            waiting[place] = Waiting(starts[place])
        elif held < starts[place]:
            if fail_on_data_loss:
                raise JobError(
                    f"The offsets {held} to {starts[place] - 1} of {place} are gone from the broker and were not read: "
                    "--no-fail-on-data-loss goes on behind them, and writes down the gap."
                )
            waiting[place] = Waiting(starts[place], lost_before=held)
        elif held > ends[place]:
            raise JobError(f"{place} ends at {ends[place]}, and was read up to {held}: it is not what it was.")
        else:
            waiting[place] = Waiting(held)
    return waiting


def plan_round(waiting: Mapping[Place, Waiting], ends: Mapping[Place, int], limit: int) -> dict[Place, Span]:
    """The spans of the next round; partitions with nothing to read are left out (rule 1)."""
    sizes = {place: ends[place] - waiting[place].start for place in waiting if ends[place] > waiting[place].start}
    total = sum(sizes.values())
    share = min(1.0, limit / total) if total else 0.0
    return {
        place: Span(waiting[place].start, waiting[place].start + max(1, int(size * share)))
        for place, size in sizes.items()
    }
