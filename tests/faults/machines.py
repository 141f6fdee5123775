"""The machines of a cluster and the network between them, in one program: NETWORK COUNT FOLDER DISK_BYTES.

FORMAT   The program prints one JSON line: for each machine its directory below /proc, whose `ns/net` and `ns/mnt` are the
         arguments for nsenter(1) and whose `root` is its file system. It answers each JSON line of its input,
         [[from, to, port, {property: amount}], ...], which replaces the properties of all links, with an empty line. A link
         with a port affects only packets from or to that port; port 0 affects all packets and takes precedence.
RULES    1. Machines 1 to COUNT have the addresses NETWORK.1 and so on; 254 is the host.
         2. Each machine has a network namespace with one TUN device, and a small tmpfs mounted at FOLDER. Both vanish when the
            program ends, however it ends. It ends at the end of its input; processes on the machines end with it.
         3. A link has one direction. Packets are lost, delayed, duplicated or reordered, so TCP sees a bad link. A packet that
            would wait too long for the bandwidth is dropped, as in a router.
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
"""The longest wait for the bandwidth; packets that would wait longer are dropped."""
_AT_A_TIME = 64
_WITH_PORTS = (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
LinkKey = tuple[int, int, int]
"""From, to, port."""


class Link(NamedTuple):
    """The properties of one direction of a link."""

    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Random for each packet, so packets are reordered."""
    twice: float = 0.0
    bytes_per_s: float = 0.0
    turns_s: float = 0.0
    """All packets are lost and delivered in alternating periods of this length."""


class Machine:
    """A thread with its own network and mount namespace, which keeps them alive."""

    def __init__(self, address: str, folder: str, disk_bytes: int) -> None:
        self.tun = -1
        self.where = ""
        self._made = threading.Event()
        self._error: OSError | None = None
        threading.Thread(target=self._run, args=(address, folder, disk_bytes), daemon=True).start()
        self._made.wait()
        if self._error is not None:
            raise self._error

    def _run(self, address: str, folder: str, disk_bytes: int) -> None:
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
    """Opens a TUN device in the thread's network namespace, with this address in a /24 network."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    response = fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", b"faults%d", _TUN_WITHOUT_HEADER))
    _bring_up(response[:16].rstrip(b"\0").decode(), address)
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


class PacketForwarder:
    """Forwards packets between the TUN devices."""

    def __init__(self, tuns: dict[int, int]) -> None:
        self._tuns = tuns
        self._machines = {tun: machine for machine, tun in tuns.items()}
        self._links: dict[LinkKey, Link] = {}
        self._free_at: dict[LinkKey, float] = defaultdict(float)
        self._delayed: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def run(self) -> None:
        """Runs until the end of the input."""
        poll = select.epoll()
        for tun in self._machines:
            poll.register(tun, select.EPOLLIN)
        poll.register(sys.stdin.fileno(), select.EPOLLIN)
        output = b""
        while True:
            left_s = max(0.0, self._delayed[0][0] - time.monotonic()) if self._delayed else -1
            for ready, _ in poll.poll(left_s):
                if ready in self._machines:
                    self._read(ready)
                    continue
                echoes = os.read(ready, 65536)
                if not echoes:
                    return
                *lines, output = (output + echoes).split(b"\n")
                for line in lines:
                    self._set_links(json.loads(line))
            self._send_due()

    def _set_links(self, links: list[tuple[int, int, int, dict[str, float]]]) -> None:
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
            if packet[0] >> 4 != 4 or target not in self._tuns:  # multicast and IPv6 neighbour discovery
                continue
            path = self._impaired_link(source, target, packet) if self._links else None
            if path is None:
                self._send(target, packet)
            else:
                self._send_over(self._links[path], path, packet)

    def _impaired_link(self, source: int, target: int, packet: bytes) -> LinkKey | None:
        """The impaired link that a packet uses, if any."""
        ports = struct.unpack_from("!HH", packet, 4 * (packet[0] & 15)) if packet[9] in _WITH_PORTS else ()
        ways = ((source, target, port) for port in (0, *ports))
        return next((path for path in ways if path in self._links), None)

    def _send_over(self, link: Link, path: LinkKey, packet: bytes) -> None:
        now = time.monotonic()
        if random.random() < link.loss or (link.turns_s and int(now / link.turns_s) % 2):
            return
        if link.bytes_per_s:
            begins = max(now, self._free_at[path])
            if begins - now > _QUEUE_S:
                return
            self._free_at[path] = now = begins + len(packet) / link.bytes_per_s
        for _ in range(2 if random.random() < link.twice else 1):
            self._count += 1
            due = now + link.delay_s + random.random() * link.jitter_s
            heapq.heappush(self._delayed, (due, self._count, path[1], packet))

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            self._send(*heapq.heappop(self._delayed)[2:])

    def _send(self, target: int, packet: bytes) -> None:
        with suppress(BlockingIOError):  # the device's queue is full: the packet is lost
            os.write(self._tuns[target], packet)


def main() -> None:
    """Creates the machines, prints where they are, and forwards packets."""
    network, count, folder, disk_bytes = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    machines = {number: Machine(f"{network}.{number}", folder, disk_bytes) for number in range(1, count + 1)}
    wire = PacketForwarder(
        {OUTSIDE: open_tun(f"{network}.{OUTSIDE}")} | {number: one.tun for number, one in machines.items()}
    )
    os.nice(-10)  # forwarding needs CPU time promptly
    print(json.dumps({number: one.where for number, one in machines.items()}), flush=True)
    try:
        wire.run()
    finally:
        switch_off([one.where for one in machines.values()])


def switch_off(machines: list[str]) -> None:
    """Kills all processes on the machines."""
    networks = {os.readlink(f"{where}/ns/net") for where in machines}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(ProcessLookupError, FileNotFoundError, PermissionError):
            if os.readlink(f"/proc/{pid}/ns/net") in networks:
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
