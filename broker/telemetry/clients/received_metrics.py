"""The metrics that clients reported, while the clients are alive: OpenTelemetry metrics as samples with names and labels.

RULES    1. A delta sum is added to the previous value; everything else replaces it. A metric that a client no longer reports,
            and the client's last report, stay until the client expires.
         2. Gauges and sums are stored, which is all that Kafka's clients report; histograms and summaries are ignored.
         3. The elements of a report, and the samples and the text of all clients are limited: a report above a limit is refused
            with TELEMETRY_TOO_LARGE. A few hundred compressed bytes can contain millions of elements.
         4. Importing the parser takes a tenth of a second: it happens in a thread when the first client gets a subscription.
         5. A sample has each label once, and labels are sorted, so that each series is on the page once: Prometheus refuses
            others. This node's facts about the client precede the attributes of the point, and those of the resource. Names
            that Prometheus reserves are left out, and attributes that are lists.
NOT HERE Rate limits (`client_instances.py`); the page (`../page.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from broker.telemetry.families import metric_name
from protocol.compression import decompress
from protocol.errors import ErrorCode, KafkaError
from replication.metadata.client_metrics import ClientAttributes

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData, NumberDataPoint

T = TypeVar("T")

MAX_BYTES: Final = 1024 * 1024
"""Of one report, uncompressed."""
MAX_ELEMENTS: Final = 30_000
"""Of one report: resources, scopes, metrics, points and attributes."""
MAX_SAMPLES_PER_CLIENT: Final = 5_000
MAX_SAMPLES: Final = 100_000
MAX_TEXT: Final = 32 * 1024 * 1024
"""Characters of the names and labels of all samples."""
_MAX_FACT: Final = 255
"""Characters of a fact about a client that are shown: they are in each of its samples."""
_RESERVED: Final = "__"
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

    @property
    def text_size(self) -> int:
        """The characters of name and labels."""
        return len(self.name) + sum(len(key) + len(text) for key, text in self.labels)


@dataclass(slots=True, eq=False)
class _Client:
    """The reported metrics of one client."""

    facts: ClientAttributes
    numbers: dict[str, dict[Labels, tuple[float, bool]]] = field(default_factory=dict)
    count: int = 0
    text_size: int = 0
    expires_ms: int = 0

    def is_new(self, point: _Point) -> bool:
        """Whether `update` stores another sample instead of replacing one."""
        return point.labels not in self.numbers.get(point.name, ())

    def update(self, point: _Point) -> None:
        known = self.numbers.setdefault(point.name, {})
        before = known.get(point.labels)
        if before is None:
            self.count += 1
            self.text_size += point.text_size
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
            KafkaError: INVALID_RECORD: it is malformed. TELEMETRY_TOO_LARGE: it is above a limit.
        """
        points = list(_Report(facts.keys()).points(_unpacked(compression, data)))
        self._remove_expired(now_ms)
        client = self._clients.get(instance_id) or _Client(_shown(facts))
        known, added = self._clients.values(), [point for point in points if client.is_new(point)]
        count = sum(one.count for one in known) + len(added)
        text_size = sum(one.text_size for one in known) + sum(point.text_size for point in added)
        if len(points) > MAX_SAMPLES_PER_CLIENT or count > MAX_SAMPLES or text_size > MAX_TEXT:
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


class _Report:
    """Reads one report, and counts its elements."""

    def __init__(self, facts: Iterable[str]) -> None:
        """`facts` are the labels that the samples have anyway."""
        self._facts = frozenset(facts)
        self._left = MAX_ELEMENTS

    def points(self, report: MetricsData) -> Iterator[_Point]:
        """The points of all metrics.

        Raises:
            KafkaError: TELEMETRY_TOO_LARGE.
        """
        for resource in self._counted(report.resource_metrics):
            of_client = self._labels(resource.resource.attributes)
            for scope in self._counted(resource.scope_metrics):
                for metric in self._counted(scope.metrics):
                    yield from self._of_metric(metric, of_client)

    def _of_metric(self, metric: Metric, of_client: dict[str, str]) -> Iterator[_Point]:
        kind = metric.WhichOneof("data")
        points: Sequence[NumberDataPoint] = ()
        is_counter = is_delta = False
        if kind == "gauge":
            points = metric.gauge.data_points
        elif kind == "sum":
            points = metric.sum.data_points
            is_counter = metric.sum.is_monotonic
            is_delta = metric.sum.aggregation_temporality == _DELTA
        for point in self._counted(points):
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            labels = tuple(sorted((of_client | self._labels(point.attributes)).items()))
            yield _Point(metric.name, labels, float(value), is_counter, is_delta)

    def _labels(self, attributes: Sequence[KeyValue]) -> dict[str, str]:
        """The attributes that may be labels, by name (rule 5)."""
        found: dict[str, str] = {}
        for one in sorted(self._counted(attributes), key=lambda attribute: attribute.key):
            name, text = metric_name(one.key), _text(one)
            if text is not None and name not in self._facts and not name.startswith(_RESERVED):
                found.setdefault(name, text)
        return found

    def _counted(self, elements: Sequence[T]) -> Sequence[T]:
        self._left -= len(elements)
        if self._left < 0:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, None)
        return elements


def _shown(facts: ClientAttributes) -> ClientAttributes:
    return {name: None if text is None else text[:_MAX_FACT] for name, text in facts.items()}


def _text(attribute: KeyValue) -> str | None:
    kind = attribute.value.WhichOneof("value")
    if kind in ("array_value", "kvlist_value"):
        return None
    return "" if kind is None else str(getattr(attribute.value, kind))
