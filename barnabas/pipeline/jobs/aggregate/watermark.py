"""How far event time has come, and with it which windows are final: plain figures.

RULES    1. The watermark is the latest event time that was read, less the allowed lateness. A window that ended by then is
            final.
         2. While partitions have records waiting, the one of them that is least far in event time counts: that a round reads
            one partition faster than another makes nothing late. A partition that is read to its end holds nobody back.
         3. It never goes back.
         4. An event time of the future counts as now: one wrong clock does not end every window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def watermark(
    before_us: int | None, latest_us: Mapping[int, int], waiting: Collection[int], lateness_us: int, now_us: int
) -> int | None:
    """The watermark after a round; None as long as nothing can be said.

    Args:
        before_us: what it was.
        latest_us: the latest event time of each partition so far.
        waiting: the partitions that have records which the next rounds read.
        lateness_us: by how much events may come out of order.
        now_us: the present.
    """
    if any(partition not in latest_us for partition in waiting) or not latest_us:
        return before_us
    seen = min(latest_us[partition] for partition in waiting) if waiting else max(latest_us.values())
    reached = min(seen, now_us) - lateness_us
    return reached if before_us is None else max(before_us, reached)
