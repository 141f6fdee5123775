"""Histograms, phases and errors of requests (broker/process/histograms.py, request_metrics.py, request_families.py)."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.process.histograms import Distribution, Histogram
from broker.telemetry.exposition import Format
from broker.telemetry.request_families import RequestFamilies
from broker.telemetry.request_metrics import EXACT, SAMPLE_MASK, ApiMetrics, RequestMetrics, RequestTimes
from protocol.errors import ErrorCode

US = 1_000
MS = 1_000_000


def samples(table: RequestMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """The exposition's samples by name and label values."""
    return samples_of("".join(Format("").slices([RequestFamilies([table])])))


def samples_of(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """The samples of a page by name and label values."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_quantile_is_within_a_factor_of_two_of_the_duration() -> None:
    histogram = Histogram()
    for duration_us in range(1, 10_001):
        histogram.record(duration_us * US)
    distribution = Distribution([histogram])
    for quantile in (0.5, 0.75, 0.95, 0.99):
        assert distribution.quantile_ms(quantile) == pytest.approx(10 * quantile, rel=0.65)
    assert math.isnan(Distribution([]).quantile_ms(0.5))


def test_the_buckets_of_the_exposition_are_cumulative() -> None:
    histogram = Histogram()
    for duration_ns in (0, (1 << 15) - 1, 1 << 15, 10**9, 1 << 50):
        histogram.record(duration_ns)
    found = dict(Distribution([histogram]).cumulative())
    assert (found["3.2768e-05"], found["6.5536e-05"], found["1.073741824"], found["+Inf"]) == (2, 3, 4, 5)


def test_durations_of_zero_that_are_not_recorded_are_added() -> None:
    histogram = Histogram()
    histogram.record(MS)
    distribution = Distribution([histogram], count=100)
    assert (distribution.count, distribution.quantile_ms(0.5), distribution.quantile_ms(0.999) > 0.5) == (100, 0, True)


def test_an_immediate_answer_has_three_phases() -> None:
    metrics = ApiMetrics("Produce", 9)
    assert not metrics.record_immediate(0, 40 * US, 100 * US)
    assert (metrics.total.sum_ns, metrics.local.sum_ns, metrics.send.sum_ns) == (100 * US, 40 * US, 60 * US)
    assert sum(metrics.remote.buckets) == sum(metrics.queue.buckets) == 0


def waiting(metrics: ApiMetrics) -> RequestTimes:
    times = RequestTimes(metrics, bytearray(b"x"), 0, 1 * MS, 3 * MS)
    times.completed_ns, times.sending_ns = 10 * MS, 11 * MS
    return times


def test_a_request_that_waits_has_all_phases() -> None:
    metrics = ApiMetrics("Produce", 9)
    times = waiting(metrics)
    assert not metrics.record(times, 15 * MS)
    names = ("queue", "local", "remote", "response_queue", "send", "total")
    assert [getattr(metrics, name).sum_ns // MS for name in names] == [1, 2, 7, 1, 4, 15]
    assert times.phases_ms(15 * MS) == {"queue": 1, "local": 2, "remote": 7, "response queue": 1, "send": 4}
    assert times.frame is None  # nothing logs it


@pytest.mark.parametrize(
    ("waits_for_clients", "slow_ms", "is_slow"), [(False, 15, True), (False, 16, False), (True, 9, False)]
)
def test_a_wait_for_clients_makes_no_request_slow(waits_for_clients: bool, slow_ms: int, is_slow: bool) -> None:
    metrics = ApiMetrics("Fetch", 12, slow_ms * MS, waits_for_clients=waits_for_clients)
    assert metrics.record(waiting(metrics), 15 * MS) is is_slow


def test_errors_are_counted_by_api_and_code() -> None:
    table = RequestMetrics()
    metrics = table.of(0, "Produce", 9, waits_for_clients=False)
    metrics.count = 3
    metrics.count_errors([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER, 4711])
    found = samples(table)
    errors = {labels[1]: value for (name, labels), value in found.items() if name.endswith("errors_total")}
    assert errors == {"NONE": 2, "NOT_LEADER_OR_FOLLOWER": 2, "4711": 1}


def test_the_responses_without_errors_do_not_fall_when_a_request_that_waited_fails() -> None:
    table = RequestMetrics()
    families = RequestFamilies([table])
    metrics = table.of(0, "Produce", 9, waits_for_clients=False)

    def succeeded() -> float:
        text = "".join(Format("").slices([families]))
        return samples_of(text)["kafka_network_requestmetrics_errors_total", ("Produce", "NONE")]

    metrics.count = 3  # one of them waits
    assert succeeded() == 3
    metrics.count_errors([ErrorCode.REQUEST_TIMED_OUT])
    assert succeeded() == 3
    metrics.count = 5
    assert succeeded() == 4


def test_fetches_of_consumers_and_followers_are_apart_and_together() -> None:
    table = RequestMetrics()
    metrics = table.of(1, "Fetch", 12, waits_for_clients=True)
    metrics.count = 3  # the dispatcher counts before the handler knows who asks
    for _ in range(2):
        metrics.of_follower().record_immediate(0, US, US)
    found = samples(table)
    name = "kafka_network_requestmetrics_requests_total"
    counts = {labels[0]: value for (sample, labels), value in found.items() if sample == name}
    assert counts == {"Fetch": 3, "FetchConsumer": 1, "FetchFollower": 2}
    assert found["kafka_network_requestmetrics_totaltimems_count", ("FetchFollower",)] == 2


def test_after_the_first_ones_a_request_is_timed_for_several() -> None:
    metrics = ApiMetrics("Produce", 9)
    for number in range(EXACT):
        assert not metrics.sample_mask
        if number % 2:
            metrics.record(waiting(metrics), 15 * MS)
        else:
            metrics.record_immediate(0, US, US)
    assert metrics.sample_mask == SAMPLE_MASK
    metrics.record_immediate(0, US, US)
    assert sum(metrics.total.buckets) == EXACT + SAMPLE_MASK + 1
    metrics.time_all()  # a scrape
    metrics.record_immediate(0, US, US)
    assert sum(metrics.total.buckets) == EXACT + SAMPLE_MASK + 2


def test_the_requests_without_a_throttle_time_do_not_fall_while_few_requests_are_timed() -> None:
    table = RequestMetrics()
    families = RequestFamilies([table])
    metrics = table.of(0, "Produce", 9, waits_for_clients=False)

    def shown() -> tuple[float, float]:
        found = samples_of("".join(Format("").slices([families])))
        zeros = found["barnabas_request_duration_seconds_bucket", ("Produce", "throttle", "3.2768e-05")]
        return zeros, found["kafka_network_requestmetrics_throttletimems_count", ("Produce",)]

    for _ in range(20):
        metrics.record_immediate(0, US, US)
    metrics.throttle.record(MS)
    assert shown() == (19, 20)
    for _ in range(10):  # of requests that are not timed
        metrics.throttle.record(MS)
    assert shown() == (19, 30)
    for _ in range(15):
        metrics.record_immediate(0, US, US)
    assert shown() == (24, 35)


def test_all_requests_are_timed_while_slow_ones_are_logged() -> None:
    metrics = ApiMetrics("Produce", 9, slow_ns=MS)
    for _ in range(2 * EXACT):
        metrics.record_immediate(0, US, US)
    assert (metrics.sample_mask, metrics.weight) == (0, 1)
