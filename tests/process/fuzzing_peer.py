"""Malicious peers beside working clients: the clients must not notice, and nothing may leak.

    python -m tests.process.fuzzing_peer --minutes 5 [--seed N]        or: make fuzz MINUTES=5

RULES    1. The peers run random acts of `malicious_peer.py` beside the clients of `working_clients.py`. One peer uses the
            controller's listener. No peer knows the clients' topics and groups, or the cluster id, and none unregisters a
            broker. When the clients are done, the peers may do so, and may also use the offsets topic and broker 2.
         2. At intervals the peers' topics are deleted, and the daemon is measured: its own memory (without mapped files), open
            files and sockets.
         3. Afterwards the daemon runs, its log has no internal error, it exits with 0, and the clients' records are complete
            after a start that recovers every log.
         4. Peers also use listeners with TLS and SASL (`secured_peer.py`), beside clients that use them.
         5. The seed determines the acts of each peer, not their interleaving.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from barnabas.embedded import Broker
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import metadata
from protocol.messages.admin import CreateTopicsRequest, DeleteTopicsRequest
from protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from protocol.records import crc_is_valid, headers
from storage.directories.log_directory import CLEAN_SHUTDOWN
from tests.conformance.brokers import EARLIEST, offset_at
from tests.process.malicious_peer import MaliciousPeer, Served, served_by, try_everything, well_formed
from tests.process.secured_peer import (
    PROTOCOLS,
    SecuredListeners,
    SecuredPeer,
    log_in_as_worker,
    secured_listeners,
    try_every_act,
)
from tests.process.working_clients import CLIENTS, PARTITIONS, Client, KafkaPython, Librdkafka, work
from tests.support import loading
from tests.support.controller_listener import WITH_CONTROLLER, controller_of
from tests.support.follower import Follower
from tests.support.loading import create, fetch_request
from tests.support.raw_client import RawClient
from tests.support.sample_requests import OFFSETS_TOPIC, TOPICS
from tests.support.seeds import run_options
from tests.support.waiting import until

LAST_WORDS = 4000
PEERS = 3
SWEEP_S = 2.0
WARM_UP = 0.3
"""The part of the samples that may grow: code is compiled, tables find their size."""

MIB = 1024 * 1024
GROWTH_LIMIT_BYTES = 32 * MIB
"""Of the daemon's own memory, from the middle of the run to its end, whatever its length. What malloc keeps of large
buffers that were freed moves by a dozen MiB; a hundred bytes for each connection of five minutes would be as much."""

ENOUGH_SAMPLES = 30
"""With fewer the run is all warm-up, and only the ceiling is held against it."""

CEILING_BYTES = 192 * MIB
RECKLESS_REQUESTS = 500
OFFSETS_PARTITIONS = 4
_FETCH_VERSION = 11
_TAKEN_AWAY = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""A peer has moved a partition of the offsets topic to broker 2, or deleted the topic."""
FOUND = (("plain", "delete"), ("compacted", "compact"))
"""Topics that the peers find, of two partitions each, and their cleanup policies."""

_FAULT = re.compile(r"fault|Traceback|Error\b|ERROR|CRITICAL|[Ee]xception")
SETTINGS = {
    **WITH_CONTROLLER,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
    "log.segment.delete.delay.ms": 0,
}


def secured_broker(folder: Path, data_dir: Path | None = None) -> tuple[Broker, SecuredListeners]:
    """A broker that is not started, with certificates in a folder."""
    listeners = secured_listeners(folder, WITH_CONTROLLER["listeners"])
    return Broker(data_dir, settings={**SETTINGS, **listeners.settings}, arguments=listeners.arguments), listeners


class Sample(NamedTuple):
    """One measurement of the daemon."""

    second: float
    own_bytes: int
    files: int
    sockets: int


def open_in(pid: int) -> list[str]:
    """The open files of a process."""
    open_now = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            open_now.append(os.readlink(link))
        except FileNotFoundError:
            continue  # closed meanwhile
    return sorted(open_now)


def look_at(pid: int, started: float) -> Sample:
    """Measures the daemon."""
    status = Path(f"/proc/{pid}/status").read_text()
    (own_kib,) = re.findall(r"RssAnon:\s+(\d+) kB", status)
    open_now = open_in(pid)
    sockets = sum(1 for target in open_now if target.startswith("socket:"))
    return Sample(time.monotonic() - started, int(own_kib) * 1024, len(open_now) - sockets, sockets)


def growth(samples: list[Sample]) -> int:
    """The growth from the first third after the warm-up to the last third."""
    warm = samples[int(len(samples) * WARM_UP) :]
    third = max(len(warm) // 3, 1)
    before, after = ([sample.own_bytes for sample in part] for part in (warm[:third], warm[-third:]))
    return int(statistics.median(after) - statistics.median(before))


class Run:
    """One broker with its clients and peers."""

    def __init__(self, broker: Broker, secured: SecuredListeners, seed: int) -> None:
        self.broker = broker
        self.secured = secured
        self.seed = seed
        self.started = time.monotonic()
        self.over = threading.Event()
        self.samples: list[Sample] = []
        self.acts: Counter[str] = Counter()
        self.records: dict[str, int] = {}
        self.controller = controller_of(broker)
        addresses = [broker.bootstrap] * PEERS + [self.controller]
        self.peers = [
            MaliciousPeer(address, _without_unregister(served_by(address)), seed + number)
            for number, address in enumerate(addresses)
        ]
        served = self.peers[0].served
        self.secured_peers = [
            SecuredPeer(secured, protocol, served, seed + len(addresses) + number)
            for number, protocol in enumerate(PROTOCOLS)
        ]
        self.clients: dict[str, Callable[[str], Client]] = {
            name: lambda topic, make=make: make(broker.bootstrap, topic) for name, make in CLIENTS.items()
        } | {
            "librdkafka-secured": lambda topic: Librdkafka("", topic, secured.librdkafka()),
            "kafka-python-secured": lambda topic: KafkaPython("", topic, secured.kafka_python()),
        }
        self.own_topics = {f"of-{name}": name for name in self.clients}
        self.logs = len(self.clients) * PARTITIONS + OFFSETS_PARTITIONS + 2 * len(FOUND)
        """What may be open at the end and was not at the start: a file each."""

    def go(self, seconds: float) -> None:
        """Runs everything; any error is an exception."""
        with RawClient(self.broker.bootstrap) as admin:
            create(admin, *self.own_topics, partitions=PARTITIONS)
            admin.ask(
                metadata.FindCoordinatorRequest(key_type=0, coordinator_keys=["any"]), 4
            )  # makes the offsets topic
            self._sweep(admin)
            at_rest = self._look()
            for peer in (self.peers[0], self.peers[-1]):
                try_everything(peer)  # so that no codec is made for the first time later
            for peer in self.secured_peers:
                try_every_act(peer)
            with ThreadPoolExecutor(len(self.clients) + len(self.peers) + len(self.secured_peers)) as pool:
                working = self._start(pool)
                try:
                    self._watch(admin, seconds, list(working.values()))
                finally:
                    self.over.set()
            self.records = {name: future.result() for name, future in working.items() if name in self.clients}
            for peer in (*self.peers, *self.secured_peers):
                peer.close()
            self._sweep(admin)
            until(lambda: self._look().sockets <= at_rest.sockets, "every connection of the others is gone")
            until(lambda: self._look().files <= at_rest.files + self.logs, "every file is closed that was opened")
            until(lambda: not self._deleted(), "no file is open that was deleted")
            self.samples.append(self._look())
            self._be_reckless(admin)
            assert admin.ask(metadata.ApiVersionsRequest(), 0).error_code == 0
            log_in_as_worker(self.secured)
        assert self.broker.is_running
        assert max(sample.own_bytes for sample in self.samples) <= CEILING_BYTES, self.report()
        assert len(self.samples) < ENOUGH_SAMPLES or growth(self.samples) <= GROWTH_LIMIT_BYTES, self.report()

    def report(self) -> str:
        """The results so far."""
        first, last = self.samples[0], self.samples[-1]
        acts = ", ".join(f"{count} {name}" for name, count in sorted(self.acts.items()))
        records = ", ".join(f"{count} {name}" for name, count in self.records.items())
        memory = " ".join(f"{sample.own_bytes / MIB:.1f}" for sample in self.samples[:: len(self.samples) // 20 + 1])
        return "\n".join((
            f"seed {self.seed}, {last.second:.0f} s, {self.acts.total()} acts: {acts}",
            f"records of each partition, written and read: {records}; {self.broker.log().count(chr(10))} lines of log",
            f"own memory, MiB: {memory}; from the middle to the end {growth(self.samples) / 1024:+.0f} KiB",
            f"files {first.files} at first, {last.files} at the end; sockets {first.sockets} and {last.sockets}",
        ))  # fmt: skip

    # ------------------------------------------------------------ the clients and the peers
    def _start(self, pool: ThreadPoolExecutor) -> dict[str, Future[int]]:
        working: dict[str, Future[int]] = {}
        for topic, name in self.own_topics.items():
            working[name] = pool.submit(work, partial(self.clients[name], topic), self.seed, self.over)
        for number, peer in enumerate((*self.peers, *self.secured_peers)):
            working[f"malicious peer {number}"] = pool.submit(self._run_acts, peer)
        return working

    def _run_acts(self, peer: MaliciousPeer) -> int:
        acts, weights = list(peer.acts), list(peer.acts.values())
        count = 0
        while not self.over.is_set():
            (act,) = peer.rng.choices(acts, weights)
            act(peer)
            self.acts[act.__name__] += 1
            count += 1
        return count

    def _be_reckless(self, admin: RawClient) -> None:
        """The clients are done: the peers may now disturb what the clients used."""
        cluster_id = admin.ask(metadata.DescribeClusterRequest(), 1).cluster_id
        with Follower(self.broker.bootstrap, self.controller, cluster_id) as follower:
            assert follower.register().error_code == 0
            assert follower.heartbeat().error_code == 0
            for peer in (self.peers[0], self.peers[-1]):
                peer.served = served_by(peer.bootstrap)
                peer.drawer.topics = (*TOPICS, OFFSETS_TOPIC, OFFSETS_TOPIC)
                peer.drawer.cluster_ids.append(cluster_id)
                peer.drawer.broker_epochs.append(follower.epoch)
                for _ in range(RECKLESS_REQUESTS):
                    well_formed(peer)

    # ------------------------------------------------------------ watching
    def _watch(self, admin: RawClient, seconds: float, working: list[Future[int]]) -> None:
        while time.monotonic() - self.started < seconds and not any(future.done() for future in working):
            self.over.wait(SWEEP_S)
            self._sweep(admin)
            self.samples.append(self._look())

    def _deleted(self) -> list[str]:
        data = str(self.broker.data_dir)
        return [path for path in open_in(self.broker.pid) if path.startswith(data) and path.endswith("(deleted)")]

    def _look(self) -> Sample:
        return look_at(self.broker.pid, self.started)

    def _sweep(self, admin: RawClient) -> None:
        """Deletes the peers' topics, and creates the ones that they expect."""
        kept = {*self.own_topics, OFFSETS_TOPIC}
        made = [
            topic.name
            for topic in admin.ask(metadata.MetadataRequest(topics=None), 12).topics
            if topic.name not in kept
        ]
        admin.ask(DeleteTopicsRequest(topic_names=made, timeout_ms=30_000), 5)
        groups = {group.group_id for group in admin.ask(ListGroupsRequest(), 4).groups}
        mine = {f"group-of-{topic}" for topic in self.own_topics}
        admin.ask(DeleteGroupsRequest(groups_names=sorted(groups - mine)), 2)
        ids = [created_again(admin, name, policy) for name, policy in FOUND]
        for peer in self.peers:
            peer.drawer.topic_ids = [bytes(16), *ids]


def _without_unregister(served: list[Served]) -> list[Served]:
    """A client that asks for metadata while the only broker is unregistered gets none, and reports that all are down."""
    return [api for api in served if api[0] != ApiKey.UNREGISTER_BROKER]


def created_again(admin: RawClient, name: str, policy: str) -> bytes:
    """The id of a new topic. A peer may create one of this name at any time, which is deleted."""

    def attempt() -> bytes | None:
        wanted = loading.topic(name, 2, configs=[("cleanup.policy", policy)])
        (made,) = admin.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 7).topics
        if made.error_code == ErrorCode.NONE:
            return bytes(made.topic_id)
        assert made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS, made
        admin.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 5)
        return None

    return until(attempt, f"topic {name} is created")


def faults(log: str) -> list[str]:
    """Lines of the daemon's log that must not occur; closed peers are expected."""
    return [line for line in log.splitlines() if _FAULT.search(line) and " closing " not in line]


def end_of(client: RawClient, topic: str, index: int) -> int:
    """The end of a partition that is read from its start, with all its batches checked."""
    end: int = offset_at(client, topic, EARLIEST, index).offset
    while True:
        request = fetch_request(_FETCH_VERSION, {(topic, b"", index): end})
        (answer,) = client.ask(request, _FETCH_VERSION).responses[0].partitions
        assert answer.error_code == ErrorCode.NONE, f"{topic}-{index} at {end}: {answer.error_code}"
        data = answer.records or b""
        batches = headers(data)
        assert batches or end == answer.high_watermark, f"{topic}-{index} ends at {end}, not at {answer.high_watermark}"
        if not batches:
            return end
        for position, header in batches:
            assert crc_is_valid(data, position, header), f"{topic}-{index} at {header.base_offset}"
            assert header.base_offset >= end, f"{topic}-{index}: {header.base_offset} after {end}"
            end = header.next_offset


def run(broker: Broker, secured: SecuredListeners, seed: int, seconds: float) -> str:
    """Runs on a started broker, and stops it; returns the results."""
    this = Run(broker, secured, seed)
    try:
        this.go(seconds)
    except BaseException as error:
        error.add_note(f"The end of the broker's log:\n{broker.log()[-LAST_WORDS:]}")
        if broker.is_running:
            error.add_note("Open in the broker:\n" + "\n".join(open_in(broker.pid)))
        raise
    report = this.report()
    broker.stop()
    (broker.data_dir / CLEAN_SHUTDOWN).unlink()
    broker.start()
    with RawClient(broker.bootstrap) as client:
        for topic, name in this.own_topics.items():
            ends = [end_of(client, topic, index) for index in range(PARTITIONS)]
            assert ends == [this.records[name]] * PARTITIONS, f"{topic} ends at {ends}"
        for index in range(OFFSETS_PARTITIONS):
            if offset_at(client, OFFSETS_TOPIC, EARLIEST, index).error_code not in _TAKEN_AWAY:
                end_of(client, OFFSETS_TOPIC, index)
    broker.stop()
    assert not faults(broker.log()), "\n".join(faults(broker.log())[:20])
    return report


def main() -> None:
    """Runs for some minutes, prints the results."""
    options = run_options("Malicious peers beside working clients.", minutes=5.0)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        broker, secured = secured_broker(Path(folder))
        stack.enter_context(broker)
        try:
            print(run(broker, secured, options.seed, options.minutes * 60))
        except BaseException:
            kept = Path(tempfile.mkdtemp(prefix="barnabas-fuzzed-"), "broker.log")
            kept.write_text(broker.log())
            print(f"The broker's log is {kept}.", file=sys.stderr)
            raise


if __name__ == "__main__":
    main()
