"""Runs a scenario: sends records, starts the job, kills processes, checks the result, and repeats.

RULES    1. On this machine the driver is killed: the whole process group; Python alone (the next run starts beside its JVM);
            its JVM alone, after which the job reports one sentence; or itself before a random step of its commit
            (`kill_at_step.py`). On a warm driver (`warm_driver.py`) Python alone is killed; Spark continues its work beside
            the next run, which may fail with one sentence.
         2. The broker is killed too, alone or before the driver, and restarted. On a cluster also an executor, a worker, or a
            worker with all its processes, at most three per run. The job must survive all of these, except the broker's
            death, after which it may fail with one sentence.
         3. The scenario is checked after every run. The last run is not disturbed, and everything must be complete. Then an
            archive is audited.
         4. Each event is logged; the seed repeats the choices.
         5. A kill counts only if the job was still running.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from barnabas import Broker
from tests.pipeline.killing.job import KILLED, Job
from tests.pipeline.killing.scenario import Scenario, Trigger
from tests.pipeline.killing.warm_driver import WarmDriver
from tests.support.kafka import ApacheKafka
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import until

TIMEOUT_S = 900.0
MAX_STEPS = 60
ANYTIME_S = 15.0
LOCAL = ["--master", "local[2]", "--spark", "spark.sql.shuffle.partitions=2"]
DRIVERS = ("driver", "python", "step")
OTHERS = ("executor", "worker", "machine", "broker")


class KillRun:
    """One run of a scenario; on failure its folder is kept."""

    def __init__(
        self,
        kind: Callable[[str, Path, random.Random, Mapping[str, str]], Scenario],
        folder: Path,
        broker: Broker | ApacheKafka,
        seed: int,
        cluster: SparkCluster | None = None,
        warm_driver: WarmDriver | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self._rng = random.Random(seed)
        self._environment = warm_driver.environment if warm_driver else {}
        self._scenario = kind(broker.bootstrap, folder, self._rng, self._environment)
        self._folder = folder
        self._broker = broker
        self._cluster = cluster
        self._warm_driver = warm_driver
        self._has_orphan = False
        self._orphans: list[Job] = []
        self.kills: Counter[str] = Counter()
        self.runs = 0
        options = {"seed": seed, "cluster": cluster is not None, "warm": warm_driver is not None}
        self._log({"scenario": self._scenario.name, **options})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_orphans()
        if error is None:
            shutil.rmtree(self._folder)
        else:
            sys.stderr.write(f"The history and the logs are in {self._folder}.\n")

    @property
    def records(self) -> int:
        return self._scenario.count

    def run_with_kills(self, kills: int, ends: float) -> None:
        """Runs the job until it has had the given number of kills, or until this time."""
        while self.kills.total() < kills and not self._scenario.is_done and time.monotonic() < ends:
            self.run_job()

    def run_by_steps(self, first: int, ends: float) -> None:
        """Kills each run one step of its commit later than the previous one, until a run has no step left."""
        step = first
        while self.kills["step"] == step - first and time.monotonic() < ends:
            self.run_job((), step)
            step += 1
        print(f"{self._scenario.name}: died before the steps {first} to {first + self.kills['step'] - 1}", flush=True)

    def run_job(
        self, victims: tuple[str, ...] | None = None, kill_at: int = 0, trigger: str | None = None, portions: int = 1
    ) -> None:
        """Sends portions of records and runs the job once; kills each victim at the next trigger, by default a random one."""
        for _ in range(portions):
            self._scenario.send_more()
        if victims is None:
            victims = self._victims()
        if "step" in victims:
            kill_at = self._rng.randrange(1, MAX_STEPS)
        self._end_orphans(but_last=True)
        self.runs += 1
        job = self._job(self._scenario.words(), f"run-{self.runs}", kill_at)
        try:
            killed = [victim for victim in victims if victim != "step" and self._kill_at_trigger(victim, job, trigger)]
            if not killed or killed[-1] not in DRIVERS:
                code = job.wait()
                self._check_exit(code, killed, job, may_die=kill_at > 0)
        finally:
            if not (self._orphans and self._orphans[-1] is job):
                job.kill()
        self._log({"records": self._scenario.check()})

    def finish(self) -> None:
        """Runs the job undisturbed and checks that everything is complete."""
        self._run_undisturbed(self._scenario.words(), "last")
        self._scenario.check()
        self._scenario.check_complete()
        if self._scenario.is_archive:
            words = ["audit", "--archive", str(self._scenario.into), "--bootstrap", self._broker.bootstrap]
            found = self._run_undisturbed(words, "audit")
            assert found["agrees"], found
            assert found["records"] == self._scenario.count, found

    # --- the runs ---

    def _job(self, words: list[str], name: str, kill_at: int = 0) -> Job:
        where = LOCAL if self._cluster is None else self._cluster.submit_words
        return Job([*words, *where], self._folder / name, kill_at, self._scenario.into, self._environment)

    def _run_undisturbed(self, words: list[str], name: str) -> dict[str, Any]:
        self._end_orphans()
        self.runs += 1
        with closing(self._job(words, name)) as job:
            assert job.wait() == 0, job.stderr
        report = job.report()
        self._log({"run": name, "report": {key: value for key, value in report.items() if key != "partitions"}})
        return report

    def _check_exit(self, code: int, killed: list[str], job: Job, *, may_die: bool) -> None:
        """Checks the job's exit code (rule 2)."""
        may_complain = self._has_orphan or bool({"broker", "jvm"} & set(killed))
        fine = {0} | ({KILLED} if may_die else set()) | ({1} if may_complain else set())
        self._has_orphan = code == KILLED and self._warm_driver is not None
        words = job.stderr.strip()[-2000:]
        self._log({"ended": code, **({"complaint": words} if code == 1 else {})})
        assert code in fine, f"the job ended with {code} after {killed or 'nothing'}: {words}"
        if code == KILLED:
            self.kills["step"] += 1
        if code == 1:
            self.kills["(of which ended the job)"] += 1
            assert "Traceback" not in words, words

    def _end_orphans(self, *, but_last: bool = False) -> None:
        """Kills JVMs that outlived their Python."""
        kept = self._orphans[-1:] if but_last else []
        for orphan in self._orphans[: len(self._orphans) - len(kept)]:
            orphan.kill()
        self._orphans = kept

    # --- the kills ---

    def _victims(self) -> tuple[str, ...]:
        whole = ("driver", "jvm") if self._warm_driver is None else ()
        driver = self._rng.choice((*whole, "python", *(("step",) if self._scenario.has_steps else ())))
        if self._cluster is None:
            return self._rng.choice(((driver,), (driver,), ("broker",), ("broker", driver)))
        others = [self._rng.choice(OTHERS) for _ in range(self._rng.randrange(1, 4))]
        return tuple(others) if self._rng.random() < 0.6 else (*others[:1], driver)

    def _kill_at_trigger(self, victim: str, job: Job, wanted: str | None) -> bool:
        """Waits for the trigger and kills. Returns False if the job had ended before (rule 5)."""
        triggers = {**self._scenario.triggers(), "anytime": _elapsed_tenths()}
        name = wanted or self._rng.choice(sorted(triggers))
        trigger = triggers[name]
        count = 1 if wanted else self._rng.randrange(1, trigger.most + 1)
        before = trigger.number()
        pause = 0.001 + self._rng.random() / 20
        until(lambda: job.is_over or trigger.number() >= before + count, f"the job reached {name}", TIMEOUT_S, pause)
        if job.is_over:
            self._log({"victim": victim, "trigger": name, "was": "over"})
            return False
        self._log({"victim": victim, "trigger": name, "more": count})
        killed = getattr(self, f"_kill_{victim}")(job)
        self.kills[victim] += killed
        return bool(killed)

    def _kill_driver(self, job: Job) -> bool:
        return job.kill() == KILLED

    def _kill_python(self, job: Job) -> bool:
        code = job.kill_python()
        self._orphans.append(job)
        self._has_orphan = self._warm_driver is not None
        return code == KILLED

    def _kill_jvm(self, job: Job) -> bool:
        return job.kill_jvm()

    def _kill_executor(self, job: Job) -> bool:
        assert self._cluster is not None, "an executor is of a cluster"
        cluster = self._cluster
        until(lambda: job.is_over or cluster.executors(), "an executor is there", TIMEOUT_S)
        executors = cluster.executors()
        if not executors:
            return False
        self._rng.choice(executors).kill()
        return True

    def _kill_worker(self, _job: Job) -> bool:
        return self._end_worker(whole=False)

    def _kill_machine(self, _job: Job) -> bool:
        return self._end_worker(whole=True)

    def _end_worker(self, *, whole: bool) -> bool:
        assert self._cluster is not None, "a worker is of a cluster"
        number = self._rng.choice(self._cluster.numbers())
        self._cluster.kill_worker(number, whole=whole)
        self._cluster.start_worker(number)
        self._cluster.await_workers()
        return True

    def _kill_broker(self, _job: Job) -> bool:
        self._broker.kill()
        self._broker.start()
        return True

    def _log(self, event: dict[str, Any]) -> None:
        with (self._folder / "history.jsonl").open("a") as history:
            history.write(json.dumps({"run": self.runs, **event}) + "\n")
        sys.stdout.write(
            f"{self._scenario.name} {self.runs}: {', '.join(f'{k} {v}' for k, v in event.items())[:300]}\n"
        )
        sys.stdout.flush()


def _elapsed_tenths() -> Trigger:
    """Tenths of a second from now on."""
    started = time.monotonic()
    return Trigger(lambda: int(10 * (time.monotonic() - started)), int(10 * ANYTIME_S))
