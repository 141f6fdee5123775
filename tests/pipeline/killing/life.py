"""A story played: turn after turn records are sent, the job is started, and somebody is killed.

RULES    1. Here, the driver is killed: the whole process group, Python alone while its JVM is in the middle of something (the
            next run does not wait for that JVM), its JVM alone, which ends it with a sentence, or itself before a random step
            of its commit (`dying.py`). On a warm driver (`warm.py`) it is Python alone, and what it had Spark do works against
            the next run, which may end with a sentence.
         2. The broker goes too, alone or before the driver, and comes back. On a cluster so do an executor, a worker, or a
            worker with all that it started, at most three in a turn. The job has to live through all but the broker's death,
            which may end it with a sentence.
         3. After every turn the story is checked; at its end a run is not disturbed, and all must be there. An archive is
            audited then.
         4. What was done is written down as it is done; the seed does it again, as far as the machine does.
         5. A kill counts where the job had not ended before it.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tests.pipeline.killing.job import KILLED, Job
from tests.pipeline.killing.story import Moment, Story
from tests.pipeline.killing.warm import WarmDriver
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import until

REACHED_S = 900.0
MOST_STEPS = 60
ANYTIME_S = 15.0
LOCAL = ["--master", "local[2]", "--spark", "spark.sql.shuffle.partitions=2"]
DRIVERS = ("driver", "python", "step")
OTHERS = ("executor", "worker", "machine", "broker")


class KillableBroker(Protocol):
    """A node that comes back on its port, with its data."""

    @property
    def bootstrap(self) -> str:
        """Where clients find it."""
        ...

    def start(self) -> object:
        """Start, and wait until it answers."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...


class Life:
    """One story, from its first turn to the last look; what it leaves is kept when something is wrong."""

    def __init__(
        self,
        kind: Callable[[str, Path, random.Random, Mapping[str, str]], Story],
        folder: Path,
        broker: KillableBroker,
        seed: int,
        cluster: SparkCluster | None = None,
        warm: WarmDriver | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self._rng = random.Random(seed)
        self._environment = warm.environment if warm else {}
        self._story = kind(broker.bootstrap, folder, self._rng, self._environment)
        self._folder = folder
        self._broker = broker
        self._cluster = cluster
        self._warm = warm
        self._has_ghost = False
        self._ghosts: list[Job] = []
        self.kills: Counter[str] = Counter()
        self.runs = 0
        self._tell({"story": self._story.name, "seed": seed, "cluster": cluster is not None, "warm": warm is not None})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lay_ghosts()
        if error is None:
            shutil.rmtree(self._folder)
        else:
            sys.stderr.write(f"The history and the logs are in {self._folder}.\n")

    @property
    def is_done(self) -> bool:
        """Whether the story has nothing more to do."""
        return self._story.is_done

    @property
    def records(self) -> int:
        """How many records were sent."""
        return self._story.count

    def turn(
        self, victims: tuple[str, ...] | None = None, die_at: int = 0, moment: str | None = None, portions: int = 1
    ) -> None:
        """One run of the job, on so many more portions of records, and who is killed on the way: each at the next such
        moment, or some time."""
        for _ in range(portions):
            self._story.send_more()
        if victims is None:
            victims = self._victims()
        if "step" in victims:
            die_at = self._rng.randrange(1, MOST_STEPS)
        job = self._start(die_at)
        try:
            struck = [victim for victim in victims if victim != "step" and self._strike(victim, job, moment)]
            if not struck or struck[-1] not in DRIVERS:
                code = job.wait()
                self._judge(code, struck, job, may_die=die_at > 0)
        finally:
            if not (self._ghosts and self._ghosts[-1] is job):
                job.kill()
        self._tell({"records": self._story.check()})

    def finish(self) -> None:
        """A run that is not disturbed, and everything must be there."""
        self._undisturbed(self._story.words(), "last")
        self._story.check()
        self._story.check_all()
        if self._story.is_archive:
            words = ["audit", "--archive", str(self._story.into), "--bootstrap", self._broker.bootstrap]
            found = self._undisturbed(words, "audit")
            assert found["agrees"], found
            assert found["records"] == self._story.count, found

    # --- the runs ---

    def _start(self, die_at: int = 0) -> Job:
        self._lay_ghosts(but_last=True)
        self.runs += 1
        return self._job(self._story.words(), f"run-{self.runs}", die_at)

    def _job(self, words: list[str], name: str, die_at: int = 0) -> Job:
        return Job([*words, *self._where()], self._folder / name, die_at, self._story.into, self._environment)

    def _where(self) -> list[str]:
        return LOCAL if self._cluster is None else self._cluster.submit_words

    def _undisturbed(self, words: list[str], name: str) -> dict[str, Any]:
        self._lay_ghosts()
        self.runs += 1
        job = self._job(words, name)
        try:
            assert job.wait() == 0, job.complaints
        finally:
            job.kill()
        report = job.report()
        self._tell({"run": name, "report": {key: value for key, value in report.items() if key != "partitions"}})
        return report

    def _judge(self, code: int, struck: list[str], job: Job, *, may_die: bool) -> None:
        """Whether the job ended as it may (rule 2)."""
        may_complain = self._has_ghost or bool({"broker", "jvm"} & set(struck))
        fine = {0} | ({KILLED} if may_die else set()) | ({1} if may_complain else set())
        self._has_ghost = code == KILLED and self._warm is not None
        words = job.complaints.strip()[-2000:]
        self._tell({"ended": code, **({"complaint": words} if code == 1 else {})})
        assert code in fine, f"the job ended with {code} after {struck or 'nothing'}: {words}"
        if code == KILLED:
            self.kills["step"] += 1
        if code == 1:
            self.kills["(of which ended the job)"] += 1
            assert "Traceback" not in words, words

    def _lay_ghosts(self, *, but_last: bool = False) -> None:
        """End the JVMs that outlived their Python."""
        kept = self._ghosts[-1:] if but_last else []
        for ghost in self._ghosts[: len(self._ghosts) - len(kept)]:
            ghost.kill()
        self._ghosts = kept

    # --- the kills ---

    def _victims(self) -> tuple[str, ...]:
        whole = ("driver", "jvm") if self._warm is None else ()
        driver = self._rng.choice((*whole, "python", *(("step",) if self._story.has_steps else ())))
        if self._cluster is None:
            return self._rng.choice(((driver,), (driver,), ("broker",), ("broker", driver)))
        others = [self._rng.choice(OTHERS) for _ in range(self._rng.randrange(1, 4))]
        return tuple(others) if self._rng.random() < 0.6 else (*others[:1], driver)

    def _strike(self, victim: str, job: Job, wanted: str | None) -> bool:
        """Wait for the moment, or some moment, and kill; False when the job was over before (rule 5)."""
        moments = {**self._story.moments(), "anytime": _time_since_now()}
        name = wanted or self._rng.choice(sorted(moments))
        moment = moments[name]
        more = 1 if wanted else self._rng.randrange(1, moment.most + 1)
        before = moment.count()
        pause = 0.001 + self._rng.random() / 20
        until(lambda: job.is_over or moment.count() >= before + more, f"the job reached {name}", REACHED_S, pause)
        if job.is_over:
            self._tell({"victim": victim, "moment": name, "was": "over"})
            return False
        self._tell({"victim": victim, "moment": name, "more": more})
        killed = getattr(self, f"_kill_{victim}")(job)
        self.kills[victim] += killed
        return bool(killed)

    def _kill_driver(self, job: Job) -> bool:
        return job.kill() == KILLED

    def _kill_python(self, job: Job) -> bool:
        code = job.kill_python()
        self._ghosts.append(job)
        self._has_ghost = self._warm is not None
        return code == KILLED

    def _kill_jvm(self, job: Job) -> bool:
        return job.kill_jvm()

    def _kill_executor(self, job: Job) -> bool:
        assert self._cluster is not None, "an executor is of a cluster"
        until(lambda: job.is_over or self._executors(), "an executor is there", REACHED_S)
        executors = self._executors()
        if not executors:
            return False
        self._rng.choice(executors).kill()
        return True

    def _executors(self) -> list[Any]:
        assert self._cluster is not None, "an executor is of a cluster"
        return self._cluster.executors()

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

    def _tell(self, said: dict[str, Any]) -> None:
        """Write it down (rule 4)."""
        with (self._folder / "history.jsonl").open("a") as history:
            history.write(json.dumps({"run": self.runs, **said}) + "\n")
        sys.stdout.write(f"{self._story.name} {self.runs}: {', '.join(f'{k} {v}' for k, v in said.items())[:300]}\n")
        sys.stdout.flush()


def _time_since_now() -> Moment:
    """Tenths of a second from now on."""
    started = time.monotonic()
    return Moment(lambda: int(10 * (time.monotonic() - started)), int(10 * ANYTIME_S))
