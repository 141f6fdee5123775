"""The metrics page of nodes: requests, connections and bytes, with the names of the JMX exporter that Barnabas has too.

FORMAT   Prometheus text 0.0.4: `name{label="value",...} number`.
RULES    1. A counter is added up over nodes and over all labels but one.
         2. Only a line feed ends a line: clients choose the values of labels. Lines of other metrics are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from barnabas.client.errors import ClientError

TIMEOUT_S = 5.0
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_REQUESTS = "kafka_network_requestmetrics_requests_total"
_CONNECTIONS = (
    "kafka_server_socket_server_metrics_connection_count",
    "kafka_server_socketservermetrics_connection_count",
)
_BYTES_IN, _BYTES_OUT = (f"kafka_server_brokertopicmetrics_bytes{way}_total" for way in ("in", "out"))


class PageSample(NamedTuple):
    """Counters of all nodes since their starts, and open connections now, None if no page has them; monotonic seconds."""

    at_s: float
    requests: dict[str, float]
    connections: float | None
    bytes_in: float
    bytes_out: float


def read_pages(urls: Iterable[str], at_s: float) -> PageSample:
    """Reads the pages of some nodes. Raises ClientError."""
    lines = [line for url in urls for line in _read(url).split("\n")]
    return parse(lines, at_s)


def _read(url: str) -> str:
    address = url if "://" in url else f"http://{url}"
    try:
        with urlopen(address if address.count("/") > 2 else f"{address}/metrics", timeout=TIMEOUT_S) as page:  # noqa: S310
            return str(page.read().decode())
    except (URLError, OSError, ValueError, HTTPException) as failure:
        reason = getattr(failure, "reason", failure)
        raise ClientError(
            f"There is no metrics page at {url}: {str(getattr(reason, 'strerror', None) or reason).strip()}."
        ) from failure


def parse(lines: Iterable[str], at_s: float) -> PageSample:
    """Returns the figures of pages."""
    requests: dict[str, float] = {}
    sums = dict.fromkeys((*_CONNECTIONS, _BYTES_IN, _BYTES_OUT), 0.0)
    seen = set()
    for line in lines:
        found = _LINE.match(line)
        if found is None or found[1] not in {_REQUESTS, *sums}:
            continue
        name, labels, value = found[1], dict(_LABEL.findall(found[2] or "")), float(found[3])
        if name == _REQUESTS and "request" in labels:
            requests[labels["request"]] = requests.get(labels["request"], 0) + value
        elif name in sums and (name in _CONNECTIONS or not labels.get("topic")):
            seen.add(name)
            sums[name] += value  # bytes: the broker's sum is the series without topic
    connections = max((sums[name] for name in _CONNECTIONS if name in seen), default=None)
    return PageSample(at_s, requests, connections, sums[_BYTES_IN], sums[_BYTES_OUT])


def request_rates(before: PageSample, after: PageSample) -> list[tuple[str, float]]:
    """Returns requests per second by API, the busiest first; a node that was restarted counts from 0."""
    seconds = after.at_s - before.at_s
    rates = [(api, max(0.0, count - before.requests.get(api, 0)) / seconds) for api, count in after.requests.items()]
    return sorted((rate for rate in rates if rate[1] > 0), key=lambda rate: (-rate[1], rate[0]))
