"""The harness itself: links that are cut or impaired, disks that are full or fail, power loss,"""

from __future__ import annotations

import errno
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from storage.commitlog.commit_log import CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.slots import SlotId
from storage.config.log_config import LogConfig
from storage.io.disk import Disk
from tests.faults import disks
from tests.faults.machines import OUTSIDE
from tests.faults.network import Network, of_clients, why_no_namespaces
from tests.faults.preload import environment, libraries, restore_clock, shift_clock
from tests.support.batches import batch, with_fields
from tests.support.waiting import until
from tests.unit.storage.commitlog.test_commit_log import append_to, bytes_of, sync

pytestmark = pytest.mark.long

needs_machines = pytest.mark.skipif(
    why_no_namespaces() is not None, reason=why_no_namespaces() or "machines can be made"
)
ECHO = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.bind((sys.argv[1], 7))
    print(flush=True)
    while True:
        said, whom = own.recvfrom(100)
        own.sendto(said, whom)
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(2) as made:
        yield made


@pytest.fixture
def echo_address(network: Network) -> Iterator[tuple[str, int]]:
    """A UDP echo server on machine 1."""
    command = [*network.command_prefix(1), sys.executable, "-c", ECHO, network.address(1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        where = network.address(1), 7
        until(lambda: echoes(where) == [b"0"], "the echo answers")
        yield where
        process.kill()


def echoes(where: tuple[str, int], count: int = 1, within_s: float = 0.3) -> list[bytes]:
    """The echoes of `count` packets, in the order of their arrival."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.settimeout(within_s)
        for number in range(count):
            own.sendto(b"%d" % number, where)
        back = []
        try:
            while True:
                back.append(own.recv(100))
        except TimeoutError:
            return back


@needs_machines
def test_a_link_is_cut_in_one_direction_or_both_and_restored(network: Network, echo_address: tuple[str, int]) -> None:
    for ways in ([(OUTSIDE, 1)], [(1, OUTSIDE)], list(of_clients([1]))):
        with network.cut(ways):
            assert echoes(echo_address) == []
        until(lambda: echoes(echo_address) == [b"0"], "the echo answers again")


@needs_machines
def test_a_link_is_cut_for_one_port(network: Network, echo_address: tuple[str, int]) -> None:
    """In either direction."""
    for link in ((OUTSIDE, 1), (1, OUTSIDE)):
        with network.cut([link], 8):
            until(lambda: echoes(echo_address) == [b"0"], "the echo answers still")
        with network.cut([link], 7):
            assert echoes(echo_address) == []


@needs_machines
def test_an_intermittent_link_loses_and_delivers_in_turns(network: Network, echo_address: tuple[str, int]) -> None:
    with network.degrade([(OUTSIDE, 1)], turns_s=1.0):
        for is_there in (True, False, True):
            until(partial(_answers, echo_address, is_there), "its turn")


def _answers(echo_address: tuple[str, int], expected: bool) -> bool:
    return (echoes(echo_address) == [b"0"]) == expected


@needs_machines
def test_a_bad_link_loses_duplicates_and_reorders_packets(network: Network, echo_address: tuple[str, int]) -> None:
    with network.degrade([(OUTSIDE, 1)], loss=0.5):
        until(lambda: 0 < len(echoes(echo_address, 200)) < 200, "some are lost")

    def all_came_twice_and_late() -> bool:
        back = echoes(echo_address, 100)
        is_all = set(back) == {b"%d" % number for number in range(100)}
        return is_all and len(back) > 100 and back != sorted(back, key=int)

    with network.degrade([(OUTSIDE, 1)], twice=0.5, jitter_s=0.05):
        until(all_came_twice_and_late, "all come, some twice, in another order")


@needs_machines
def test_machines_leave_nothing_behind() -> None:
    """Devices, namespaces, disks and processes end with the program."""
    with Network(1) as made:
        running = subprocess.Popen([*made.command_prefix(1), "cat"], stdin=subprocess.PIPE)
        until(lambda: os.readlink(f"/proc/{running.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "it is there")
        (made.disk_of(1) / "x").write_bytes(b"x")
        assert not (made.disk / "x").exists(), "its disk is its own"
        where = made.disk_of(1)
        names = {name for _, name in socket.if_nameindex()}
    assert running.wait(60) != 0
    assert not where.exists()
    gone = names - {name for _, name in socket.if_nameindex()}
    assert len([name for name in gone if name.startswith("faults")]) == 1


@needs_machines
def test_a_full_disk_refuses_writes(network: Network) -> None:
    disk = network.disk_of(2)
    disks.fill(disk)
    with pytest.raises(OSError, match="No space"):
        (disk / "more").write_bytes(bytes(100_000))
    disks.clear_faults(disk)
    (disk / "more").write_bytes(bytes(100_000))


@pytest.fixture
def built(tmp_path: Path) -> list[Path]:
    return libraries(tmp_path) or pytest.skip("no C compiler")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(("kinds", "refused"), [("w", {"w"}), ("s", {"s"}), ("r", {"r"}), ("wsr", {"w", "s", "r"})])
def test_a_disk_fails_as_ordered(tmp_path: Path, built: list[Path], kinds: str, refused: set[str], code: int) -> None:
    """With the given errno, for the given calls, below the given path only, and only until the fault is cleared."""
    program = """
import os, sys
for path in sys.argv[1:]:
    file = os.open(path, os.O_RDWR)
    calls = {"w": (os.pwritev, [b"x"], 0), "s": (os.fdatasync,), "r": (os.pread, 1, 0)}
    for name, (call, *arguments) in calls.items():
        try:
            call(file, *arguments)
        except OSError as error:
            print(path[-1] + name, error.errno, end=" ")
"""

    def failures() -> set[str]:
        command = [*environment(built, tmp_path), sys.executable, "-c", program]
        done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    files = [tmp_path / "one" / "a", tmp_path / "two" / "b"]
    for file in files:
        file.parent.mkdir()
        file.write_bytes(b"x")
    assert failures() == set()
    disks.fail(tmp_path, kinds, tmp_path / "two", code)
    assert failures() == {f"b{name}" for name in refused} | {str(code)}
    disks.fail(tmp_path, kinds, tmp_path / "two", 0, 0.001)
    assert failures() == set(), "late only"
    disks.clear_faults(tmp_path)
    assert failures() == set()


def test_syncs_by_the_kernels_queue_fail_and_are_late_as_ordered(tmp_path: Path, built: list[Path]) -> None:
    """`Disk.sync_files` syncs several files by Linux AIO, which does not call the C library's fdatasync."""
    program = """
import sys, time
from storage.io.disk import Disk
disk = Disk()
files = [disk.open(path, write=True) for path in sys.argv[1:]]
began_s = time.monotonic()
failed = disk.sync_files(files)
print(time.monotonic() - began_s, *(error.errno for error in failed.values()))
"""
    files = [tmp_path / "one", tmp_path / "other"]
    for file in files:
        file.write_bytes(b"x")

    def sync() -> tuple[float, list[int]]:
        command = [*environment(built, tmp_path), sys.executable, "-c", program, *map(str, files)]
        seconds, *errors = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return float(seconds), list(map(int, errors))

    assert sync()[1] == []
    disks.fail(tmp_path, "s", tmp_path / "other")
    assert sync()[1] == [errno.EIO]
    disks.fail(tmp_path, "s", tmp_path, 0, 0.2)
    seconds, errors = sync()
    assert errors == []
    assert seconds >= 0.2


def test_only_the_wall_clock_is_shifted(tmp_path: Path, built: list[Path]) -> None:
    """Forward, back and restored; the monotonic clock does not jump."""
    program = "import time; print(time.time(), time.monotonic())"

    def wrong_by() -> tuple[float, float]:
        command = [*environment(built, tmp_path), sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        day, count = map(float, done.stdout.split())
        return day - time.time(), count - time.monotonic()

    for seconds in (1_000_000, -1_000_000):
        shift_clock(tmp_path, seconds)
        day, count = wrong_by()
        assert round(day / seconds, 2) == 1
        assert round(count / seconds, 2) == 0
    restore_clock(tmp_path)
    assert round(wrong_by()[0] / 1_000_000, 2) == 0


def test_a_power_loss_truncates_only_unflushed_data(tmp_path: Path) -> None:
    """A log is truncated above its recovery point; the metadata log is never truncated."""
    whole = b"".join(bytes(with_fields(batch(0, 1), base_offset=at)) for at in range(4))
    one = len(whole) // 4
    for name in ("t-0", "t-1", "__cluster_metadata-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020}.log").write_bytes(whole)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n2\nt 0 2\nt 1 4\n")
    assert disks.lose_power(tmp_path, random.Random(1)) == 1
    left = {name: (tmp_path / name / f"{0:020}.log").read_bytes() for name in ("t-0", "t-1", "__cluster_metadata-0")}
    assert 2 * one <= len(left["t-0"]) < 4 * one
    assert whole.startswith(left["t-0"])
    assert left["t-1"] == left["__cluster_metadata-0"] == whole


@pytest.mark.parametrize("seed", range(10))
def test_a_power_loss_truncates_only_unflushed_frames_of_a_commit_log(tmp_path: Path, seed: int) -> None:
    """Above the recovery point of each partition, and above what later frames prove durable; sealed files stay whole."""

    def open_log() -> tuple[CommitLog, list[CommitLogEngine]]:
        disk = Disk()
        log = CommitLog(disk, str(tmp_path), random_bytes=os.urandom, new_lock=nullcontext, file_bytes=4096)
        engines = [CommitLogEngine(log, SlotId(b"t" * 16, number), "t", LogConfig()) for number in (0, 1)]
        for engine in engines:
            engine.open(None)
        return log, engines

    log, (one, other) = open_log()
    while len(log.files) < 3:  # the first ones are sealed
        append_to(one)
    append_to(other)
    sync(other)
    append_to(other)  # after a proof of what is durable
    append_to(one)
    durable = one.end_offset, other.end_offset - 1
    before = bytes_of(one), bytes_of(other)
    for _ in range(3):
        append_to(other)
        append_to(one)
    (tmp_path / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {durable[0]}\n")
    assert disks.lose_power(tmp_path, random.Random(seed)) == 1
    _, (one, other) = open_log()
    assert one.end_offset >= durable[0]
    assert other.end_offset >= durable[1]
    assert one.end_offset + other.end_offset < sum(durable) + 7
    assert bytes_of(one).startswith(before[0])
    assert before[1].startswith(bytes_of(other)[: len(before[1])])
