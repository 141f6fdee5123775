"""Tests of recovery by the engine interface (storage/engine.py) for any engine; see engine_contract.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from protocol.records import BatchHeader, headers
from storage.engine import AbortedTransaction, Buffer, Engine
from tests.support.crashing_disk import CrashingDisk
from tests.support.segments import batch
from tests.unit.storage.engine_contract import EngineContract, all_of, append, recovered, sync


class EngineRecoveryContract(EngineContract):
    # ---- recovery ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("point", [0, 3, 4, 11, 20])
    def test_recovery_checks_all_from_the_segment_of_the_recovery_point(
        self, make: Callable[..., Engine], tmp_path: Path, point: int
    ) -> None:
        engine = make()
        batches = [batch(2 * number, 2, size=300) for number in range(10)]
        for data in batches:
            append(engine, data)
        again = self.unopened(tmp_path)
        seen = recovered(again, point)
        assert seen == list(range(seen[0], 20, 2))
        assert seen[0] <= point
        assert all_of(again) == b"".join(batches)
        assert (again.end_offset, again.flushed_end_offset) == (20, point)
        append(again, more := batch(20, 2))
        assert all_of(again) == b"".join(batches) + more

    def test_batches_below_the_recovery_are_readable_before_it(
        self, make: Callable[..., Engine], tmp_path: Path
    ) -> None:
        engine = make()
        batches = [batch(2 * number, 2, size=300) for number in range(10)]
        for data in batches:
            append(engine, data)
        again = self.unopened(tmp_path)
        start = again.open(15)
        assert start is not None
        assert 6 <= start <= 15
        found, at = b"", 0
        while at < start:
            found += bytes(again.read_batches(at, 700))
            at = headers(found)[-1][1].next_offset
        assert found.startswith(b"".join(batches[: start // 2]))
        assert again.bytes_to_recover(start) == 300 * (10 - start // 2)

    @pytest.mark.parametrize("damaged", range(8))
    def test_recovery_truncates_at_the_first_corrupt_batch(
        self, make: Callable[..., Engine], tmp_path: Path, damaged: int
    ) -> None:
        engine = make()
        batches = [batch(2 * number, 2, size=300) for number in range(8)]
        for data in batches:
            append(engine, data)
        region = engine.locate(2 * damaged, 300, 16, min_one_batch=True).regions[0]
        os.pwrite(region.file.fileno(), b"!!", region.position + 290)  # type: ignore[attr-defined]
        again = self.unopened(tmp_path)
        assert recovered(again, 0) == [2 * number for number in range(damaged)]
        assert all_of(again) == b"".join(batches[:damaged])
        assert again.end_offset == 2 * damaged
        append(again, more := batch(2 * damaged, 1, size=300))
        last = self.unopened(tmp_path)
        recovered(last, 0)
        assert all_of(last) == b"".join(batches[:damaged]) + more

    def test_recovery_rebuilds_the_aborted_transactions(self, make: Callable[..., Engine], tmp_path: Path) -> None:
        engine = make()
        for number in range(6):
            append(engine, batch(2 * number, 2, size=400))
            if number % 2:
                engine.add_aborted(AbortedTransaction(number, 2 * number - 1, 2 * number + 1, 2 * number + 2))
        before = engine.aborted(0, 100)
        again = self.unopened(tmp_path)
        start = again.open(5)
        assert start is not None

        def visit(buffer: Buffer, position: int, header: BatchHeader) -> None:
            number = header.base_offset // 2
            if number % 2:
                again.add_aborted(AbortedTransaction(number, 2 * number - 1, 2 * number + 1, 2 * number + 2))

        again.recover(start, visit)
        assert again.aborted(0, 100) == before

    @pytest.mark.parametrize("seed", range(12))
    def test_a_loss_of_power_keeps_flushed_batches(self, tmp_path: Path, seed: int) -> None:
        rng = Random(seed)
        disk = CrashingDisk()
        engine = self.unopened(tmp_path, disk=disk)
        engine.open(None)
        appended = b""
        flushed = 0
        for _ in range(4):
            for _ in range(rng.randint(1, 8)):
                data = batch(engine.end_offset, rng.randint(1, 3), size=rng.randint(250, 500))
                append(engine, data)
                appended += data
            if rng.random() < 0.6:
                sync(engine)
                flushed = engine.end_offset
            disk.crash(rng)
            engine = self.unopened(tmp_path, disk=disk)
            recovered(engine, flushed)
            found = all_of(engine)
            assert appended.startswith(found), f"seed {seed}"
            assert engine.end_offset >= flushed, f"seed {seed}"
            appended = found
