"""A cluster whose nodes run on separate machines (network namespaces), connected by links that can fail.

RULES    1. A fault of a node affects its process; its machine and disk stay.
         2. A node that is stopped by SIGSTOP is resumed before it ends.
         3. A node's exit is an error unless it is expected.
NOT HERE Kinds of nodes (`nodes.py`), links (`network.py`), the faults (`faults.py`).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from tests.faults import preload
from tests.faults.cluster_state import NO_LEADER, View, quorum_of, view_of, why_unhealthy
from tests.faults.network import Network
from tests.faults.nodes import CONTROLLER_PORT, KINDS, Node, NodeSpec
from tests.support.waiting import until

CONTROLLERS = 3
SETTINGS: dict[str, Any] = {
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 3,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "unclean.leader.election.enable": "false",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "broker.session.timeout.ms": 4000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 5000,
    "replica.socket.timeout.ms": 5000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "log.segment.bytes": 1_048_576,
}
HEALTHY_WITHIN_S = 60.0
"""The limit for recovery after the last fault; most of it is TCP's retransmission timeout."""


class Cluster:
    """`count` brokers; the first three are controllers too, or with `apart` three more nodes are dedicated controllers."""

    def __init__(self, kind: str = "barnabas", count: int = 3, *, apart: bool = False) -> None:
        self.network = Network(count + CONTROLLERS * apart)
        self.numbers = tuple(self.network.numbers)
        self.brokers = self.numbers[:count]
        self.controllers = self.numbers[count:] if apart else self.numbers[:CONTROLLERS]
        self.stopped: set[int] = set()
        """Nodes stopped by SIGSTOP."""
        self._wanted: set[int] = set()
        """Nodes whose exit is an error."""
        voters = ",".join(f"{number}@{self.network.address(number)}:{CONTROLLER_PORT}" for number in self.controllers)
        self.nodes: dict[int, Node] = {}
        self._library_folder = tempfile.TemporaryDirectory(prefix="barnabas-faults-library-")
        built = preload.libraries(Path(self._library_folder.name))
        for number in self.numbers:
            roles = ["broker"] * (number in self.brokers) + ["controller"] * (number in self.controllers)
            own = {**SETTINGS, "process.roles": ",".join(roles), "controller.quorum.voters": voters}
            network = self.network
            command_prefix = [*network.command_prefix(number), *preload.environment(built, network.disk)]
            partition = NodeSpec(
                number, network.address(number), network.disk, network.disk_of(number), command_prefix, own
            )
            self.nodes[number] = KINDS[kind](partition)

    def __enter__(self) -> Self:
        try:
            self.start(self.numbers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number, node in self.nodes.items():
            self.resume(number)
            node.kill()
            node.close()
        self.network.__exit__()
        self._library_folder.cleanup()

    @property
    def bootstrap(self) -> str:
        return ",".join(self.nodes[number].bootstrap for number in self.brokers)

    def any_bootstrap(self, rng: random.Random) -> str:
        return self.nodes[rng.choice(self.brokers)].bootstrap

    def disk_of(self, number: int) -> Path:
        """A node's disk, as a path of this host."""
        return self.network.disk_of(number)

    # ---- node operations

    def start(self, numbers: Iterable[int]) -> None:
        """Starts the nodes that are down, concurrently: a single node would wait for a quorum."""
        numbers = list(numbers)
        ended = [self.nodes[number] for number in numbers if not self.nodes[number].is_running]
        with ThreadPoolExecutor(len(ended) or 1) as pool:
            for node in ended:
                node.kill()  # reaps a process that has exited
            for started in [pool.submit(node.start) for node in ended]:
                started.result()
        self._wanted.update(numbers)

    def check_running(self) -> None:
        for number in self._wanted:
            assert self.nodes[number].is_running, f"node {number} has exited unexpectedly: its log gives the reason"

    def expect_exit(self, number: int) -> None:
        """Until its next start."""
        self._wanted.discard(number)

    def stop(self, number: int) -> None:
        """SIGTERM: controlled shutdown."""
        self.expect_exit(number)
        self.nodes[number].stop()

    def kill(self, number: int) -> None:
        self.expect_exit(number)
        self.stopped.discard(number)
        self.nodes[number].kill()

    def pause(self, number: int) -> None:
        """SIGSTOP: it keeps its connections and does not answer."""
        self.stopped.add(number)
        os.kill(self.nodes[number].pid, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        if number in self.stopped:
            self.stopped.discard(number)
            os.kill(self.nodes[number].pid, signal.SIGCONT)

    # ---- state

    def view(self) -> View:
        """Brokers and partitions, from the first node that answers."""
        found: View = until(lambda: self._ask(view_of), "a node answers Metadata", HEALTHY_WITHIN_S)
        return found

    def controller(self) -> int:
        """The quorum's leader, from the first node that answers."""

        def ask() -> int | None:
            quorum = self._ask(quorum_of)
            return None if quorum is None or quorum.leader == NO_LEADER else quorum.leader

        return until(ask, "a node names the quorum leader", HEALTHY_WITHIN_S)

    def _ask(self, what: Any) -> Any:
        for number in self.brokers:
            try:
                return what(self.nodes[number].bootstrap)
            except (OSError, EOFError):
                continue
        return None

    def wait_until_healthy(self) -> None:
        """Raises if the cluster has not recovered within HEALTHY_WITHIN_S."""
        output = ""

        def is_healthy() -> bool:
            nonlocal output
            self.check_running()
            output = why_unhealthy({number: self.nodes[number].bootstrap for number in self.brokers}, self.numbers)
            return not output

        try:
            until(is_healthy, "the cluster is healthy", HEALTHY_WITHIN_S, 0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}: {output}") from None

    def keep_logs(self, folder: Path) -> None:
        """Copy what the nodes have logged."""
        for number, node in self.nodes.items():
            if node.log_path.exists():
                shutil.copy(node.log_path, folder / f"node-{number}.log")
