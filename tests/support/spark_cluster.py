"""A standalone Spark cluster: a master and workers, each a process started by pyspark's `spark-class`.

RULES    1. Workers run a bare Python without Barnabas, a Kafka client or any package, and without our environment. A job
            must send what it needs.
         2. All processes of a worker (executors, their Python) are in its process group. Master and workers end with the
            process that started them, also when that is killed (`child_process.py`).
         3. Heaps are small: two workers and their executors fit beside a driver.
NOT HERE The driver (`submit_words` has its options).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from barnabas.cluster import free_ports
from tests.support.child_process import mortal
from tests.support.waiting import until

START_LIMIT_S = 90.0
DAEMON_MEMORY = "256m"
EXECUTOR_MEMORY = "512m"
"""Spark's minimum is 450 MiB."""
WORKER_MEMORY = "1g"
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkCluster:
    """A master and workers with one core each, numbered from 0."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._port, self._page, *pages = free_ports(2 + workers)
        self._pages = pages
        self._url = f"spark://127.0.0.1:{self._port}"
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._left: list[psutil.Process] = []
        """What workers had started that were killed alone."""
        self._bare_python = folder / "python" / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def submit_words(self) -> list[str]:
        """The options that make our commands use this cluster: one executor with one core per worker."""
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.sql.shuffle.partitions": "4",
        }
        words = ["--master", self._url, "--driver-memory", "512m"]
        return words + [word for pair in settings.items() for word in ("--spark", "=".join(pair))]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for log in sorted(self._folder.glob("*.log")):
                error.add_note(f"---- {log.name}\n{log.read_text(errors='replace')[-2000:]}")
        self.close()

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        make = [sys.executable, "-m", "venv", "--without-pip", str(self._folder / "python")]
        subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
        where = ("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page))
        self._master = self._start("master", "org.apache.spark.deploy.master.Master", *where)
        until(lambda: self._status().get("status") == "ALIVE", "the master is alive", START_LIMIT_S, 0.1)
        for number in range(len(self._pages)):
            self.start_worker(number)
        self.await_workers()

    def start_worker(self, number: int) -> None:
        """Starts a worker; `await_workers` must follow."""
        assert number not in self._workers, f"worker {number} runs"
        has = ("--cores", "1", "--memory", WORKER_MEMORY, "--work-dir", str(self._folder / f"work-{number}"))
        where = ("--host", "127.0.0.1", "--webui-port", str(self._pages[number]))
        self._workers[number] = self._start(
            f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *where, *has, self._url
        )

    def await_workers(self) -> None:
        """Waits until the master lists all running workers."""
        until(lambda: self._alive() == len(self._workers), "the workers are there", START_LIMIT_S, 0.1)

    def executors(self) -> list[psutil.Process]:
        """Returns the workers' executor processes."""
        return [
            child
            for worker in self._workers.values()
            for child in psutil.Process(worker.pid).children()
            if EXECUTOR in _words(child)
        ]

    def numbers(self) -> list[int]:
        return sorted(self._workers)

    def kill_worker(self, number: int, *, whole: bool = False) -> None:
        """Kills a worker alone, or with all its processes.

        Executors end when they notice the lost worker, except one that is just starting.
        """
        worker = self._workers.pop(number)
        others = psutil.Process(worker.pid).children(recursive=True)
        if whole:
            os.killpg(worker.pid, signal.SIGKILL)
        else:
            worker.kill()
            self._left += others
        worker.wait()
        if whole:
            _await_end(others)

    def close(self) -> None:
        for process in self._left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _await_end(self._left)
        for process in (*self._workers.values(), *([self._master] if self._master else [])):
            others = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _await_end(others)
        self._workers.clear()
        self._master = None

    def _start(self, name: str, kind: str, *words: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(str(pyspark.__file__)).parent
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                mortal([str(home / "bin" / "spark-class"), kind, *words]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment(home),
                start_new_session=True,
            )

    def _environment(self, home: Path) -> Mapping[str, str]:
        """Java, Spark, and the bare Python first on the path (rule 1)."""
        environment = {name: os.environ[name] for name in ("JAVA_HOME", "HOME", "LANG") if name in os.environ}
        return {
            **environment,
            "PATH": f"{self._bare_python.parent}{os.pathsep}{os.environ['PATH']}",
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / "scratch"),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        }

    def _alive(self) -> int:
        return sum(worker["state"] == "ALIVE" for worker in self._status().get("workers", ()))

    def _status(self) -> dict[str, Any]:
        """The status page of the master; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as response:
                page: dict[str, Any] = json.load(response)
                return page
        except (OSError, ValueError):
            return {}


def _await_end(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        until(partial(has_ended, process), f"process {process.pid} has ended", START_LIMIT_S)


def has_ended(process: psutil.Process) -> bool:
    """Whether the process is gone or a zombie."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _words(process: psutil.Process) -> list[str]:
    """The command line; empty if the process is gone."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []
