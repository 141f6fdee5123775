"""Metric families: what a source offers to the exposition, and the names of the existing dialects.

RULES    1. A family has one name, one kind, and points with their labels as text, ready for both formats. Points may be
            produced lazily: the exposition takes them in slices of the loop.
         2. Families of Apache Kafka's MBeans have a name for each dialect of JMX exporters (`Dialect`); the first is canonical.
         3. A source may yield PAUSE between families, where it has worked for long.
NOT HERE The formats (`exposition.py`); the values (the sources).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, Protocol

from broker.process.histograms import QUANTILES, Distribution

_INVALID: Final = re.compile(r"[^a-zA-Z0-9_:]")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Kind(Enum):
    """The type of a family, as the text formats name it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    HISTOGRAM = "histogram"


class Dialect(Enum):
    """The exporter whose names for Apache Kafka's metrics are used."""

    JMX = "a"
    """jmx_exporter's example rules, and Strimzi."""
    CONFLUENT = "b"
    """Confluent, and Grafana's Kafka integration: counters without _total."""
    REPORTER = "c"
    """Strimzi's metrics reporter."""
    REDPANDA = "redpanda"
    """The public metrics of Redpanda; only these."""


class Point(NamedTuple):
    """One line: the end of its name after the family's, its labels as `label_text` writes them, its value."""

    suffix: str
    labels: str
    value: float


class Family(NamedTuple):
    """One metric; a counter's name has no _total."""

    name: str
    kind: Kind
    help: str
    points: Iterable[Point]
    other_names: Mapping[Dialect, str] = {}
    """The names in other dialects; a counter's with its ending."""


PAUSE: Final = None
Families = Iterator["Family | None"]


class Source(Protocol):
    """Offers families; a method, so that its values are those of the scrape."""

    def families(self) -> Families:
        """The families, in order."""


def label_text(*labels: tuple[str, str]) -> str:
    """Labels as they are written, in order; empty without labels."""
    if not labels:
        return ""
    return "{" + ",".join([f'{metric_name(key)}="{text.translate(_ESCAPES)}"' for key, text in labels]) + "}"


def metric_name(text: str) -> str:
    """The text with "_" for all characters that names cannot have; a name is not empty."""
    name = _INVALID.sub("_", text)
    return f"_{name}" if not name or name[0].isdigit() else name


def gauge(name: str, explanation: str, value: float) -> Family:
    """A gauge without labels."""
    return Family(name, Kind.GAUGE, explanation, (Point("", "", value),))


def gauges(name: str, explanation: str, values: Iterable[tuple[str, float]]) -> Family:
    """A gauge for each label text."""
    return Family(name, Kind.GAUGE, explanation, (Point("", labels, value) for labels, value in values))


def counter(name: str, explanation: str, value: float) -> Family:
    """A counter without labels."""
    return Family(name, Kind.COUNTER, explanation, (Point("_total", "", value),))


def counters(name: str, explanation: str, values: Iterable[tuple[str, float]]) -> Family:
    """A counter for each label text."""
    return Family(name, Kind.COUNTER, explanation, (Point("_total", labels, value) for labels, value in values))


def meter(bean: str, attribute: str, explanation: str, values: Iterable[tuple[str, float]]) -> Family:
    """A meter of Apache Kafka, such as BytesIn (PerSec) of `kafka_server_brokertopicmetrics`, as a counter."""
    name = f"{bean}_{attribute.lower()}"
    names = {Dialect.CONFLUENT: f"{name}persec", Dialect.REPORTER: f"{name}persec_total"}
    return counters(name, explanation, values)._replace(other_names=names)


def percent(bean: str, attribute: str, explanation: str, value: float) -> Family:
    """A share of Apache Kafka, such as NetworkProcessorAvgIdle (Percent); 0 to 1."""
    name = f"{bean}_{attribute.lower()}"
    names = {Dialect.CONFLUENT: f"{name}percent_oneminuterate", Dialect.REPORTER: f"{name}percent"}
    return gauge(f"{name}_percent", explanation, value)._replace(other_names=names)


def summary(name: str, explanation: str, values: Iterable[tuple[tuple[tuple[str, str], ...], Distribution]]) -> Family:
    """A histogram of Apache Kafka in milliseconds: quantiles and count; labels are pairs."""

    def points() -> Iterator[Point]:
        for labels, distribution in values:
            for quantile in QUANTILES:
                value = distribution.quantile_ms(float(quantile))
                yield Point("", label_text(*labels, ("quantile", quantile)), value)
            yield Point("_count", label_text(*labels), distribution.count)

    return Family(name, Kind.SUMMARY, explanation, points())


def histogram(
    name: str, explanation: str, values: Iterable[tuple[tuple[tuple[str, str], ...], Distribution]]
) -> Family:
    """A histogram in seconds that Apache Kafka does not have; labels are pairs."""

    def points() -> Iterator[Point]:
        for labels, distribution in values:
            for bound, count in distribution.cumulative():
                yield Point("_bucket", label_text(*labels, ("le", bound)), count)
            yield Point("_count", label_text(*labels), distribution.count)
            yield Point("_sum", label_text(*labels), distribution.sum_ns / 1e9)

    return Family(name, Kind.HISTOGRAM, explanation, points())
