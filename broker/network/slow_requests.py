"""The log line of a slow request: API, version, principal, client, phases and number of topics.

RULES    1. Requests are slow from `barnabas.slow.request.ms` on; the time for which a Fetch waits for data does not count.
         2. A request that was answered may be unreadable here: its fast path did not read all of it, or it is an ApiVersions of
            an unknown version. The number of its topics is unknown then.
NOT HERE The phases (`broker/telemetry/request_metrics.py`).
"""

from __future__ import annotations

import logging

from broker.network.exchange import ConnectionInfo
from broker.process.log_format import FIELDS
from broker.telemetry.request_metrics import RequestTimes
from protocol.api import APIS, request_header_version
from protocol.codec import decoder
from protocol.errors import MalformedRequest
from protocol.framing import parse_request_header
from protocol.messages.headers import RequestHeader

_log = logging.getLogger("barnabas.slow")


def log_slow_request(info: ConnectionInfo, times: RequestTimes, sent_ns: int) -> None:
    """Logs one line; a JSON line has its parts as fields."""
    if times.frame is None:
        return
    header = parse_request_header(times.frame)
    phases = {name: ms for name, ms in times.phases_ms(sent_ns).items() if ms}
    total_ms = round((sent_ns - times.arrived_ns) / 1e6, 3)
    topics = _topics(times.frame, header.api_key, header.api_version, header.end)
    fields = {
        "api": times.metrics.name,
        "version": header.api_version,
        "principal": info.principal,
        "client": header.client_id,
        "address": f"{info.peer_host}:{info.peer_port}",
        "total_ms": total_ms,
        "phases_ms": phases,
        "topics": topics,
    }
    _log.warning(
        "slow request: %s version %d from %s (client %s at %s) took %.1f ms (%s); topics: %s",
        *list(fields.values())[:6],
        ", ".join(f"{name} {ms:g}" for name, ms in phases.items()),
        "unknown" if topics is None else topics,
        extra={FIELDS: fields},
    )


def _topics(frame: bytearray, api_key: int, version: int, position: int) -> int | None:
    """How many topics a request names; None: unknown (rule 2)."""
    request_class = APIS[api_key].request
    if not request_class.MIN_VERSION <= version <= request_class.MAX_VERSION:
        return None
    try:
        if request_header_version(api_key, version) >= 2:
            position = decoder(RequestHeader, 2)(frame, 0)[1]
        request, _ = decoder(request_class, version)(frame, position)
    except MalformedRequest:
        return None
    for field in ("topics", "topic_data"):
        topics = getattr(request, field, None)
        if topics is not None:
            return len(topics)
    return 0
