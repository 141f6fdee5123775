"""A job that is told to stop: one sentence, the exit code that shells know, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline.session import NoJava, java_version
from barnabas.pipeline.signals import Stopped, Stopping
from tests.pipeline.killing.job import QUICK_JVM, ROOT
from tests.pipeline.killing.topics import Record, make, send
from tests.support.child_process import mortal
from tests.support.waiting import until

pytestmark = pytest.mark.turn(3)

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
"""A program whose JVM dies when the first rows are on their way to Python."""
WISHES = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def _dispositions_stay() -> Iterator[None]:
    before = {wish: signal.getsignal(wish) for wish in WISHES}
    yield
    for wish, handler in before.items():
        signal.signal(wish, handler)


@pytest.mark.usefixtures("_dispositions_stay")
@pytest.mark.parametrize(
    ("wish", "words", "code"), [(signal.SIGINT, "stopped by Ctrl-C", 130), (signal.SIGTERM, "stopped by SIGTERM", 143)]
)
def test_what_fails_after_a_wish_is_not_told(wish: signal.Signals, words: str, code: int) -> None:
    """stopping.py rules 1 to 3."""

    def job() -> None:
        with Stopping():
            try:
                os.kill(os.getpid(), wish)
            finally:
                raise ConnectionError("the JVM has heard it, too")

    with pytest.raises(Stopped) as told:
        job()
    assert (str(told.value), told.value.exit_code) == (words, code)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == (signal.SIG_DFL, signal.SIG_IGN)


@pytest.mark.usefixtures("_dispositions_stay")
def test_a_job_that_goes_on_until_it_is_stopped_ends_well() -> None:
    """stopping.py rule 1."""
    with Stopping():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            ended = "well"
    assert ended == "well"


def test_nobody_wished_anything() -> None:
    """What fails is told as it is, and signals go where they went before."""
    before = [signal.getsignal(wish) for wish in WISHES]

    def job() -> None:
        with Stopping():
            assert [signal.getsignal(wish) for wish in WISHES] != before
            raise ConnectionError("the JVM is gone")

    with pytest.raises(ConnectionError, match="the JVM is gone"):
        job()
    assert [signal.getsignal(wish) for wish in WISHES] == before


class Running:
    """An archive that goes on until it is stopped, in a process group of its own with its JVM."""

    def __init__(self, folder: Path, *words: str, program: tuple[str, ...] = ("-m", "barnabas")) -> None:
        self._said, self._complained = folder / "out", folder / "err"
        (folder / "scratch").mkdir()
        self.scratch = folder / "scratch"
        with self._said.open("wb") as out, self._complained.open("wb") as errors:
            self._process = subprocess.Popen(
                mortal([sys.executable, *program, "pipeline", *words, "--json", "--master", "local[1]"]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **QUICK_JVM, "TMPDIR": str(self.scratch)},
                start_new_session=True,
            )

    def await_jvm(self) -> None:
        """Wait until Spark starts."""
        until(lambda: self._process.poll() is not None or self._others(), "Spark starts", LIMIT_S)

    def await_steps(self) -> None:
        """Wait until the job has done something."""
        until(lambda: self._process.poll() is not None or self._said.stat().st_size, "the job works", LIMIT_S)

    def wish(self, wish: signal.Signals, *, to_all: bool) -> tuple[int, list[str]]:
        """Have it stop; the exit code and what it complained of, once nothing is left of it."""
        assert self._process.poll() is None, self._complained.read_text()
        (os.killpg if to_all else os.kill)(self._process.pid, wish)
        code = self._process.wait(LIMIT_S)
        until(lambda: not self._others(), "all of it has ended", LIMIT_S)
        return code, self._complained.read_text().splitlines()

    def kill_jvm(self) -> tuple[int, str]:
        """SIGKILL for all but its Python; the exit code and what it complained of."""
        for pid in self._others():
            os.kill(pid, signal.SIGKILL)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """The exit code and what it complained of, once nothing is left of it."""
        code = self._process.wait(LIMIT_S)
        until(lambda: not self._others(), "all of it has ended", LIMIT_S)
        return code, self._complained.read_text()

    def kill(self) -> None:
        """Whatever is left."""
        if self._others():
            os.killpg(self._process.pid, signal.SIGKILL)

    def _others(self) -> list[int]:
        """Who is in its process group beside itself."""
        return [pid for pid in psutil.pids() if pid != self._process.pid and _group_of(pid) == self._process.pid]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


@pytest.fixture
def words(kafka_broker: Any, tmp_path: Path) -> list[str]:
    """An archive in small rounds."""
    try:
        java_version()
    except NoJava as missing:
        pytest.skip(str(missing))
    topic = f"stopped-{tmp_path.name}"
    make(kafka_broker.bootstrap, topic, 1)
    send(kafka_broker.bootstrap, topic, ((0, Record(b"k", b"v", 1_767_225_600_000 + ms)) for ms in range(2_000)))
    where = ["--bootstrap", kafka_broker.bootstrap, "--topic", topic, "--into", str(tmp_path / "archive")]
    return ["archive", *where, "--max-offsets-per-trigger", "10"]


@pytest.mark.parametrize(
    ("wish", "to_all", "is_at_work", "code"),
    [
        pytest.param(signal.SIGTERM, True, True, 143, id="SIGTERM to all of it"),
        pytest.param(signal.SIGTERM, False, False, 143, id="SIGTERM to its Python while Spark starts"),
        pytest.param(signal.SIGINT, True, True, 130, id="Ctrl-C"),
        pytest.param(signal.SIGINT, True, False, 130, id="Ctrl-C while Spark starts"),
    ],
)
def test_a_job_stops_with_one_sentence_and_leaves_nothing(
    wish: signal.Signals, to_all: bool, is_at_work: bool, code: int, words: list[str], tmp_path: Path
) -> None:
    """stopping.py rules 1 and 2; session.py rule 5; running.py rules 3 and 4."""
    job = Running(tmp_path, *words)
    try:
        (job.await_steps if is_at_work else job.await_jvm)()
        sentence = f"archive: stopped by {'Ctrl-C' if wish == signal.SIGINT else wish.name}"
        assert job.wish(wish, to_all=to_all) == (code, [sentence])
        assert not list(job.scratch.iterdir()), "nothing is left on the disk"
    finally:
        job.kill()


def test_an_archive_that_goes_on_ends_well_when_all_of_it_is_told_to_stop(words: list[str], tmp_path: Path) -> None:
    """stopping.py rule 1: the JVM has heard it too, and Spark cannot be told any more."""
    job = Running(tmp_path, *words, "--continuous")
    try:
        job.await_steps()
        assert job.wish(signal.SIGTERM, to_all=True) == (0, [])
        assert not list(job.scratch.iterdir())
    finally:
        job.kill()


def test_a_job_whose_jvm_is_killed_says_so_in_one_sentence(words: list[str], tmp_path: Path) -> None:
    """trouble.py rule 3; running.py rule 1: py4j has a trace of its own for each call that is cut, or comes too late."""
    job = Running(tmp_path, *words)
    try:
        job.await_steps()
        code, complaint = job.kill_jvm()
        assert code == 1
        assert complaint.startswith("Error: Spark's JVM went away, killed or out of memory: run the job again.")
        assert complaint.count("\n") == 1
        assert [kept.name for kept in job.scratch.iterdir()] == [f"barnabas-archive-spark-{os.getuid()}.log"]
    finally:
        job.kill()


def test_a_job_whose_jvm_is_killed_while_it_hands_out_rows_does_not_take_them_for_all(
    words: list[str], tmp_path: Path
) -> None:
    """rows.py rule 1, running.py rule 4: a replay said that it had sent nothing, and that all was well."""
    again = [*words[:5], "--to", f"{words[4]}-again"]
    job = Running(tmp_path, "replay", *again[1:], program=("-c", CUT))
    try:
        code, complaint = job.ended()
        assert code == 1
        assert complaint.startswith("Error: Spark's JVM went away")
        assert complaint.count("\n") == 1, "nobody else complains"
    finally:
        job.kill()
