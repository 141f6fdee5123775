"""The network between the nodes of a cluster and their clients, and all that is bad about it.

RULES    1. Several things may be bad at a time, each under a name: what a link suffers is the worst of each kind.
         2. The clients are machine `OUTSIDE`; a cut between nodes does not cut off the clients, unless they are named.
         3. What is bad for one port is so for the packets that go to it or come from it.
NOT HERE The packets (`machines.py`).
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.faults.machines import OUTSIDE, Way

ROOT = Path(__file__).parents[2]
DISK_BYTES = 192 * 1024 * 1024
Badness = dict[str, float]
Ways = Iterable[tuple[int, int]]


def why_no_machines() -> str | None:
    """Why there can be no machines here, in a sentence; None when there can."""
    if os.geteuid() != 0:
        return "network namespaces and disks of their own need root"
    if shutil.which("nsenter") is None:
        return "there is no nsenter (util-linux)"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(0x40020000) == 0 else 1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        return "this process may not make namespaces"
    return None


class Network:
    """So many machines, their lines, and a folder on which each has a disk of its own."""

    def __init__(self, count: int) -> None:
        self.numbers = range(1, count + 1)
        self._folder = tempfile.TemporaryDirectory(prefix="barnabas-faults-")
        self.disk = Path(self._folder.name)
        self._prefix = _free_prefix()
        self._bad: dict[str, dict[Way, Badness]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.machines", self._prefix, str(count), self.disk, str(DISK_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        assert told, "the machines could not be made: what is above says why"
        self._machines: dict[str, str] = json.loads(told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def address(self, number: int) -> str:
        """Of a machine."""
        return f"{self._prefix}.{number}"

    def entering(self, number: int) -> list[str]:
        """What stands before a command that is to run on a machine."""
        where = self._machines[str(number)]
        return ["nsenter", f"--net={where}/ns/net", f"--mount={where}/ns/mnt"]

    def disk_of(self, number: int) -> Path:
        """A machine's disk as it is reached from here."""
        return Path(self._machines[str(number)], "root", *self.disk.parts[1:])

    def make_bad(self, name: str, ways: Ways, port: int = 0, **how: float) -> None:
        """All these ways suffer: `loss`, `delay_s`, `jitter_s`, `twice`, `bytes_per_s`, `turns_s` (see `machines.Link`)."""
        self._bad[name] = {(*way, port): how for way in ways}
        self._tell()

    def cut(self, name: str, ways: Ways, port: int = 0) -> None:
        """Nothing gets through, of one port or of all (0)."""
        self.make_bad(name, ways, port, loss=1.0)

    def mend(self, name: str) -> None:
        """What was bad under this name is no more."""
        self._bad.pop(name, None)
        self._tell()

    def _tell(self) -> None:
        links: dict[Way, Badness] = defaultdict(dict)
        for bad in self._bad.values():
            for way, how in bad.items():
                for what, amount in how.items():
                    worse = min if what == "bytes_per_s" else max
                    links[way][what] = worse(amount, links[way].get(what, amount))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([[*way, how] for way, how in links.items()]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "\n", "the wire has ended"


def _free_prefix() -> str:
    """One of the networks of RFC 2544, which are there for tests, that nobody on this machine has now."""
    routes = {line.split()[1] for line in Path("/proc/net/route").read_text().splitlines()[1:]}
    while True:
        numbers = 198, random.choice((18, 19)), random.randrange(256), 0
        if bytes(reversed(numbers)).hex().upper() not in routes:
            return ".".join(map(str, numbers[:3]))


def between(some: Iterable[int], others: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Both ways between each of some and each of others."""
    others = list(others)
    for one in some:
        for other in others:
            if one != other:
                yield one, other
                yield other, one


def of_clients(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Both ways between these machines and the clients."""
    return between(numbers, [OUTSIDE])
