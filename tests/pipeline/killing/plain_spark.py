"""Spark without a job of ours: what a worker can import, and what Spark's own Kafka sink does when it is killed.

python -m tests.pipeline.killing.plain_spark imports NAME...            on a warm driver; says which of them, as JSON
python -m tests.pipeline.killing.plain_spark sink BOOTSTRAP TOPIC ROWS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from tests.pipeline.killing.warm import come_in

PAUSE_MS = 5
"""Between two rows of a task: so it is killed in the middle."""


def imports(spark: Any, *names: str) -> list[list[str]]:
    """Of each of two tasks: the modules that it could import."""

    def task(_rows: Any) -> Iterator[list[str]]:
        from importlib.util import find_spec

        yield [name for name in names if find_spec(name) is not None]

    found: list[list[str]] = spark.sparkContext.parallelize(range(2), 2).mapPartitions(task).collect()
    return found


def sink(spark: Any, bootstrap: str, topic: str, rows: str) -> int:
    """So many rows to the topic, as Spark's documentation has it."""
    slow = f"concat(id, substring(reflect('java.lang.Thread', 'sleep', {PAUSE_MS}L), 9))"
    values = spark.range(0, int(rows), 1, 2).selectExpr(f"{slow} as value")
    values.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    return int(rows)


if __name__ == "__main__":
    _, what, *words = sys.argv
    come_in()
    from barnabas.pipeline import session

    held: Any = session.start_session
    answer = {"imports": imports, "sink": sink}[what](held()[0], *words)
    print(json.dumps(answer))
