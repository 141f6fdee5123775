"""The log line of a slow request: API, version, principal, client, phases and number of topics.

RULES    1. Requests are slow from `barnabas.slow.request.ms` on; the time for which a Fetch waits for data does not count.
NOT HERE The phases (`broker/telemetry/request_metrics.py`).
"""

from __future__ import annotations

import logging

from broker.network.exchange import ConnectionInfo
from broker.telemetry.request_metrics import RequestTimes
from protocol.api import APIS, request_header_version
from protocol.codec import decoder
from protocol.errors import MalformedRequest
from protocol.framing import parse_request_header
from protocol.messages.headers import RequestHeader

_log = logging.getLogger("barnabas.slow")


def log_slow_request(info: ConnectionInfo, times: RequestTimes, sent_ns: int) -> None:
    """Logs one line."""
    if times.frame is None:
        return
    header = parse_request_header(times.frame)
    phases = ", ".join(f"{name} {ms:g} ms" for name, ms in times.phases_ms(sent_ns).items() if ms)
    _log.warning(
        "slow request: %s version %d from %s (client %s at %s:%d) took %.1f ms: %s; %s",
        times.metrics.name,
        header.api_version,
        info.principal,
        header.client_id,
        info.peer_host,
        info.peer_port,
        (sent_ns - times.arrived_ns) / 1e6,
        phases,
        _topics(times.frame, header.api_key, header.api_version, header.end),
    )


def _topics(frame: bytearray, api_key: int, version: int, position: int) -> str:
    """How many topics a request names."""
    if request_header_version(api_key, version) >= 2:
        position = decoder(RequestHeader, 2)(frame, 0)[1]
    try:
        request, _ = decoder(APIS[api_key].request, version)(frame, position)
    except MalformedRequest:  # what its fast path did not read
        return "its topics are unknown"
    for field in ("topics", "topic_data"):
        topics = getattr(request, field, None)
        if topics is not None:
            return f"{len(topics)} topics"
    return "no topics"
