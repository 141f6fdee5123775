"""The connections: by listener and client software, queued requests and responses, reads of cold records.

RULES    1. Connections are counted in steps. The first `MAX_SOFTWARE` names and versions of client software have series of
            their own; the others are `OTHERS` together, since clients choose the names.
NOT HERE Limits of connections (`broker/telemetry/quota_metrics.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from broker.network.listener import Listener
from broker.telemetry.families import PAUSE, Families, counter, gauge, gauges, label_text

MAX_SOFTWARE: Final = 50
OTHERS: Final = "(others)"
_CONNECTIONS_PER_STEP: Final = 1_000


class ConnectionMetrics:
    """The families of a node's connections."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def families(self) -> Families:
        """Counts of connections and of what they hold."""
        by_listener = {listener.name: 0 for listener in self._listeners}
        by_software: Counter[tuple[str, str, str]] = Counter()
        software: set[tuple[str, str]] = set()
        queued = unsent = 0
        for listener in self._listeners:
            for number, connection in enumerate(listener.connections, 1):
                named = connection.info.software_name, connection.info.software_version
                if named not in software and len(software) == MAX_SOFTWARE:
                    named = OTHERS, OTHERS
                else:
                    software.add(named)
                by_listener[listener.name] += 1
                by_software[listener.name, *named] += 1
                queued += connection.queued_requests
                unsent += connection.has_unsent
                if number % _CONNECTIONS_PER_STEP == 0:
                    yield PAUSE
        yield gauges(
            "kafka_server_socket_server_metrics_connection_count",
            "Open connections of a listener.",
            [(label_text(("listener", name), ("networkProcessor", "0")), count) for name, count in by_listener.items()],
        )
        yield gauges(
            "kafka_server_socketservermetrics_connections",
            "Open connections by client software.",
            [
                (
                    label_text(("listener", name), ("clientSoftwareName", client), ("clientSoftwareVersion", version)),
                    count,
                )
                for (name, client, version), count in sorted(by_software.items())
            ],
        )
        yield gauge("kafka_network_requestchannel_requestqueuesize", "Requests received and not begun.", queued)
        yield gauge("kafka_network_requestchannel_responsequeuesize", "Responses that wait for their socket.", unsent)
        prefetchers = {listener.prefetcher for listener in self._listeners if listener.prefetcher is not None}
        reads = sum(prefetcher.reads for prefetcher in prefetchers)
        yield counter("barnabas_cold_reads", "Reads of records that were not in the page cache.", reads)
