"""The threads behind the Worker seam (broker/workers.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from weakref import ref

import pytest

from broker.workers import ThreadWorker
from replication.work import Done, Run
from tests.support.waiting import until


class Held:
    """What a job closes over."""

    def work(self) -> None:
        """Nothing."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def worker(loop: asyncio.AbstractEventLoop) -> Iterator[ThreadWorker]:
    worker = ThreadWorker(loop)
    yield worker
    worker.stop()


Put = Callable[[ThreadWorker, Run, Done], None]
LANES: dict[str, Put] = {
    "read": lambda worker, run, done: worker.read("data", run, done),
    "write": lambda worker, run, done: worker.write("data", 2**30, run, done),
    "sync": lambda worker, run, done: worker.sync("data", run, done),
    "background": lambda worker, run, done: worker.background("data", run, done),
}


@pytest.mark.parametrize("lane", LANES)
def test_a_job_that_is_done_is_held_by_nobody(loop: asyncio.AbstractEventLoop, worker: ThreadWorker, lane: str) -> None:
    """Jobs close over open files; a thread that waits for its next job must not keep those of the last."""

    def put() -> ref[Held]:
        held = Held()
        LANES[lane](worker, held.work, lambda _: loop.stop())
        return ref(held)

    left = put()
    loop.run_forever()
    until(lambda: left() is None or None, "the thread lets go of the job")
