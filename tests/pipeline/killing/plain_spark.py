"""Spark without our jobs: the modules that workers can import, Spark's Kafka sink, a copy of a table.

python -m tests.pipeline.killing.plain_spark imports NAME...            prints those that workers can import, as JSON
python -m tests.pipeline.killing.plain_spark sink BOOTSTRAP TOPIC ROWS GATE
python -m tests.pipeline.killing.plain_spark copy FORMAT TABLE TARGET   copies a Delta or Iceberg table to Parquet

Runs on a warm driver; `copy` may start its own Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.pipeline.killing.job import QUICK_JVM, ROOT
from tests.pipeline.killing.warm_driver import PORT, attach

TIMEOUT_S = 300.0
VALUE_BYTES = 1_000
"""A quarter of the rows exceeds the buffers between a worker's Python and its JVM."""


def start(environment: Mapping[str, str], *words: str) -> subprocess.Popen[str]:
    """Starts this program."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.killing.plain_spark", *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **QUICK_JVM, **environment},
    )


def answer_of(process: subprocess.Popen[str]) -> Any:
    """Waits for the program's end and returns what it printed."""
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    return json.loads(output)


def imports(spark: Any, *names: str) -> list[list[str]]:
    """Returns for each of two tasks the modules that it could import."""

    def task(_rows: Any) -> Iterator[list[str]]:
        from importlib.util import find_spec

        yield [name for name in names if find_spec(name) is not None]

    found: list[list[str]] = spark.sparkContext.parallelize(range(2), 2).mapPartitions(task).collect()
    return found


def sink(spark: Any, bootstrap: str, topic: str, rows: str, gate: str) -> int:
    """Sends rows with Spark's sink; half-way a task waits until the named pipe `gate` is opened for writing."""
    from pyspark.sql.functions import udf

    of_a_task = int(rows) // 2

    @udf("string")
    def value(number: int) -> str:
        if number % of_a_task == of_a_task // 2:
            open(gate).close()
        return f"{number} ".ljust(VALUE_BYTES)

    values = spark.range(0, int(rows), 1, 2).select(value("id").alias("value"))
    values.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    return int(rows)


def copy(spark: Any, kind: str, table: str, target: str) -> str:
    from barnabas.pipeline.jobs.data_files import isolated_session

    isolated_session(spark).read.format(kind).load(table).write.parquet(target)
    return target


if __name__ == "__main__":
    _, what, *words = sys.argv
    if PORT in os.environ:
        attach()
    from barnabas.pipeline import session

    with tempfile.TemporaryDirectory() as scratch:
        formats = words[:1] if what == "copy" else ()
        started, _ = session.start_session("plain", Path(scratch), Path(scratch) / "spark.log", formats=formats)
        jobs: dict[str, Callable[..., Any]] = {"imports": imports, "sink": sink, "copy": copy}
        answer = jobs[what](started, *words)
        started.stop()
    print(json.dumps(answer))
