"""The watermark of event time, which decides which windows are final.

RULES    1. The watermark is the latest event time read, minus the allowed lateness. A window that ends by then is
            final.
         2. While partitions have a backlog, the smallest event time among them counts: reading one partition faster makes
            nothing late. A partition that is read to its end does not delay the watermark.
         3. The watermark never decreases.
         4. An event time in the future counts as now: one wrong clock does not end every window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def watermark(
    before_us: int | None, latest_us: Mapping[int, int], backlogged: Collection[int], lateness_us: int, now_us: int
) -> int | None:
    """Returns the watermark after a round; None if it is still unknown.

    Args:
        before_us: the previous watermark.
        latest_us: the latest event time of each partition.
        backlogged: the partitions with records for later rounds.
        lateness_us: the allowed lateness.
        now_us: the current time.
    """
    if any(partition not in latest_us for partition in backlogged) or not latest_us:
        return before_us
    seen = min(latest_us[partition] for partition in backlogged) if backlogged else max(latest_us.values())
    reached = min(seen, now_us) - lateness_us
    return reached if before_us is None else max(before_us, reached)
