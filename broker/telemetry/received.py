"""What clients have reported of themselves, kept while they live: OpenTelemetry's metrics, as numbers with names and labels.

RULES    1. A sum that comes as differences is added up, everything else is replaced by what comes; what a client does not
            report any more stays until the client was silent for a while, its last report too.
         2. Gauges and sums are kept, of which Kafka's clients make everything; histograms and summaries are left out.
         3. There is room for so many numbers: whose report would make more is asked to send less (TELEMETRY_TOO_LARGE).
         4. What reads reports takes a tenth of a second to load: most brokers never do it, and the others in a thread, when
            a client hears that it shall report.
NOT HERE Who may report, and when (`instances.py`); how it is shown (`page.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple

from protocol.compression import decompress
from protocol.errors import ErrorCode, KafkaError
from replication.metadata.client_metrics import Facts

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData, NumberDataPoint

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of one report, unpacked."""
MOST_NUMBERS_OF_ONE: Final = 5_000
MOST_NUMBERS: Final = 100_000
_DELTA: Final = 1
"""AGGREGATION_TEMPORALITY_DELTA."""

Labels = tuple[tuple[str, str], ...]


class Number(NamedTuple):
    """One number of a client, and all that it is labelled with."""

    labels: Labels
    value: float
    is_counter: bool


class _Point(NamedTuple):
    name: str
    labels: Labels
    value: float
    is_counter: bool
    is_difference: bool


class _Client:
    """What one client has reported."""

    __slots__ = ("count", "facts", "numbers", "until_ms")

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.numbers: dict[str, dict[Labels, tuple[float, bool]]] = {}
        self.count = 0
        self.until_ms = 0

    def take(self, point: _Point) -> None:
        known = self.numbers.setdefault(point.name, {})
        before = known.get(point.labels)
        if before is None:
            self.count += 1
        sum_before = before[0] if before is not None and point.is_difference else 0.0
        known[point.labels] = (sum_before + point.value, point.is_counter)


class ReceivedMetrics:
    """The numbers of all clients."""

    def __init__(self) -> None:
        self._clients: dict[bytes, _Client] = {}
        self._is_awaited = False

    def await_reports(self) -> None:
        """Somebody was asked to report."""
        if not self._is_awaited:
            self._is_awaited = True
            Thread(target=_reader, name="telemetry").start()

    def take(
        self, instance_id: bytes, facts: Facts, compression: int, data: bytes, *, now_ms: int, until_ms: int
    ) -> None:
        """A report has come, which counts until `until_ms`.

        Raises:
            KafkaError: INVALID_RECORD: it cannot be read. TELEMETRY_TOO_LARGE: it says too much.
        """
        points = list(_points(_unpacked(compression, data)))
        self._forget_silent(now_ms)
        client = self._clients.get(instance_id) or _Client(facts)
        others = sum(other.count for other in self._clients.values() if other is not client)
        if len(points) > MOST_NUMBERS_OF_ONE or others + client.count + len(points) > MOST_NUMBERS:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, None)
        for point in points:
            client.take(point)
        client.until_ms = until_ms
        self._clients[instance_id] = client

    def names(self, now_ms: int) -> list[str]:
        """Of everything that is known now."""
        self._forget_silent(now_ms)
        return sorted({name for client in self._clients.values() for name in client.numbers})

    def numbers(self, name: str) -> list[Number]:
        """What is known under a name."""
        found = []
        for client in self._clients.values():
            who = tuple((fact, text) for fact, text in client.facts.items() if text is not None)
            for labels, (value, is_counter) in client.numbers.get(name, {}).items():
                found.append(Number((*who, *labels), value, is_counter))
        return found

    def _forget_silent(self, now_ms: int) -> None:
        self._clients = {key: client for key, client in self._clients.items() if client.until_ms > now_ms}


def _reader() -> tuple[Callable[[bytes], MetricsData], type[Exception]]:
    """What reads a report, and what it raises (rule 4)."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData  # noqa: PLC0415

    return MetricsData.FromString, DecodeError


def _unpacked(compression: int, data: bytes) -> MetricsData:
    read, unreadable = _reader()
    try:
        return read(bytes(decompress(compression, data, MOST_BYTES)))
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
    is_counter = is_difference = False
    if kind == "gauge":
        points = metric.gauge.data_points
    elif kind == "sum":
        points = metric.sum.data_points
        is_counter = metric.sum.is_monotonic
        is_difference = metric.sum.aggregation_temporality == _DELTA
    for point in points:
        value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
        labels = (*of_client, *_labels(point.attributes))
        yield _Point(metric.name, labels, float(value), is_counter, is_difference)


def _labels(attributes: Iterable[KeyValue]) -> Labels:
    return tuple(sorted((one.key, _text(one)) for one in attributes))


def _text(attribute: KeyValue) -> str:
    kind = attribute.value.WhichOneof("value")
    return "" if kind is None else str(getattr(attribute.value, kind))
