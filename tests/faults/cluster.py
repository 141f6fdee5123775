"""A cluster of nodes on machines of their own, with lines between them.

RULES    1. What is done to a node is done to its process; its machine stays, with its disk.
         2. A node that is stopped (SIGSTOP) is let go on before it ends.
         3. A node does not end unless it is asked to, or its disk is not well.
NOT HERE Kinds of nodes (`nodes.py`), lines (`network.py`), what happens when (`faults.py`).
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
from types import TracebackType
from typing import Any, Self

from tests.faults import libraries
from tests.faults.network import Network
from tests.faults.nodes import CONTROLLER_PORT, KINDS, Node, Place
from tests.faults.views import NOBODY, View, quorum_of, view_of, why_not_whole
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
WHOLE_WITHIN_S = 60.0
"""So long after the last fault is mended a cluster may take to be whole. Most of it are lines whose TCP waits."""


class Cluster:
    """So many brokers, of which the first three are controllers too; or three more nodes are controllers, and only that."""

    def __init__(self, kind: str = "barnabas", count: int = 3, *, apart: bool = False) -> None:
        self.network = Network(count + CONTROLLERS * apart)
        self.numbers = tuple(self.network.numbers)
        self.brokers = self.numbers[:count]
        self.controllers = self.numbers[count:] if apart else self.numbers[:CONTROLLERS]
        self.stopped: set[int] = set()
        """Whose process is stopped by SIGSTOP."""
        self._wanted: set[int] = set()
        """Who has no reason to end."""
        voters = ",".join(f"{number}@{self.network.address(number)}:{CONTROLLER_PORT}" for number in self.controllers)
        self.nodes: dict[int, Node] = {}
        self._library_folder = tempfile.TemporaryDirectory(prefix="barnabas-faults-library-")
        built = libraries.libraries(Path(self._library_folder.name))
        for number in self.numbers:
            roles = ["broker"] * (number in self.brokers) + ["controller"] * (number in self.controllers)
            own = {**SETTINGS, "process.roles": ",".join(roles), "controller.quorum.voters": voters}
            network = self.network
            entering = [*network.entering(number), *libraries.environment(built, network.disk)]
            place = Place(number, network.address(number), network.disk, network.disk_of(number), entering, own)
            self.nodes[number] = KINDS[kind](place)

    def __enter__(self) -> Self:
        try:
            self.start(self.numbers)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, node in self.nodes.items():
            self.go_on(number)
            node.kill()
            node.close()
        self.network.__exit__(kind, error, trace)
        self._library_folder.cleanup()

    @property
    def bootstrap(self) -> str:
        """Where clients find the nodes."""
        return ",".join(self.nodes[number].bootstrap for number in self.brokers)

    def any_bootstrap(self, dice: random.Random) -> str:
        """Where some broker is found."""
        return self.nodes[dice.choice(self.brokers)].bootstrap

    def disk_of(self, number: int) -> Path:
        """A node's disk as it is reached from here."""
        return self.network.disk_of(number)

    # ---- what is done to nodes

    def start(self, numbers: Iterable[int]) -> None:
        """Start those that do not run, at the same time: one alone would wait for the others."""
        numbers = list(numbers)
        ended = [self.nodes[number] for number in numbers if not self.nodes[number].is_running]
        with ThreadPoolExecutor(len(ended) or 1) as pool:
            for node in ended:
                node.kill()  # what an end that nobody asked for leaves
            for started in [pool.submit(node.start) for node in ended]:
                started.result()
        self._wanted.update(numbers)

    def look(self) -> None:
        """Rule 3."""
        for number in self._wanted:
            assert self.nodes[number].is_running, f"node {number} has ended, and nobody asked it to: its log says why"

    def may_end(self, number: int) -> None:
        """Until it is started again."""
        self._wanted.discard(number)

    def stop(self, number: int) -> None:
        """SIGTERM, and it has time to hand over."""
        self.may_end(number)
        self.nodes[number].stop()

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self.may_end(number)
        self.stopped.discard(number)
        self.nodes[number].kill()

    def pause(self, number: int) -> None:
        """SIGSTOP: it holds its connections and says nothing."""
        self.stopped.add(number)
        os.kill(self.nodes[number].pid, signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """SIGCONT."""
        if number in self.stopped:
            self.stopped.discard(number)
            os.kill(self.nodes[number].pid, signal.SIGCONT)

    # ---- what is known of it

    def view(self) -> View:
        """What some node says."""
        return until(lambda: self._ask(view_of), "a node says who leads what", WHOLE_WITHIN_S)

    def controller(self) -> int:
        """Who leads the quorum, as some node says."""

        def ask() -> int | None:
            quorum = self._ask(quorum_of)
            return None if quorum is None or quorum.leader == NOBODY else quorum.leader

        return until(ask, "a node says who leads the quorum", WHOLE_WITHIN_S)

    def _ask(self, what: Any) -> Any:
        for number in self.brokers:
            try:
                return what(self.nodes[number].bootstrap)
            except (OSError, EOFError):
                continue
        return None

    def wait_until_whole(self) -> None:
        """All is as it was before anything happened, within a bounded time."""
        said = ""

        def is_whole() -> bool:
            nonlocal said
            self.look()
            said = why_not_whole({number: self.nodes[number].bootstrap for number in self.brokers}, self.numbers)
            return not said

        try:
            until(is_whole, "the cluster is whole", WHOLE_WITHIN_S, 0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}: {said}") from None

    def keep_logs(self, folder: Path) -> None:
        """Copy what the nodes have logged."""
        for number, node in self.nodes.items():
            if node.log_path.exists():
                shutil.copy(node.log_path, folder / f"node-{number}.log")
