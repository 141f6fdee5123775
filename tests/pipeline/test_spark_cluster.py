"""Jobs on a standalone Spark cluster whose processes are killed: a sample of `make kill-pipeline ARGS=--cluster`."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from barnabas import Broker
from barnabas.pipeline.session import NoJava, java_version
from tests.pipeline.killing.archives import Archive
from tests.pipeline.killing.job import ROOT
from tests.pipeline.killing.life import Life
from tests.pipeline.killing.topics import brokers_of, high_watermarks, make, read_on
from tests.pipeline.killing.warm import WarmDriver
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import until

pytestmark = pytest.mark.turn(5)

ROWS = 1_600


class Place:
    """A broker, a cluster, and a driver on it."""

    def __init__(self, broker: Broker, cluster: SparkCluster, driver: WarmDriver) -> None:
        self.broker = broker
        self.cluster = cluster
        self.driver = driver

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Something of plain Spark, on the driver."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.killing.plain_spark", *words],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **self.driver.environment},
        )

    def answer(self, process: subprocess.Popen[str]) -> Any:
        """What it comes to."""
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        return json.loads(said)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """For all tests of the file: it takes seconds to start."""
    try:
        java_version()
    except NoJava as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("cluster")
    with Broker() as broker, SparkCluster(folder) as cluster, WarmDriver(cluster.submit_words) as driver:
        yield Place(broker, cluster, driver)


def test_workers_have_nothing_of_the_pipeline(place: Place) -> None:
    """spark_cluster.py rule 1: what the next tests do, they do with what came with the job."""
    names = ("barnabas", "confluent_kafka", "kafka", "click", "numpy", "pyarrow")
    assert place.answer(place.start("imports", "pyspark", *names)) == [["pyspark"], ["pyspark"]]


def test_sparks_own_sink_loses_nothing_and_may_send_twice(place: Place) -> None:
    """docs/pipeline.md, "On a Spark cluster": an executor is killed while it sends, and its task is begun again."""
    topic = f"plain-{secrets.token_hex(3)}"
    make(place.broker.bootstrap, topic, 1)
    brokers = brokers_of(place.broker.bootstrap)
    process = place.start("sink", place.broker.bootstrap, topic, str(ROWS))
    until(lambda: high_watermarks(brokers, topic, 1) > ROWS // 20, "some have arrived", 120)
    executors = place.cluster.executors()
    assert executors, "somebody sends"
    for executor in executors:
        executor.kill()
    arrived = high_watermarks(brokers, topic, 1)
    assert arrived < ROWS, "they were killed in the middle"
    assert place.answer(process) == ROWS
    found = Counter(record.value for _, record in read_on(place.broker.bootstrap, topic, {0: 0}))
    assert found.keys() == {b"%d" % number for number in range(ROWS)}
    assert found.total() > ROWS, "the task that was begun again has sent again"


def test_an_archive_holds_every_record_once_whoever_is_killed(place: Place, tmp_path: Path) -> None:
    """archives.py rules 1 and 2: an executor, a worker with all that it started, and the driver's Python."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    with Life(Archive, tmp_path / "life", place.broker, seed, place.cluster, place.driver) as life:
        life.turn(("executor", "machine", "python"))
        life.finish()
