"""A driver's JVM that outlives its Python: it holds the Spark context, and one job after another comes to it.

RULES    1. A job starts in two seconds, so that many can be killed.
         2. What a killed job had Spark do goes on: the next one has a ghost beside it that writes, commits and sends, for
            longer than any JVM that has lost its Python would.
         3. What workers need of us is sent to them once, for all jobs: Spark takes a file from one path only.
NOT HERE Drivers that are killed whole (`job.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.pipeline.killing.job import QUICK_JVM, ROOT
from tests.support.waiting import until

START_LIMIT_S = 180.0
PORT = "PYSPARK_GATEWAY_PORT"


class WarmDriver:
    """A Python that starts Spark with these words of a job's command line and these formats' jars, and keeps it."""

    def __init__(self, words: Sequence[str], formats: Sequence[str] = ()) -> None:
        self._words = [",".join(formats), *words]
        self._temporary = tempfile.TemporaryDirectory(prefix="warm-driver-")
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        door = Path(self._temporary.name) / "door.json"
        with (Path(self._temporary.name) / "said").open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.killing.warm", str(door), *self._words],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                cwd=ROOT,
                env={**os.environ, **QUICK_JVM},
                start_new_session=True,
            )
        until(lambda: door.exists() or self._process.poll() is not None, "the driver is warm", START_LIMIT_S, 0.1)
        self.environment = json.loads(door.read_text())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._temporary.cleanup()


def hold(door: Path, formats: Sequence[str], words: Sequence[str]) -> None:
    """Start Spark, say how to come in, and wait for the end of standard input."""
    from barnabas.pipeline.session import SessionSettings, start_session
    from barnabas.pipeline.spark.py_files import ship

    given = dict(zip(words[::2], words[1::2], strict=True))
    more = tuple(value for name, value in zip(words[::2], words[1::2], strict=True) if name == "--spark")
    wishes = SessionSettings(master=given["--master"], spark=more, driver_memory=given.get("--driver-memory", "1g"))
    spark, _ = start_session("warm", door.parent, door.parent / "spark.log", wishes=wishes, formats=formats)
    ship(spark)
    gateway: Any = spark.sparkContext._gateway
    said = {
        PORT: str(gateway.gateway_parameters.port),
        "PYSPARK_GATEWAY_SECRET": str(gateway.gateway_parameters.auth_token),
        "PYSPARK_PYTHON": spark.sparkContext.pythonExec,
    }
    beside = door.with_suffix(".new")
    beside.write_text(json.dumps(said))
    beside.replace(door)
    sys.stdin.read()


def come_in() -> None:
    """Have a job's session be the one that is held."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    import barnabas.pipeline.session as sessions
    from barnabas.pipeline.kafka import sender

    def held(*_words: Any, **_wishes: Any) -> tuple[Any, str]:
        gateway = launch_gateway()
        SparkContext._ensure_initialized(gateway=gateway)
        jvm: Any = gateway.jvm
        context = jvm.JavaSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
        spark = SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf()))
        return SparkSession(spark), "a warm driver's"

    def ship(spark: Any) -> None:
        """It is there since the JVM started; each Python tells its tasks of it."""
        files = spark.sparkContext._jsc.sc().listFiles()
        spark.sparkContext._python_includes += [files.apply(at).rpartition("/")[2] for at in range(files.size())]

    sessions.start_session = held
    sender.ship = ship
    SparkSession.stop = lambda _self: None  # type: ignore[method-assign]


if __name__ == "__main__":
    hold(Path(sys.argv[1]), [name for name in sys.argv[2].split(",") if name], sys.argv[3:])
