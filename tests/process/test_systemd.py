"""The systemd unit: notifications to a socket of our own, and the unit held against systemd-analyze.

RULES    1. READY=1 follows the ready line, STOPPING=1 a signal; WATCHDOG=1 is repeated while the loop runs.
         2. Each log that a start recovers extends the start timeout.
         3. The unit is valid and strict, and its filter allows every system call that a node makes.
NOT HERE systemd itself, which does not run on build machines.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.cluster import free_ports
from tests.support.librdkafka import assert_arrived, create_topic, produce, read_to_end
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "config" / "systemd" / "barnabas.service"
COMMAND = Path(sys.executable).with_name("barnabas")
LOOSEST = 2.0
"""The exposure that `systemd-analyze security` reports goes from 0 to 10; what listens on a network has 1.5 at least."""
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


class Manager:
    """The socket of a service manager."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(60)
        self.address = address

    def next(self) -> dict[str, str]:
        """The next notification."""
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().splitlines())

    def until(self, name: str) -> list[dict[str, str]]:
        """The notifications up to the first one with this variable."""
        found = [self.next()]
        while name not in found[-1]:
            found.append(self.next())
        return found

    def close(self) -> None:
        self._socket.close()


@contextmanager
def serving(folder: Path, port: int, address: str, *prefix: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The unit's command, with its directories below `folder`."""
    settings = folder / "server.properties"
    more = settings.read_text() if settings.exists() else ""
    settings.write_text(f"{more}listeners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs=data\n")
    parser = unit()
    words = parser["Service"]["ExecStart"].replace("/opt/barnabas/bin/barnabas", str(COMMAND))
    words = words.replace("/etc/barnabas/server.properties", str(settings)).replace("$BARNABAS_OPTIONS", "")
    environment = {"NOTIFY_SOCKET": address, "PATH": "/usr/bin:/bin", **variables}
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [*prefix, *words.split()], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    one = Manager(str(tmp_path / "notify"))
    yield one
    one.close()


def unit() -> RawConfigParser:
    parser = RawConfigParser(strict=False, delimiters=["="])
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_systemd_learns_when_the_node_is_ready_runs_and_stops(tmp_path: Path, manager: Manager) -> None:
    (port,) = free_ports(1)
    with serving(tmp_path, port, manager.address, WATCHDOG_USEC="100000") as process:
        assert manager.next() == {"READY": "1", "STATUS": f"ready on 127.0.0.1:{port}"}
        assert process.stdout is not None
        assert process.stdout.readline().startswith("barnabas ready on ")
        assert [manager.next() for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
        process.send_signal(signal.SIGTERM)
        assert manager.until("STOPPING")[-1]["STATUS"] == "shutting down"
        assert process.wait(60) == 0


def test_a_watchdog_for_another_process_gets_nothing(tmp_path: Path) -> None:
    """A parent's variables, in an abstract socket."""
    manager = Manager(f"@barnabas-{tmp_path.name}")
    (port,) = free_ports(1)
    with serving(tmp_path, port, manager.address, WATCHDOG_USEC="1000", WATCHDOG_PID="1") as process:
        assert "READY" in manager.next()
        process.send_signal(signal.SIGTERM)
        assert "STOPPING" in manager.next()
    manager.close()


def test_a_recovery_extends_the_start_timeout(tmp_path: Path, manager: Manager) -> None:
    """Rule 2: logs with more than 1 MiB to check are recovered before the node is ready."""
    (port,) = free_ports(1)
    with serving(tmp_path, port, manager.address) as process:
        manager.until("READY")
        create_topic(f"127.0.0.1:{port}", "large", 2)
        produce(f"127.0.0.1:{port}", "large", [bytes(100_000)] * 40, partitions=2)
        process.kill()
        process.wait()
    with serving(tmp_path, port, manager.address):
        *recovered, _ = manager.until("READY")
        assert {one["EXTEND_TIMEOUT_USEC"] for one in recovered} == {"120000000"}
        assert sorted(re.findall(r"large-\d", one["STATUS"])[0] for one in recovered) == ["large-0", "large-1"]
        assert len(read_to_end(f"127.0.0.1:{port}", "large")) == 40


def test_a_manager_that_is_gone_is_a_log_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with serving(tmp_path, port, str(tmp_path / "gone")) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("barnabas ready on ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "systemd was not notified of READY=1: No such file or directory" in (tmp_path / "log").read_text()


@needs_systemd
def test_the_unit_is_valid_and_strict(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/barnabas/bin/barnabas", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", copy], capture_output=True, text=True, check=False
    )
    level = re.search(r"Overall exposure level for .*: ([\d.]+)", judged.stdout)
    assert level is not None, judged.stderr
    assert float(level[1]) <= LOOSEST


@needs_systemd
@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_units_filter_allows_what_a_node_calls(tmp_path: Path, manager: Manager) -> None:
    """Rule 3: system calls of a node that starts, writes, compacts, flushes, reads and stops."""
    (port,) = free_ports(1)
    bootstrap = f"127.0.0.1:{port}"
    trace = tmp_path / "calls"
    (tmp_path / "server.properties").write_text("log.cleaner.backoff.ms=100\n")
    options = ("strace", "--follow-forks", "--daemonize", "--output", str(trace), "--signal=none")
    with serving(tmp_path, port, manager.address, *options) as process:
        manager.until("READY")
        fast: dict[str, Any] = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.01", "flush_messages": "1"}
        create_topic(bootstrap, "compacted", cleanup_policy="compact", **fast)
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

        def compacts() -> bool:
            """Writes one more record, which rolls a segment that is old enough."""
            producer.produce("compacted", b"x", key=b"k", on_delivery=assert_arrived)
            return producer.flush(60) == 0 and "setpriority(" in trace.read_text(errors="replace")

        until(compacts, "the compaction process runs, with a lower priority")
        assert read_to_end(bootstrap, "compacted")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    # strace pads a process id of less than five digits with blanks.
    ended = re.compile(rf"^{process.pid} +\+\+\+ exited with 0 \+\+\+", re.MULTILINE)
    until(lambda: ended.search(trace.read_text(errors="replace")), "strace has ended")
    called = set(
        re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed)", trace.read_text(errors="replace"), re.MULTILINE)
    )
    assert {"execve", "io_submit"} <= called
    assert called - allowed_calls() == set()


def allowed_calls() -> set[str]:
    """The unit's filter, applied as systemd.exec(5) says: lists that begin with ~ take away, the others add."""
    allowed: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE):
        named = {name for word in line.lstrip("~").split() for name in expanded(word)}
        allowed = allowed - named if line.startswith("~") else allowed | named
    return allowed


def expanded(word: str) -> Iterator[str]:
    """The system calls of a set, and of the sets in it."""
    if not word.startswith("@"):
        yield word
        return
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", word], capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines()[1:]:
        name = line.strip()
        if name and not name.startswith("#"):
            yield from expanded(name)
