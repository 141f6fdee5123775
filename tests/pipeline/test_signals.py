"""Jobs stopped by a signal: one sentence, the exit code 128 + signal, and no process left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark")

from barnabas.signals import Stopped, StopSignals
from tests.pipeline.killing.job import Job
from tests.pipeline.topics import create, minutes, send
from tests.support.waiting import until

pytestmark = pytest.mark.long

LIMIT_S = 300.0
CUT = """
import runpy, sys
import pyspark.util as streams
from pyspark.sql import SparkSession
connect = streams.local_connect_and_auth
def connect_and_cut(*where):
    found = connect(*where)
    process = SparkSession.getActiveSession().sparkContext._gateway.proc
    process.kill()
    process.wait()
    return found
streams.local_connect_and_auth = connect_and_cut
sys.argv[0] = "barnabas"
runpy.run_module("barnabas", run_name="__main__", alter_sys=True)
"""
"""A program whose JVM is killed when it starts to send rows to Python."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def _dispositions_stay() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_dispositions_stay")
@pytest.mark.parametrize(
    ("number", "message", "code"),
    [(signal.SIGINT, "stopped by Ctrl-C", 130), (signal.SIGTERM, "stopped by SIGTERM", 143)],
)
def test_a_failure_after_a_signal_is_not_reported(number: signal.Signals, message: str, code: int) -> None:
    def job() -> None:
        with StopSignals():
            try:
                os.kill(os.getpid(), number)
            finally:
                raise ConnectionError("the JVM received it, too")

    with pytest.raises(Stopped) as stopped:
        job()
    assert (str(stopped.value), stopped.value.exit_code) == (message, code)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == (signal.SIG_DFL, signal.SIG_IGN)


@pytest.mark.usefixtures("_dispositions_stay")
def test_a_continuous_job_ends_normally_after_a_signal() -> None:
    with StopSignals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            ended = "well"
    assert ended == "well"


def test_without_a_signal_failures_and_handlers_are_unchanged() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]

    def job() -> None:
        with StopSignals():
            assert [signal.getsignal(number) for number in SIGNALS] != before
            raise ConnectionError("the JVM is gone")

    with pytest.raises(ConnectionError, match="the JVM is gone"):
        job()
    assert [signal.getsignal(number) for number in SIGNALS] == before


class Running(Job):
    """A job that is watched together with its JVM."""

    def __init__(self, folder: Path, *words: str, program: tuple[str, ...] = ()) -> None:
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        where = {"TMPDIR": str(self.scratch)}
        super().__init__([*words, "--master", "local[1]"], folder / "job", environment=where, program=program)

    def await_jvm(self) -> None:
        until(lambda: self.is_over or self._others(), "Spark starts", LIMIT_S)

    def await_steps(self) -> None:
        until(lambda: self.is_over or self._stdout.stat().st_size, "the job works", LIMIT_S)

    def stop(self, number: signal.Signals, *, to_all: bool) -> tuple[int, str]:
        """Sends the signal; returns exit code and standard error once all processes have ended."""
        assert not self.is_over, self.stderr
        (os.killpg if to_all else os.kill)(self._process.pid, number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Returns exit code and standard error once all processes have ended."""
        code = self._process.wait(LIMIT_S)
        until(lambda: not self._others(), "all of it has ended", LIMIT_S)
        return code, self.stderr

    def _others(self) -> list[int]:
        """The other processes of its process group."""
        return [pid for pid in psutil.pids() if pid != self._process.pid and _group_of(pid) == self._process.pid]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


@pytest.fixture
def words(java: None, kafka_broker: Any, tmp_path: Path) -> list[str]:
    """The command line of an archive with small rounds."""
    topic = f"stopped-{tmp_path.name}"
    create(kafka_broker.bootstrap, topic, 1)
    send(kafka_broker.bootstrap, topic, minutes(2_000, 1))
    where = ["--bootstrap", kafka_broker.bootstrap, "--topic", topic, "--into", str(tmp_path / "archive")]
    return ["archive", *where, "--max-offsets-per-trigger", "10"]


@pytest.mark.parametrize(
    ("number", "to_all", "is_at_work", "code"),
    [
        pytest.param(signal.SIGTERM, True, True, 143, id="SIGTERM to all of it"),
        pytest.param(signal.SIGTERM, False, False, 143, id="SIGTERM to its Python while Spark starts"),
        pytest.param(signal.SIGINT, True, True, 130, id="Ctrl-C"),
        pytest.param(signal.SIGINT, True, False, 130, id="Ctrl-C while Spark starts"),
    ],
)
def test_a_stopped_job_prints_one_sentence_and_leaves_nothing(
    number: signal.Signals, to_all: bool, is_at_work: bool, code: int, words: list[str], tmp_path: Path
) -> None:
    with contextlib.closing(Running(tmp_path, *words)) as job:
        (job.await_steps if is_at_work else job.await_jvm)()
        sentence = f"archive: stopped by {'Ctrl-C' if number == signal.SIGINT else number.name}\n"
        assert job.stop(number, to_all=to_all) == (code, sentence)
        assert not list(job.scratch.iterdir()), "nothing is left on the disk"


def test_a_continuous_archive_ends_normally_when_its_jvm_is_stopped_too(words: list[str], tmp_path: Path) -> None:
    with contextlib.closing(Running(tmp_path, *words, "--continuous")) as job:
        job.await_steps()
        assert job.stop(signal.SIGTERM, to_all=True) == (0, "")
        assert not list(job.scratch.iterdir())


def test_a_killed_jvm_is_reported_in_one_sentence(words: list[str], tmp_path: Path) -> None:
    with contextlib.closing(Running(tmp_path, *words)) as job:
        job.await_steps()
        job.kill_jvm()
        code, stderr = job.ended()
        assert code == 1
        assert stderr.startswith("barnabas: Spark's JVM ended, killed or out of memory: run the job again.")
        assert stderr.count("\n") == 1
        assert [path.name for path in job.scratch.iterdir()] == [f"barnabas-archive-spark-{os.getuid()}.log"]


def test_a_jvm_killed_while_it_returns_rows_fails_the_job(words: list[str], tmp_path: Path) -> None:
    again = [*words[:5], "--to", f"{words[4]}-again"]
    with contextlib.closing(Running(tmp_path, "replay", *again[1:], program=("-c", CUT))) as job:
        code, stderr = job.ended()
        assert code == 1
        assert stderr.startswith("barnabas: Spark's JVM ended")
        assert stderr.count("\n") == 1, "no other output"
