"""Starts one Spark session, on this machine or on a cluster; raises one sentence if something is missing.

RULES    1. One session per process: it costs seconds and 1 GiB.
         2. Nothing is written to the working directory: scratch files and the JVM's log go where the caller says.
         3. Local workers run the driver's Python, not the first one on the path.
         4. The time zone is UTC.
         5. The JVM ends with this process, also when both received the same signal.
         6. On a cluster (`--master spark://...`) the workers run their own Python of the same version, or the one in
            PYSPARK_PYTHON. The other code that they need is sent to them (`py_files.py`).
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
from socketserver import BaseServer
from typing import Any

from py4j.protocol import Py4JError
from pyspark.accumulators import AccumulatorServer
from pyspark.sql import SparkSession

from barnabas.client.client_settings import parse_pairs
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.port_check import check_reachable
from barnabas.pipeline.settings import setting
from barnabas.pipeline.spark.jars import find_connector
from barnabas.pipeline.spark.py_files import is_local_master

OLDEST_JAVA = 17
STANDALONE = "spark://"
MASTER_WAIT_S = 20.0
ADVICE = "install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless) or set JAVA_HOME"


def check_java() -> None:
    """Raises JobError if the Java that Spark would use is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the path"
        raise JobError(f"Spark needs Java, which is not {where}: {ADVICE}.")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', output.stderr + output.stdout)
    if match is None:
        raise JobError(f"Spark needs Java, and {java} prints no version: {ADVICE}.")
    version = int(match[1])
    if version < OLDEST_JAVA:
        raise JobError(f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is Java {version}: {ADVICE}.")


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Settings of the Spark session."""

    master: str = setting("The Spark master: local[N], spark://HOST:PORT, yarn, k8s://...", "local[*]", metavar="URL")
    spark: tuple[str, ...] = setting("A Spark setting; may be repeated.", (), metavar="NAME=VALUE")
    metrics: Path | None = setting("A file for the job's progress, in Prometheus' text format.", None, metavar="FILE")
    driver_memory: str = setting("The memory of Spark's driver; on local[N] it does all the work.", "1g")


def start_session(
    name: str,
    scratch: Path,
    log_path: Path,
    *,
    cores: int = 2,
    session_settings: SessionSettings | None = None,
    formats: Sequence[str] = (),
) -> tuple[SparkSession, str]:
    """Starts a session with the Kafka connector and the jars of these formats.

    Returns the session and the connector's source in words. The JVM's log goes to `log_path`. Raises JobError.
    """
    check_java()
    session_settings = session_settings or SessionSettings(master=f"local[{cores}]")
    if session_settings.master.startswith(STANDALONE):
        check_reachable("Spark master", session_settings.master, MASTER_WAIT_S)  # Spark itself would retry for a minute
    connector = find_connector(formats)
    is_local = is_local_master(session_settings.master)
    log4j = Path(__file__).with_name("log4j2.properties")
    settings = {
        **({"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"} if is_local else {}),
        "spark.driver.memory": session_settings.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j} -Dderby.system.home={scratch}",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.sql.shuffle.partitions": str(cores)} if session_settings.master == f"local[{cores}]" else {}),
        **connector.settings,
        **parse_pairs("spark", session_settings.spark),
    }
    builder = SparkSession.builder.master(session_settings.master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Spark creates a folder `artifacts` in the working directory.
    with _stderr_to(log_path), _python_environment(is_local=is_local), contextlib.chdir(scratch):
        spark = builder.getOrCreate()
    atexit.register(_end_jvm, spark)
    return spark, connector.source


def stop_session(spark: SparkSession) -> None:
    """Stops Spark; does nothing if the JVM is gone."""
    with warnings.catch_warnings(), contextlib.suppress(Py4JError, ConnectionError):
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()


def ignore_closed_accumulators() -> None:
    """Lets PySpark's accumulator connection end with the JVM without a traceback."""
    AccumulatorServer.handle_error = _on_accumulator_error  # type: ignore[assignment, method-assign]


def _on_accumulator_error(server: BaseServer, request: Any, address: Any) -> None:
    if not isinstance(sys.exception(), EOFError | ConnectionError):
        BaseServer.handle_error(server, request, address)


def _end_jvm(spark: SparkSession) -> None:
    """Ends the JVM by closing its standard input, unless `spark-submit` started it."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - there is no public access to the process
    if gateway.proc is not None:
        ignore_closed_accumulators()
        gateway.proc.stdin.close()
        gateway.proc.wait()


@contextlib.contextmanager
def _python_environment(*, is_local: bool) -> Iterator[None]:
    """Sets the Python and the address that Spark uses, only while the session starts."""
    same_version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    environment = {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable if is_local else os.environ.get("PYSPARK_PYTHON", same_version),
        **({"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")} if is_local else {}),
    }
    saved = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _stderr_to(log_path: Path) -> Iterator[None]:
    """Redirects the standard error of this process and its children to a file."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    saved = os.dup(2)
    with log_path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
