"""The demo's checks and exit code; Spark is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer
from kafka import KafkaProducer
from kafka.errors import UnknownError
from rich.console import Console

from barnabas.pipeline.demo import consume, demo, produce
from barnabas.pipeline.demo.demo import Demo, Options
from barnabas.pipeline.demo.flights import Delay, Delays, count_delays, read_flights
from barnabas.pipeline.demo.spark_jobs import StreamReport
from barnabas.pipeline.errors import JobError
from tests.support.waiting import until

pytestmark = pytest.mark.long

ROWS = 1_500


class NoSpark:
    """Replaces a session."""

    version = "none"

    def stop(self) -> None:
        pass


@pytest.fixture
def figures() -> Delays:
    return count_delays(read_flights(ROWS))


@pytest.fixture
def job(kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Delays) -> Demo:
    return demo_of(ROWS, figures, kafka_broker.bootstrap, tmp_path, monkeypatch)


def demo_of(rows: int, figures: Delays, bootstrap: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """A demo whose Spark returns these figures."""
    reports = iter([StreamReport(figures, rows, 4), StreamReport({}, 0, 0)])
    monkeypatch.setattr(demo, "check_java", lambda: None)
    monkeypatch.setattr(demo, "start_session", lambda *_: (NoSpark(), "none"))
    monkeypatch.setattr(demo, "read_batch", lambda *_: figures)
    monkeypatch.setattr(demo, "read_stream", lambda *_: next(reports))
    return Demo(Options(bootstrap, rows, folder), Console(width=100))


def test_correct_figures_agree(job: Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.run(), job.disagreements
    output = capsys.readouterr().out
    assert "DISAGREES" not in output
    assert output.count("agrees    ") == 13
    assert "0 disagreements" in output
    assert (tmp_path / "delays.png").exists()


def test_a_single_flight_leaves_two_members_of_the_group_without_records(
    kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of a consumer without records is an error of librdkafka."""
    job = demo_of(1, count_delays(read_flights(1)), kafka_broker.bootstrap, tmp_path, monkeypatch)
    assert job.run(), job.disagreements


def one_delay_more(figures: Delays) -> Delays:
    right = figures["UA", 1]
    return {**figures, ("UA", 1): Delay(right.flights, right.departures, right.delay_minutes + 1)}


def one_record_less(report: Any) -> Any:
    return report._replace(records=report.records - 1, checksum=report.checksum - 1)


def one_offset_early(answer: Any) -> Any:
    partition, offset = next((partition, offset) for partition, offset in answer.offsets.items() if offset)
    return answer._replace(offsets={**answer.offsets, partition: offset - 1})


@pytest.mark.parametrize(
    ("step", "change", "disagreements"),
    [
        pytest.param("read_batch", one_delay_more, ["figures of Spark's batch"], id="a wrong figure of Spark"),
        pytest.param(
            "read_with_group",
            one_record_less,
            ["flights read by the group", "checksum of what the group read"],
            id="a record missed by the group",
        ),
        pytest.param(
            "seek_by_time", one_offset_early, ["first offsets at or after the moment"], id="a wrong look-up by time"
        ),
    ],
)
def test_one_wrong_result_fails_the_demo(
    job: Demo, step: str, change: Any, disagreements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    really = getattr(demo, step)
    monkeypatch.setattr(demo, step, lambda *args: change(really(*args)))
    assert not job.run()
    assert job.disagreements == disagreements


def test_a_refused_record_or_a_slow_group_is_one_sentence(job: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(demo, "KEEP_FOR_EVER", {"max.message.bytes": "100"})
        with pytest.raises(JobError, match=r"refused \d+ of 1500 records, the first with: .*MessageSizeTooLarge"):
            job.run()
    monkeypatch.setattr(consume, "LIMIT_S", 0.0)
    with pytest.raises(JobError, match="did not read 1500 records within 0 s"):
        job.run()


def test_records_that_are_refused_while_a_flush_waits_are_one_sentence(
    job: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python splits a batch that is too large; a flush that waits for it is ended with an error."""
    flushes: list[int] = []

    class Splitting(KafkaProducer):  # type: ignore[misc]  # it has no types
        def flush(self, timeout: float | None = None) -> None:
            flushes.append(1)
            super().flush(timeout)
            if len(flushes) < 3:
                raise UnknownError("Future not done")

    monkeypatch.setattr(demo, "KEEP_FOR_EVER", {"max.message.bytes": "100"})
    monkeypatch.setattr(produce, "KafkaProducer", Splitting)
    with pytest.raises(JobError, match=r"refused 1500 of 1500 records, the first with: .*MessageSizeTooLarge"):
        job.run()
    assert len(flushes) >= 3


def test_no_member_leaves_the_group_before_all_have_committed(job: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Recording(Consumer):
        def commit(self, **options: Any) -> Any:
            calls.append("commit")
            return super().commit(**options)

        def close(self) -> None:
            calls.append("close")
            super().close()

    monkeypatch.setattr(consume, "Consumer", Recording)
    assert job.run(), job.disagreements
    assert calls == ["commit"] * 3 + ["close"] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_without_leaving_a_process_or_a_file(number: signal.Signals, tmp_path: Path) -> None:
    """Its broker and its folders, with 100 MB of flights, are temporary."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = [sys.executable, "-m", "barnabas", "pipeline", "demo", "--output", str(tmp_path / "output")]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(scratch)}
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("barnabas ready on ")
        brokers = until(psutil.Process(running.pid).children, "the broker runs")
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert errors == f"demo: stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}\n"
    assert not list(scratch.iterdir())
    assert not any(broker.is_running() for broker in brokers)
