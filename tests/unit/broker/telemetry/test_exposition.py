"""Both text formats, and the names of the dialects (broker/telemetry/exposition.py, families.py)."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from broker.process.histograms import Distribution, Histogram
from broker.telemetry.exposition import LINES_PER_SLICE, Format
from broker.telemetry.families import (
    PAUSE,
    Dialect,
    Families,
    counter,
    gauge,
    gauges,
    histogram,
    label_text,
    meter,
    percent,
    summary,
)

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


class Offered:
    """One family of each kind."""

    def families(self) -> Families:
        durations = Histogram()
        durations.record(1_500_000)
        yield gauge("g", "A gauge.", 2.5)
        yield PAUSE
        yield meter(
            "kafka_server_brokertopicmetrics", "BytesIn", "Bytes.", [("", 3), (label_text(("topic", 't"\\\n')), 3)]
        )
        yield percent("kafka_server_kafkarequesthandlerpool", "RequestHandlerAvgIdle", "Idle.", 0.75)
        yield summary("s", "A summary.", [((("request", "Produce"),), Distribution([durations]))])
        yield histogram("h", "A histogram.", [((("api", "Produce"),), Distribution([durations]))])
        yield counter("empty", "Nothing.", 0)._replace(points=())


def text_of(accept: str, dialect: Dialect = Dialect.JMX) -> str:
    return "".join(Format(accept, dialect).slices([Offered()]))


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_prometheus_reads_what_was_written(accept: str) -> None:
    read = read_openmetrics if accept else read_text
    families = {family.name: family for family in read(text_of(accept))}
    kinds = {name: family.type for name, family in families.items()}
    assert kinds == {
        "g": "gauge",
        "kafka_server_brokertopicmetrics_bytesin": "counter",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": "gauge",
        "s": "summary",
        "h": "histogram",
    }
    found = families["kafka_server_brokertopicmetrics_bytesin"].samples
    assert [(one.name.removeprefix("kafka_server_"), one.labels, one.value) for one in found] == [
        ("brokertopicmetrics_bytesin_total", {}, 3),
        ("brokertopicmetrics_bytesin_total", {"topic": 't"\\\n'}, 3),
    ]
    assert {one.labels["quantile"] for one in families["s"].samples if one.name == "s"} == {
        "0.50", "0.75", "0.95", "0.98", "0.99", "0.999",
    }  # fmt: skip
    assert families["h"].samples[-1].value == 0.0015


def test_the_content_type_names_format_and_version() -> None:
    assert Format("").content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert Format(OPENMETRICS).content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert text_of(OPENMETRICS).endswith("# EOF\n")
    assert "# EOF" not in text_of("")


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        (Dialect.JMX, {"bytesin_total", "requesthandleravgidle_percent"}),
        (Dialect.CONFLUENT, {"bytesinpersec", "requesthandleravgidlepercent_oneminuterate"}),
        (Dialect.REPORTER, {"bytesinpersec_total", "requesthandleravgidlepercent"}),
    ],
)
def test_each_dialect_has_its_names(dialect: Dialect, names: set[str]) -> None:
    found = {line.split("{")[0].split(" ")[0] for line in text_of("", dialect).splitlines() if line[0] != "#"}
    assert names == {name.split("_", 3)[-1] for name in found if name.startswith("kafka_server_")}


def test_confluents_names_are_not_allowed_in_openmetrics() -> None:
    assert Format(OPENMETRICS, Dialect.CONFLUENT).content_type.startswith("text/plain")


class Clashing:
    """A source whose names a client chose."""

    def families(self) -> Families:
        yield gauge("s_count", "Not the count of the summary s.", 1)
        yield gauge("g", "Another g.", 1)


def test_a_name_that_an_earlier_family_uses_is_left_out() -> None:
    text = "".join(Format(OPENMETRICS).slices([Offered(), Clashing()]))
    assert text == text_of(OPENMETRICS)


class Many:
    """More lines than a slice has."""

    def families(self) -> Families:
        yield gauges("many", "Many.", ((label_text(("n", str(n))), n) for n in range(3 * LINES_PER_SLICE)))


def test_a_large_family_is_written_in_slices() -> None:
    pieces = list(Format("").slices([Many()]))
    assert [piece.count("\nmany") for piece in pieces] == [LINES_PER_SLICE, LINES_PER_SLICE - 1, LINES_PER_SLICE - 1]
