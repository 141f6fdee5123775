"""The metrics that clients reported, while the clients are alive: OpenTelemetry metrics as samples with names and labels.

RULES    1. A delta sum is added to the previous value; everything else replaces it. A metric that a client no longer reports,
            and the client's last report, stay until the client expires.
         2. Gauges and sums are stored, which is all that Kafka's clients report; histograms and summaries are ignored.
         3. The number of samples is limited: a report above the limit is refused with TELEMETRY_TOO_LARGE.
         4. Importing the parser takes a tenth of a second: it happens in a thread when the first client gets a subscription.
NOT HERE Rate limits (`client_instances.py`); the page (`../page.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple

from protocol.compression import decompress
from protocol.errors import ErrorCode, KafkaError
from replication.metadata.client_metrics import ClientAttributes

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData, NumberDataPoint

MAX_BYTES: Final = 4 * 1024 * 1024
"""Of one report, uncompressed."""
MAX_SAMPLES_PER_CLIENT: Final = 5_000
MAX_SAMPLES: Final = 100_000
_DELTA: Final = 1
"""AGGREGATION_TEMPORALITY_DELTA."""

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One value of a client with its labels."""

    labels: Labels
    value: float
    is_counter: bool


class _Point(NamedTuple):
    name: str
    labels: Labels
    value: float
    is_counter: bool
    is_delta: bool


@dataclass(slots=True, eq=False)
class _Client:
    """The reported metrics of one client."""

    facts: ClientAttributes
    numbers: dict[str, dict[Labels, tuple[float, bool]]] = field(default_factory=dict)
    count: int = 0
    expires_ms: int = 0

    def update(self, point: _Point) -> None:
        known = self.numbers.setdefault(point.name, {})
        before = known.get(point.labels)
        if before is None:
            self.count += 1
        sum_before = before[0] if before is not None and point.is_delta else 0.0
        known[point.labels] = (sum_before + point.value, point.is_counter)


class ClientMetricsStore:
    """The reported metrics of all clients."""

    def __init__(self) -> None:
        self._clients: dict[bytes, _Client] = {}
        self._is_preloaded = False

    def preload_parser(self) -> None:
        """A client got a subscription: imports the parser."""
        if not self._is_preloaded:
            self._is_preloaded = True
            Thread(target=_parser, name="telemetry").start()

    def update(
        self,
        instance_id: bytes,
        facts: ClientAttributes,
        compression: int,
        data: bytes,
        *,
        now_ms: int,
        expires_ms: int,
    ) -> None:
        """Stores a report, which is valid until `expires_ms`.

        Raises:
            KafkaError: INVALID_RECORD: it is malformed. TELEMETRY_TOO_LARGE: it has too many samples.
        """
        points = list(_points(_unpacked(compression, data)))
        self._remove_expired(now_ms)
        client = self._clients.get(instance_id) or _Client(facts)
        others = sum(other.count for other in self._clients.values() if other is not client)
        if len(points) > MAX_SAMPLES_PER_CLIENT or others + client.count + len(points) > MAX_SAMPLES:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, None)
        for point in points:
            client.update(point)
        client.expires_ms = expires_ms
        self._clients[instance_id] = client

    def names(self, now_ms: int) -> list[str]:
        """The metric names known now."""
        self._remove_expired(now_ms)
        return sorted({name for client in self._clients.values() for name in client.numbers})

    def numbers(self, name: str) -> list[Sample]:
        """The samples of a name."""
        found = []
        for client in self._clients.values():
            client_labels = tuple((fact, text) for fact, text in client.facts.items() if text is not None)
            for labels, (value, is_counter) in client.numbers.get(name, {}).items():
                found.append(Sample((*client_labels, *labels), value, is_counter))
        return found

    def _remove_expired(self, now_ms: int) -> None:
        self._clients = {key: client for key, client in self._clients.items() if client.expires_ms > now_ms}


def _parser() -> tuple[Callable[[bytes], MetricsData], type[Exception]]:
    """The parser of a report, and the exception that it raises (rule 4)."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData  # noqa: PLC0415

    return MetricsData.FromString, DecodeError


def _unpacked(compression: int, data: bytes) -> MetricsData:
    read, unreadable = _parser()
    try:
        return read(bytes(decompress(compression, data, MAX_BYTES)))
    except unreadable as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
    except KafkaError as error:
        is_large = error.code == ErrorCode.MESSAGE_TOO_LARGE
        code = ErrorCode.TELEMETRY_TOO_LARGE if is_large else ErrorCode.INVALID_RECORD
        raise KafkaError(code, error.message) from None


def _points(report: MetricsData) -> Iterator[_Point]:
    for resource in report.resource_metrics:
        of_client = _labels(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield from _of_metric(metric, of_client)


def _of_metric(metric: Metric, of_client: Labels) -> Iterator[_Point]:
    kind = metric.WhichOneof("data")
    points: Iterable[NumberDataPoint] = ()
    is_counter = is_delta = False
    if kind == "gauge":
        points = metric.gauge.data_points
    elif kind == "sum":
        points = metric.sum.data_points
        is_counter = metric.sum.is_monotonic
        is_delta = metric.sum.aggregation_temporality == _DELTA
    for point in points:
        value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
        labels = (*of_client, *_labels(point.attributes))
        yield _Point(metric.name, labels, float(value), is_counter, is_delta)


def _labels(attributes: Iterable[KeyValue]) -> Labels:
    return tuple(sorted((one.key, _text(one)) for one in attributes))


def _text(attribute: KeyValue) -> str:
    kind = attribute.value.WhichOneof("value")
    return "" if kind is None else str(getattr(attribute.value, kind))
