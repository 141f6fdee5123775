"""The broker's side of a key index process (broker/io/index_process.py), with a real process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from broker.io.index_process import IndexProcess
from replication.completion import Completion
from storage.keyindex.index_jobs import JobFailed, LoadRanges
from tests.support.waiting import until

DIGEST = bytes(8)


def with_process(check: Callable[[IndexProcess], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        process = IndexProcess(asyncio.get_running_loop(), "key search", 0, patience=1)
        try:
            await asyncio.wait_for(check(process), 60)
        finally:
            process.stop()

    asyncio.run(run())


async def result_of(done: Completion[Any]) -> Any:
    event = asyncio.Event()
    done.then(lambda _: event.set())
    await event.wait()
    return done.value


def freeze(process: IndexProcess) -> None:
    child = process._helper._process
    assert child is not None
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "a closed terminal"])
def test_signals_of_a_terminal_do_not_end_a_process(tmp_path: Path, number: signal.Signals) -> None:
    """The broker, which gets them too, still needs it while it stops."""

    async def check(process: IndexProcess) -> None:
        job = LoadRanges(str(tmp_path), DIGEST)
        assert await result_of(process.submit(job)) == []
        child = process._helper._process
        assert child is not None
        child.send_signal(number)
        assert await result_of(process.submit(job)) == []
        assert process._helper._process is child

    with_process(check)


def test_a_process_that_hangs_is_killed_and_another_one_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check(process: IndexProcess) -> None:
        job = LoadRanges(str(tmp_path), DIGEST)
        assert await result_of(process.submit(job)) == []
        freeze(process)
        done = process.submit(job)
        await asyncio.to_thread(until, lambda: process._helper.work_in_progress is not None, "the job is begun")
        process.check()
        assert caplog.messages == []
        process.check()
        assert caplog.messages == ["the key search process is killed, since it does not answer"]
        assert await result_of(done) == JobFailed("the key search process was killed by SIGKILL")
        process.check()
        assert await result_of(process.submit(job)) == []

    with_process(check)


def test_a_cancelled_job_is_not_begun(tmp_path: Path) -> None:
    async def check(process: IndexProcess) -> None:
        creating = LoadRanges(str(tmp_path / "created"), DIGEST, may_create=True)
        first = process.submit(LoadRanges(str(tmp_path), DIGEST))
        process.submit(creating).cancel()
        last = process.submit(LoadRanges(str(tmp_path), DIGEST))
        assert await result_of(first) == []
        assert await result_of(last) == []
        assert not (tmp_path / "created").exists()

    with_process(check)


def test_a_process_that_is_not_used_ends(tmp_path: Path) -> None:
    async def check(process: IndexProcess) -> None:
        job = LoadRanges(str(tmp_path), DIGEST)
        await result_of(process.submit(job))
        child = process._helper._process
        assert child is not None
        process.check()
        await result_of(process.submit(job))
        process.check()
        assert child.poll() is None
        process.check()
        await result_of(process.submit(job))
        assert child.poll() == 0

    with_process(check)
