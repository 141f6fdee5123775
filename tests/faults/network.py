"""The network between nodes and clients, and its impairments.

RULES    1. Several impairments exist at a time; a link has the worst value of each property.
         2. The clients are machine `OUTSIDE`; a cut between nodes does not affect the clients unless it names them.
         3. An impairment of one port affects the packets from and to that port.
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
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.faults.machines import OUTSIDE, LinkKey

ROOT = Path(__file__).parents[2]
DISK_BYTES = 192 * 1024 * 1024
Impairment = dict[str, float]
Links = Iterable[tuple[int, int]]


def why_no_namespaces() -> str | None:
    """Why this host cannot create the machines; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces and mounts need root"
    if shutil.which("nsenter") is None:
        return "there is no nsenter (util-linux)"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(0x40020000) == 0 else 1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        return "this process may not create namespaces"
    return None


class Network(AbstractContextManager["Network"]):
    """The machines, their links, and a folder at which each has its own disk."""

    def __init__(self, count: int) -> None:
        self.numbers = range(1, count + 1)
        self._folder = tempfile.TemporaryDirectory(prefix="barnabas-faults-")
        self.disk = Path(self._folder.name)
        self._prefix = _free_prefix()
        self._impairments: list[dict[LinkKey, Impairment]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.machines", self._prefix, str(count), self.disk, str(DISK_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        response = self._process.stdout.readline()
        assert response, "the machines were not created: the reason is above"
        self._machines: dict[str, str] = json.loads(response)

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def address(self, number: int) -> str:
        return f"{self._prefix}.{number}"

    def command_prefix(self, number: int) -> list[str]:
        """The words before a command that runs on a machine."""
        where = self._machines[str(number)]
        return ["nsenter", f"--net={where}/ns/net", f"--mount={where}/ns/mnt"]

    def disk_of(self, number: int) -> Path:
        """A machine's disk, as a path of this host."""
        return Path(self._machines[str(number)], "root", *self.disk.parts[1:])

    @contextmanager
    def degrade(self, ways: Links, port: int = 0, **how: float) -> Iterator[None]:
        """Sets `loss`, `delay_s`, `jitter_s`, `twice`, `bytes_per_s` or `turns_s` of these links (`machines.Link`)."""
        impairment = {(*link, port): how for link in ways}
        self._impairments.append(impairment)
        self._send_links()
        yield
        self._impairments.remove(impairment)
        self._send_links()

    def cut(self, ways: Links, port: int = 0) -> AbstractContextManager[None]:
        """Drops all packets, of one port or of all (0)."""
        return self.degrade(ways, port, loss=1.0)

    def _send_links(self) -> None:
        links: dict[LinkKey, Impairment] = defaultdict(dict)
        for bad in self._impairments:
            for link, how in bad.items():
                for what, amount in how.items():
                    worse = min if what == "bytes_per_s" else max
                    links[link][what] = worse(amount, links[link].get(what, amount))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([[*link, how] for link, how in links.items()]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "\n", "the packet forwarder has ended"


def _free_prefix() -> str:
    """An unused network of RFC 2544, which are reserved for tests."""
    routes = {line.split()[1] for line in Path("/proc/net/route").read_text().splitlines()[1:]}
    while True:
        numbers = 198, random.choice((18, 19)), random.randrange(256), 0
        if bytes(reversed(numbers)).hex().upper() not in routes:
            return ".".join(map(str, numbers[:3]))


def between(some: Iterable[int], others: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Both directions between each of some and each of others."""
    others = list(others)
    for one in some:
        for other in others:
            if one != other:
                yield one, other
                yield other, one


def of_clients(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Both directions between these machines and the clients."""
    return between(numbers, [OUTSIDE])
