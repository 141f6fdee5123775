"""The key indexes of this broker: how far they are behind, their size, searches."""

from __future__ import annotations

from collections import Counter

from broker.telemetry.families import Families, counter, gauges, label_text
from replication.partition.key_search import KeySearch


class KeyIndexMetrics:
    """The families of key indexes."""

    def __init__(self, search: KeySearch) -> None:
        self._search = search

    def families(self) -> Families:
        """By topic; none without indexed topics."""
        lag: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for index in self._search.indexer.lags():
            lag[index.topic] += index.records
            size[index.topic] += index.size_bytes
        if not lag and not self._search.finished:
            return
        labels = {topic: label_text(("topic", topic)) for topic in lag}
        yield gauges(
            "barnabas_key_index_lag_records",
            "Committed records on this broker that its key index does not have yet.",
            [(labels[topic], count) for topic, count in lag.items()],
        )
        yield gauges(
            "barnabas_key_index_size_bytes",
            "Bytes of entries in key indexes.",
            [(labels[topic], count) for topic, count in size.items()],
        )
        yield counter(
            "barnabas_key_index_failed_jobs", "Jobs of key indexes that failed.", self._search.indexer.failures
        )
        yield counter("barnabas_key_searches", "Searches by key or header.", self._search.finished)
