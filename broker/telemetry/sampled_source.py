"""Sources that list samples by name, as families: client metrics, quotas, authentications, the event loop.

RULES    1. Names become Prometheus names: "_" for characters that those cannot have; a counter's points end in _total.
         2. Labels are those of the sample. Samples of a name that are partly counters are gauges: clients disagree.
NOT HERE The samples (`received_metrics.py`, `quota_metrics.py`, `authentication_metrics.py`, `loop_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from broker.telemetry.clients.received_metrics import Sample
from broker.telemetry.families import Families, Family, Kind, Point, label_text, metric_name


class SampleSource(Protocol):
    """Metrics by name."""

    def names(self, now_ms: int, /) -> list[str]:
        """The metric names known now."""

    def numbers(self, name: str, /) -> list[Sample]:
        """The samples of a name."""


class SampledSource:
    """The families of one source."""

    def __init__(self, source: SampleSource, explanation: str, mono_ms: Callable[[], int]) -> None:
        self._source = source
        self._explanation = explanation
        self._mono_ms = mono_ms

    def families(self) -> Families:
        """One for each name."""
        for name in self._source.names(self._mono_ms()):
            samples = self._source.numbers(name)
            if samples:
                yield family_of(name, self._explanation, samples)


def family_of(name: str, explanation: str, samples: Iterable[Sample]) -> Family:
    """The family of all samples with one name."""
    points = {label_text(*labels): (value, is_counter) for labels, value, is_counter in samples}
    is_counter = all(counts for _, counts in points.values())
    suffix = "_total" if is_counter else ""
    found = [Point(suffix, labels, value) for labels, (value, _) in points.items()]
    kind = Kind.COUNTER if is_counter else Kind.GAUGE
    return Family(metric_name(metric_name(name).removesuffix(suffix or "\0")), kind, explanation, found)
