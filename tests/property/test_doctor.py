"""Random damage to a data directory: the doctor sees it, mends it, and what is left holds whole batches only.

RULES    1. A failure prints its seed; `damage(seed)` does the same damage again.
"""

from __future__ import annotations

import logging
import random
import shutil
from pathlib import Path

import pytest

from broker.tools.doctor import DoctorResult, run_doctor
from broker.tools.doctor_report import json_objects, text_lines
from broker.tools.node_identity import CannotCheck
from protocol.records import BATCH_OVERHEAD, LOG_OVERHEAD, crc_is_valid, headers
from storage.directories.log_manager import LogManager
from storage.inspection.issues import Severity
from storage.log.log_reader import Isolation
from tests.support.data_directory import change_logs, damage, make_data_directory
from tests.support.logs import bytes_of

SEEDS = 60
SEGMENTS = pytest.mark.parametrize("whole", ["segments"], indirect=True)
"""Damage of a commit log is not repaired: what is left of a sealed file is served."""


@pytest.fixture(scope="module", params=["segments", "commitlog"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which nothing is wrong."""
    path = tmp_path_factory.mktemp("doctor") / "data"
    make_data_directory(path, request.param)
    return path


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def looked_at(path: Path, *, repair: bool = False) -> DoctorResult:
    """A visit, with the report made in both forms."""
    outcome = run_doctor([str(path)], repair=repair, read_only=False, progress=lambda _done, _of: None)
    assert list(text_lines(outcome))
    assert list(json_objects(outcome))
    return outcome


def test_nothing_is_wrong_with_a_directory_that_nobody_damaged(whole: Path, tmp_path: Path) -> None:
    """Not even after it was looked at, and nothing is changed by looking."""
    path = shutil.copytree(whole, tmp_path / "data")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    outcome = looked_at(path)
    assert (outcome.before.issues, outcome.before.start.refusals, outcome.status) == ([], [], 0)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != ".lock"} == {
        file: content for file, content in before.items() if file.name != ".lock"
    }


@SEGMENTS
@pytest.mark.long
def test_random_damage_is_mended_or_refused_and_whole_batches_remain(whole: Path, tmp_path: Path) -> None:
    """After a repair nothing is left to be found, and readers get whole batches in the order of their offsets."""
    for seed in range(SEEDS):
        path = shutil.copytree(whole, tmp_path / "data")
        done = f"seed {seed}: {damage(path, random.Random(seed))}"
        before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != ".lock"}
        try:
            looked = looked_at(path)
            assert all(file.read_bytes() == content for file, content in before.items()), done
            outcome = looked_at(path, repair=True)
        except CannotCheck:
            shutil.rmtree(path)
            continue
        except Exception as error:
            raise AssertionError(done) from error
        assert looked.before.issues == outcome.before.issues, done
        last = outcome.after or outcome.before
        if outcome.after is None and outcome.before.worst > Severity.NOTE:
            assert outcome.before.repair is not None, done
            assert outcome.before.repair.refusals, done
        else:
            assert [found for found in last.issues if found.severity > Severity.NOTE] == [], done
            change_logs(path, _read_everything)
        shutil.rmtree(path)


def _read_everything(manager: LogManager) -> None:
    for log in manager.logs.values():
        end = log.log_start_offset
        data = bytes_of(log, isolation=Isolation.LOG_END)
        assert sum(header.size for _, header in headers(data)) == len(data), log
        for position, header in headers(data):
            assert crc_is_valid(data, position, header), log
            assert header.next_offset > end, log
            end = header.next_offset
        assert end == log.log_end_offset, log


@SEGMENTS
def test_every_byte_of_a_batch_that_is_changed_is_found(whole: Path, tmp_path: Path) -> None:
    """One bit of each byte of a batch in the middle of a segment, one after the other."""
    path = shutil.copytree(whole, tmp_path / "data")
    log = path / "split-0" / "00000000000000000014.log"
    content = log.read_bytes()
    size = int.from_bytes(content[8:12], "big") + LOG_OVERHEAD
    dice = random.Random(14)
    for at in [*range(size, size + BATCH_OVERHEAD), *range(size + BATCH_OVERHEAD, 2 * size, 10)]:
        changed = bytearray(content)
        changed[at] ^= 1 << dice.randrange(8)
        log.write_bytes(changed)
        outcome = looked_at(path)
        assert [found for found in outcome.before.issues if found.path == str(log)], f"byte {at - size} of the batch"
