"""Which offsets the next round of an archive takes: plain figures, no broker and no Spark.

RULES    1. A round takes at most so many offsets, each partition in proportion to what it has waiting, none less than one.
         2. Where the broker has forgotten what was not archived yet, the job stops, unless it was told to go on; then the
            gap is written down.
         3. A topic that was deleted and made again, or an end before what is archived, stops the job: these are other
            records under the same offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.pipeline.brokers import Place, Span, Topic
from barnabas.pipeline.trouble import JobError


@dataclass(frozen=True)
class Waiting:
    """What a partition has that is not archived: from `start`; with `lost_before` where something is gone."""

    start: int
    lost_before: int | None = None


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
                f"The topic {place.topic} was deleted and made again since it was archived: archive it into another folder."
            )
        held = archived.get(place)
        if held is None:
            waiting[place] = Waiting(starts[place])
        elif held < starts[place]:
            if fail_on_data_loss:
                raise JobError(
                    f"The offsets {held} to {starts[place] - 1} of {place} are gone from the broker and were not archived: "
                    "--no-fail-on-data-loss goes on behind them, and writes down the gap."
                )
            waiting[place] = Waiting(starts[place], lost_before=held)
        elif held > ends[place]:
            raise JobError(f"{place} ends at {ends[place]}, and it is archived up to {held}: it is not what it was.")
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
