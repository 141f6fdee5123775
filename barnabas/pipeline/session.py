"""One Spark session, on this machine or on a cluster, or one sentence that says what is missing.

RULES    1. One session per process: it costs seconds and a gigabyte.
         2. Nothing of it stays in the working directory: scratch files go where the caller says, and so do
            the JVM's own words.
         3. Workers run the Python that runs us, not the first one on the path.
         4. Clocks are UTC.
         5. The JVM has ended when we have, also one that a signal to all of us ended first.
         6. On a cluster (`--master spark://...`) the workers run their own Python of the same version, or what
            PYSPARK_PYTHON names there: what else they need is sent to them (`py_files.py`).
NOT HERE Which jars the connector takes (`jars.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.port_check import NobodyListens, see_that_somebody_listens
from barnabas.pipeline.settings import pairs, setting
from barnabas.pipeline.spark.jars import find_connector
from barnabas.pipeline.spark.py_files import runs_here

OLDEST_JAVA = 17
STANDALONE = "spark://"
MASTER_COMES_S = 20.0
ADVICE = "install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless) or set JAVA_HOME"


class NoJava(Exception):
    """Spark cannot start; the message says what to install."""


def java_version() -> int:
    """The major version of the Java that Spark would use; NoJava when there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the path"
        raise NoJava(f"Spark needs Java and there is none {where}: {ADVICE}.")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if match is None:
        raise NoJava(f"Spark needs Java and {java} does not say its version: {ADVICE}.")
    version = int(match[1])
    if version < OLDEST_JAVA:
        raise NoJava(f"Spark needs Java {OLDEST_JAVA} and {java} is Java {version}: {ADVICE}.")
    return version


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Where Spark runs and what it may take."""

    master: str = setting("Where Spark runs: local[N], spark://HOST:PORT, yarn, k8s://...", "local[*]", metavar="URL")
    spark: tuple[str, ...] = setting("A setting of Spark; may be repeated.", (), metavar="NAME=VALUE")
    metrics: Path | None = setting("A file that says how far the job is, as Prometheus' text.", None, metavar="FILE")
    driver_memory: str = setting("The memory of Spark's driver, which on local[N] does all the work.", "1g")


def start_session(
    name: str,
    scratch: Path,
    log_path: Path,
    *,
    cores: int = 2,
    wishes: SessionSettings | None = None,
    formats: Sequence[str] = (),
) -> tuple[SparkSession, str]:
    """A session with the Kafka connector, and the jars of these formats, and in words where the connector came from.

    What the JVM says goes to `log_path`.
    """
    java_version()
    wishes = wishes or SessionSettings(master=f"local[{cores}]")
    _see_that_a_master_listens(wishes.master)
    connector = find_connector(formats)
    is_local = runs_here(wishes.master)
    log4j = Path(__file__).with_name("log4j2.properties")
    settings = {
        **({"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"} if is_local else {}),
        "spark.driver.memory": wishes.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j} -Dderby.system.home={scratch}",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.sql.shuffle.partitions": str(cores)} if wishes.master == f"local[{cores}]" else {}),
        **connector.settings,
        **pairs("spark", wishes.spark),
    }
    builder = SparkSession.builder.master(wishes.master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Spark makes a folder `artifacts` where it is started.
    with _said_to(log_path), _environment(is_local=is_local), contextlib.chdir(scratch):
        spark = builder.getOrCreate()
    atexit.register(_end_jvm, spark)
    return spark, connector.source


def _see_that_a_master_listens(master: str) -> None:
    """Spark would start, try for a minute, and then fail with what came of it."""
    if not master.startswith(STANDALONE):
        return
    try:
        see_that_somebody_listens(master.removeprefix(STANDALONE), MASTER_COMES_S)
    except NobodyListens as failure:
        raise JobError(f"No Spark master answers at {master}: {failure}.") from failure


def stop_session(spark: SparkSession) -> None:
    """Stop Spark; a JVM that is gone has stopped it already."""
    with warnings.catch_warnings(), contextlib.suppress(Py4JError, ConnectionError):
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()


def _end_jvm(spark: SparkSession) -> None:
    """It lives as long as its standard input; one that `spark-submit` started is not ours."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - nothing else knows the process
    if gateway.proc is not None:
        gateway.proc.stdin.close()
        gateway.proc.wait()


@contextlib.contextmanager
def _environment(*, is_local: bool) -> Iterator[None]:
    """Which Python and which address Spark takes: it looks once, and another session may want another one."""
    any_such = f"python{sys.version_info.major}.{sys.version_info.minor}"
    wanted = {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable if is_local else os.environ.get("PYSPARK_PYTHON", any_such),
        **({"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")} if is_local else {}),
    }
    kept = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _said_to(log_path: Path) -> Iterator[None]:
    """Programs that are started meanwhile have this file as their standard error."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(2)
    with log_path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
