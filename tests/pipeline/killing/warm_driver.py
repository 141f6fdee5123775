"""A driver JVM that outlives its Python: it keeps the Spark context, and one job after another attaches to it.

RULES    1. A job starts in two seconds, so that many can be killed.
         2. Spark continues the work of a killed job: it still writes, commits and sends beside the next job, longer than a JVM
            would that has lost its Python.
         3. Our code is sent to the workers once, for all jobs, since Spark accepts a file from one path only.
NOT HERE Drivers that are killed completely (`job.py`).
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
from typing import Any, Self
from unittest import mock

from tests.pipeline.killing.job import QUICK_JVM, ROOT
from tests.support.waiting import until

START_TIMEOUT_S = 180.0
PORT = "PYSPARK_GATEWAY_PORT"


class WarmDriver:
    """A Python process that starts Spark with these options and formats and keeps it."""

    def __init__(self, words: Sequence[str], formats: Sequence[str] = ()) -> None:
        self._words = [",".join(formats), *words]
        self._temporary = tempfile.TemporaryDirectory(prefix="warm-driver-")
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        address_file = Path(self._temporary.name) / "door.json"
        with (Path(self._temporary.name) / "output").open("wb") as address:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.killing.warm_driver", str(address_file), *self._words],
                stdin=subprocess.PIPE,
                stdout=address,
                stderr=address,
                cwd=ROOT,
                env={**os.environ, **QUICK_JVM},
                start_new_session=True,
            )
        until(
            lambda: address_file.exists() or self._process.poll() is not None,
            "the driver is warm",
            START_TIMEOUT_S,
            0.1,
        )
        self.environment = json.loads(address_file.read_text())
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._temporary.cleanup()


def serve_session(address_file: Path, formats: Sequence[str], words: Sequence[str]) -> None:
    """Starts Spark, writes the gateway's address, and waits for the end of standard input."""
    from barnabas.pipeline.session import SessionSettings, start_session
    from barnabas.pipeline.spark.py_files import ship

    given = dict(zip(words[::2], words[1::2], strict=True))
    more = tuple(value for name, value in zip(words[::2], words[1::2], strict=True) if name == "--spark")
    settings = SessionSettings(master=given["--master"], spark=more, driver_memory=given.get("--driver-memory", "1g"))
    folder = address_file.parent
    spark, _ = start_session("warm", folder, folder / "spark.log", session_settings=settings, formats=formats)
    ship(spark)
    gateway: Any = spark.sparkContext._gateway
    address = {
        PORT: str(gateway.gateway_parameters.port),
        "PYSPARK_GATEWAY_SECRET": str(gateway.gateway_parameters.auth_token),
        "PYSPARK_PYTHON": spark.sparkContext.pythonExec,
    }
    beside = address_file.with_suffix(".new")
    beside.write_text(json.dumps(address))
    beside.replace(address_file)
    sys.stdin.read()


def attach() -> None:
    """Replaces a job's session by the driver's."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    import barnabas.pipeline.session as sessions
    from barnabas.pipeline.kafka import sender

    def attached_session(*_words: Any, **_wishes: Any) -> tuple[Any, str]:
        gateway: Any = launch_gateway()
        SparkContext._ensure_initialized(gateway=gateway)
        jvm: Any = gateway.jvm
        context = jvm.JavaSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
        spark = SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf()))
        return SparkSession(spark), "a warm driver's"

    def ship(spark: Any) -> None:
        """The package is on the workers since the JVM started; each Python only adds it to its tasks' path."""
        files = spark.sparkContext._jsc.sc().listFiles()
        spark.sparkContext._python_includes += [files.apply(at).rpartition("/")[2] for at in range(files.size())]

    sessions.start_session = attached_session
    mock.patch.object(sender, "ship", ship).start()
    mock.patch.object(SparkSession, "stop").start()


if __name__ == "__main__":
    serve_session(Path(sys.argv[1]), [name for name in sys.argv[2].split(",") if name], sys.argv[3:])
