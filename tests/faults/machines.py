"""A program that is so many machines, and the wire between them: NETWORK COUNT FOLDER DISK_BYTES.

FORMAT   It writes a line of JSON: for each machine its directory below /proc, whose `ns/net` and `ns/mnt` are what
         nsenter(1) wants, and whose `root` is its file system as seen from outside. Then each line of JSON that it reads,
         [[from, to, port, {what: how much}], ...], says how all links are, and is answered by an empty line. With a port
         only the packets suffer that go to it or come from it; port 0 is all of them, and goes first.
RULES    1. Machine 1 to COUNT have the addresses NETWORK.1 and so on; 254 is the machine on which this runs.
         2. Each has a network of its own, made of one TUN device, and a small disk of its own, mounted at FOLDER.
            Nothing of that has a name outside, and all of it is gone when this program ends, however it ends. It ends when
            nobody holds the other end of its input, and what still runs on the machines ends with it.
         3. A link is one way. What is lost, delayed, sent twice or out of order are packets, so TCP sees what it would on a
            bad line. What does not go out in time, at so many bytes a second, is lost, as in a router.
NOT HERE Which links are bad (`network.py`), what runs on a machine (`nodes.py`).
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import NamedTuple

OUTSIDE = 254
MTU = 9000
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x1001
_SET_ADDRESS, _SET_MASK, _SET_MTU, _SET_FLAGS = 0x8916, 0x891C, 0x8922, 0x8914
_UP_AND_RUNNING = 0x41
_NEW_MOUNTS, _NEW_NETWORK, _OWN_ROOT = 0x00020000, 0x40000000, 0x00000200
_PRIVATE = 0x44000
_QUEUE_S = 1.0
"""So long a packet waits where only so many bytes go out in a second; who would wait longer is lost."""
_AT_A_TIME = 64
_WITH_PORTS = (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
Way = tuple[int, int, int]
"""From, to, port."""


class Link(NamedTuple):
    """How one way of a line is."""

    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Drawn for each packet: so later ones overtake earlier ones."""
    twice: float = 0.0
    bytes_per_s: float = 0.0
    turns_s: float = 0.0
    """In turns nothing gets through for so long, and all of it."""


class Machine:
    """A thread that lives in a network and a file system of its own, and holds them."""

    def __init__(self, address: str, folder: str, disk_bytes: int) -> None:
        self.tun = -1
        self.where = ""
        self._made = threading.Event()
        self._error: OSError | None = None
        threading.Thread(target=self._live, args=(address, folder, disk_bytes), daemon=True).start()
        self._made.wait()
        if self._error is not None:
            raise self._error

    def _live(self, address: str, folder: str, disk_bytes: int) -> None:
        try:
            _call("unshare", _OWN_ROOT)
            _call("unshare", _NEW_MOUNTS | _NEW_NETWORK)
            _call("mount", b"none", b"/", None, _PRIVATE, None)
            _call("mount", b"tmpfs", folder.encode(), b"tmpfs", 0, b"size=%d" % disk_bytes)
            _bring_up("lo", "")
            self.tun = open_tun(address)
            self.where = f"/proc/{os.getpid()}/task/{threading.get_native_id()}"
        except OSError as error:
            self._error = error
        self._made.set()
        threading.Event().wait()


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def open_tun(address: str) -> int:
    """A TUN device in the network of this thread, with this address in a network of 256."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    told = fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", b"faults%d", _TUN_WITHOUT_HEADER))
    _bring_up(told[:16].rstrip(b"\0").decode(), address)
    return tun


def _bring_up(name: str, address: str) -> None:
    named = name.encode().ljust(16, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        if address:
            for command, value in ((_SET_ADDRESS, address), (_SET_MASK, "255.255.255.0")):
                where = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(any_socket, command, named + where.ljust(24, b"\0"))
            fcntl.ioctl(any_socket, _SET_MTU, named + struct.pack("=i20x", MTU))
        fcntl.ioctl(any_socket, _SET_FLAGS, named + struct.pack("=H22x", _UP_AND_RUNNING))


class Wire:
    """Carries packets from device to device."""

    def __init__(self, tuns: dict[int, int]) -> None:
        self._tuns = tuns
        self._machines = {tun: machine for machine, tun in tuns.items()}
        self._links: dict[Way, Link] = {}
        self._free_at: dict[Way, float] = defaultdict(float)
        self._later: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def run(self) -> None:
        """Carry until the input ends."""
        poll = select.epoll()
        for tun in self._machines:
            poll.register(tun, select.EPOLLIN)
        poll.register(sys.stdin.fileno(), select.EPOLLIN)
        said = b""
        while True:
            left_s = max(0.0, self._later[0][0] - time.monotonic()) if self._later else -1
            for ready, _ in poll.poll(left_s):
                if ready in self._machines:
                    self._read(ready)
                    continue
                heard = os.read(ready, 65536)
                if not heard:
                    return
                *lines, said = (said + heard).split(b"\n")
                for line in lines:
                    self._hear(json.loads(line))
            self._send_what_is_due()

    def _hear(self, links: list[tuple[int, int, int, dict[str, float]]]) -> None:
        self._links = {(source, target, port): Link(**how) for source, target, port, how in links}
        self._free_at.clear()
        print(flush=True)

    def _read(self, tun: int) -> None:
        source = self._machines[tun]
        for _ in range(_AT_A_TIME):
            try:
                packet = os.read(tun, MTU)
            except BlockingIOError:
                return
            target = packet[19]
            if packet[0] >> 4 != 4 or target not in self._tuns:  # multicast, and what IPv6 asks its neighbours
                continue
            way = self._way(source, target, packet) if self._links else None
            if way is None:
                self._send(target, packet)
            else:
                self._send_over(self._links[way], way, packet)

    def _way(self, source: int, target: int, packet: bytes) -> Way | None:
        """The link that a packet has to take."""
        ports = struct.unpack_from("!HH", packet, 4 * (packet[0] & 15)) if packet[9] in _WITH_PORTS else ()
        ways = ((source, target, port) for port in (0, *ports))
        return next((way for way in ways if way in self._links), None)

    def _send_over(self, link: Link, way: Way, packet: bytes) -> None:
        now = time.monotonic()
        if random.random() < link.loss or (link.turns_s and int(now / link.turns_s) % 2):
            return
        if link.bytes_per_s:
            begins = max(now, self._free_at[way])
            if begins - now > _QUEUE_S:
                return
            self._free_at[way] = now = begins + len(packet) / link.bytes_per_s
        for _ in range(2 if random.random() < link.twice else 1):
            self._count += 1
            due = now + link.delay_s + random.random() * link.jitter_s
            heapq.heappush(self._later, (due, self._count, way[1], packet))

    def _send_what_is_due(self) -> None:
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._send(*heapq.heappop(self._later)[2:])

    def _send(self, target: int, packet: bytes) -> None:
        with suppress(BlockingIOError):  # its queue is full: lost, as in any network
            os.write(self._tuns[target], packet)


def main() -> None:
    """Make the machines, say where they are, carry."""
    network, count, folder, disk_bytes = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    machines = {number: Machine(f"{network}.{number}", folder, disk_bytes) for number in range(1, count + 1)}
    wire = Wire({OUTSIDE: open_tun(f"{network}.{OUTSIDE}")} | {number: one.tun for number, one in machines.items()})
    os.nice(-10)  # a wire does not wait for processor time
    print(json.dumps({number: one.where for number, one in machines.items()}), flush=True)
    try:
        wire.run()
    finally:
        switch_off([one.where for one in machines.values()])


def switch_off(machines: list[str]) -> None:
    """End all that runs on them."""
    networks = {os.readlink(f"{where}/ns/net") for where in machines}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(ProcessLookupError, FileNotFoundError, PermissionError):
            if os.readlink(f"/proc/{pid}/ns/net") in networks:
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
