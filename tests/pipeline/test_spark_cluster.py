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

import psutil
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from barnabas import Broker
from barnabas.pipeline.session import NoJava, java_version
from tests.pipeline.killing.archives import Decoded
from tests.pipeline.killing.job import ROOT
from tests.pipeline.killing.life import Life
from tests.pipeline.killing.topics import brokers_of, high_watermarks, make, read_on
from tests.pipeline.killing.warm import WarmDriver
from tests.support.seeds import seed_of
from tests.support.spark_cluster import SparkCluster, has_ended
from tests.support.waiting import until

pytestmark = pytest.mark.turn(5)

ROWS = 1_600
LIMIT_S = 300.0
MASTER = "org.apache.spark.deploy.master.Master"


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
        said, _ = process.communicate(timeout=LIMIT_S)
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
    broker = Broker(start_timeout_s=LIMIT_S)
    with broker, SparkCluster(folder) as cluster, WarmDriver(cluster.submit_words) as driver:
        yield Place(broker, cluster, driver)


def test_workers_have_nothing_of_the_pipeline(place: Place) -> None:
    """spark_cluster.py rule 1: what the next tests do, they do with what came with the job."""
    names = ("barnabas", "confluent_kafka", "kafka", "click", "numpy", "pyarrow")
    assert place.answer(place.start("imports", "pyspark", *names)) == [["pyspark"], ["pyspark"]]


def test_sparks_own_sink_loses_nothing_and_may_send_twice(place: Place, tmp_path: Path) -> None:
    """docs/pipeline.md, "On a Spark cluster": executors are killed while they send, and their tasks are begun again."""
    topic = f"plain-{secrets.token_hex(3)}"
    make(place.broker.bootstrap, topic, 1)
    brokers = brokers_of(place.broker.bootstrap)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = place.start("sink", place.broker.bootstrap, topic, str(ROWS), str(gate))
    until(lambda: process.poll() is not None or high_watermarks(brokers, topic, 1), "some have arrived", LIMIT_S)
    executors = place.cluster.executors()
    assert executors, "somebody sends"
    for executor in executors:
        executor.kill()
    with open(os.open(gate, os.O_RDWR), "wb"):
        assert place.answer(process) == ROWS
    found = Counter(int(record.value or b"") for _, record in read_on(place.broker.bootstrap, topic, {0: 0}))
    assert found.keys() == set(range(ROWS))
    assert found.total() > ROWS, "a task that was begun again has sent again"


def test_an_archive_and_its_dead_letters_hold_every_record_once_whoever_is_killed(place: Place, tmp_path: Path) -> None:
    """archives.py rules 1 to 3; life.py rule 5: each is killed when a round has begun, and more rounds are to come."""
    seed = seed_of()
    print(f"seed {seed}")
    with Life(Decoded, tmp_path / "life", place.broker, seed, place.cluster, place.driver) as life:
        life.turn(("executor", "python"), moment="begun", portions=2)
        life.turn(("broker",), moment="begun")
        life.finish()
        assert {victim: life.kills[victim] for victim in ("executor", "python", "broker")} == {
            "executor": 1,
            "python": 1,
            "broker": 1,
        }


def test_a_cluster_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    """spark_cluster.py rule 2: a run of tests that is killed leaves no JVM behind."""
    start = "import sys; from pathlib import Path; from tests.support.spark_cluster import SparkCluster as Cluster\n"
    hold = "with Cluster(Path(sys.argv[1]), workers=0): print('there', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", start + hold, str(tmp_path / "cluster")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"there\n"
        [master] = psutil.Process(starter.pid).children()
        assert MASTER in master.cmdline()
        starter.kill()
    try:
        until(lambda: has_ended(master), "the master has ended", LIMIT_S)
    finally:
        if not has_ended(master):
            master.kill()
