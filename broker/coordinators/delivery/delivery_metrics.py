"""What the deliverers of this broker have done, and what waits.

RULES    1. Lateness is the time from when a record was due to the commit of its transaction; records that were due at once have
            none.
NOT HERE Counting (`deliverer.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.coordinators.delivery.deliverer import Deliverer
from broker.coordinators.delivery.delivery_manager import DeliveryManager
from broker.process.histograms import Distribution
from broker.telemetry.families import Families, Family, Kind, Point, counters, gauges, label_text

_PREFIX: Final = "barnabas_schedule"
_QUANTILES: Final = ("0.5", "0.99", "0.999")
_COUNTS: Final = {
    "delivered": "Records that were appended to the target.",
    "cancelled": "Records that were cancelled before they were due.",
    "refused": "Records that the target refused for ever; they were skipped.",
}


class DeliveryMetrics:
    """The families of delayed delivery."""

    def __init__(self, manager: DeliveryManager, wall_ms: Callable[[], int]) -> None:
        self._manager = manager
        self._wall_ms = wall_ms

    def families(self) -> Families:
        """Of each schedule partition that this broker leads; none without."""
        deliverers, wall_ms = self._manager.deliverers, self._wall_ms()
        if not deliverers:
            return
        yield gauges(f"{_PREFIX}_pending", "Records that wait.", [(_labels(one), one.pending) for one in deliverers])
        yield gauges(
            f"{_PREFIX}_overdue_seconds",
            "How long the first waiting record has been due; 0 if none is.",
            [(_labels(one), one.overdue_ms(wall_ms) / 1000) for one in deliverers],
        )
        for name, meaning in _COUNTS.items():
            yield counters(f"{_PREFIX}_{name}", meaning, [(_labels(one), one.counts[name]) for one in deliverers])
        yield Family(
            f"{_PREFIX}_lateness_seconds",
            Kind.GAUGE,
            "Time from when records were due to their commit, of this broker since its start.",
            _lateness(deliverers),
        )


def _lateness(deliverers: list[Deliverer]) -> list[Point]:
    distribution = Distribution([one.lateness for one in deliverers])
    return [
        Point("", label_text(("quantile", quantile)), distribution.quantile_ms(float(quantile)) / 1000)
        for quantile in _QUANTILES
    ]


def _labels(deliverer: Deliverer) -> str:
    partition = deliverer.partition
    return label_text(("topic", partition.topic), ("partition", str(partition.partition)))
