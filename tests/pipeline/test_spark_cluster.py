"""Jobs on a standalone Spark cluster with killed processes: a sample of `make kill-pipeline ARGS=--cluster`."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from barnabas import Broker
from tests.pipeline.killing.archives import DecodedArchive
from tests.pipeline.killing.job import ROOT
from tests.pipeline.killing.kill_run import KillRun
from tests.pipeline.killing.plain_spark import TIMEOUT_S, answer_of, start
from tests.pipeline.killing.topics import high_watermarks, read_from
from tests.pipeline.killing.warm_driver import WarmDriver
from tests.pipeline.topics import create
from tests.support.seeds import seed_of
from tests.support.spark_cluster import SparkCluster, has_ended
from tests.support.waiting import until

pytestmark = pytest.mark.long

ROWS = 1_600
MASTER = "org.apache.spark.deploy.master.Master"


class Setup(NamedTuple):
    """A broker, a cluster, and a driver on it."""

    broker: Broker
    cluster: SparkCluster
    driver: WarmDriver


@pytest.fixture(scope="module")
def setup(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """Shared by all tests of the file: it takes seconds to start."""
    folder = tmp_path_factory.mktemp("cluster")
    broker = Broker(start_timeout_s=TIMEOUT_S)
    with broker, SparkCluster(folder) as cluster, WarmDriver(cluster.submit_words) as driver:
        yield Setup(broker, cluster, driver)


def test_workers_have_no_module_of_the_pipeline(setup: Setup) -> None:
    names = ("barnabas", "confluent_kafka", "kafka", "click", "numpy", "pyarrow")
    assert answer_of(start(setup.driver.environment, "imports", "pyspark", *names)) == [["pyspark"], ["pyspark"]]


def test_sparks_own_sink_loses_nothing_and_may_send_twice(setup: Setup, tmp_path: Path) -> None:
    """Executors are killed while they send; Spark retries their tasks."""
    topic = f"plain-{secrets.token_hex(3)}"
    brokers = create(setup.broker.bootstrap, topic, 1)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = start(setup.driver.environment, "sink", setup.broker.bootstrap, topic, str(ROWS), str(gate))
    until(lambda: process.poll() is not None or high_watermarks(brokers, topic, 1), "some have arrived", TIMEOUT_S)
    executors = setup.cluster.executors()
    assert executors, "executors are sending"
    for executor in executors:
        executor.kill()
    with open(os.open(gate, os.O_RDWR), "wb"):
        assert answer_of(process) == ROWS
    found = Counter(int(record.value or b"") for _, record in read_from(setup.broker.bootstrap, topic, {0: 0}))
    assert found.keys() == set(range(ROWS))
    assert found.total() > ROWS, "a task that was begun again has sent again"


def test_an_archive_and_its_dead_letters_hold_every_record_once_after_kills(setup: Setup, tmp_path: Path) -> None:
    seed = seed_of()
    print(f"seed {seed}")
    with KillRun(DecodedArchive, tmp_path / "life", setup.broker, seed, setup.cluster, setup.driver) as kill_run:
        kill_run.run_job(("executor", "python"), trigger="begun", portions=2)
        kill_run.run_job(("broker",), trigger="begun")
        kill_run.finish()
        assert [kill_run.kills[victim] for victim in ("executor", "python", "broker")] == [1, 1, 1]


def test_a_cluster_ends_with_its_parent_process(tmp_path: Path) -> None:
    begin = "import sys; from pathlib import Path; from tests.support.spark_cluster import SparkCluster as Cluster\n"
    hold = "with Cluster(Path(sys.argv[1]), workers=0): print('there', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", begin + hold, str(tmp_path / "cluster")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"there\n"
        [master] = psutil.Process(starter.pid).children()
        assert MASTER in master.cmdline()
        starter.kill()
    try:
        until(lambda: has_ended(master), "the master has ended", TIMEOUT_S)
    finally:
        if not has_ended(master):
            master.kill()
