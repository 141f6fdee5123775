"""A client that sends any request of Kafka's protocol to the node that answers it.

RULES    1. Versions of requests are negotiated by kafka-python; an API that the cluster lacks raises Refused.
         2. A coordinator or controller that moves is looked up again until the timeout; a leader likewise. Coordinators that
            still load are asked again until then. One whose node does not answer is looked up again for `FAILOVER_S`: the
            cluster elects another one.
         3. A request that any node answers is sent to another one, if a node does not answer.
         4. Coordinators are remembered until one of them has moved or does not answer.
         5. One connection to each node that is asked; its thread is kafka-python's.
         6. A text longer than a string may be is not sent: brokers close the connection then, as if they were down.
NOT HERE The meaning of responses (the other modules of this package), client settings (the caller).
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from barnabas.admin.errors import Refused, check
from barnabas.client.topic_partition import TopicPartition
from barnabas.client.wire import MAX_TEXT_BYTES

DEFAULT_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.1
FAILOVER_S = 15.0
"""Longer than a cluster needs to see that a node was killed."""
FIND_BATCH = 1000
GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""
_MOVED = {5, 6, 14, 15, 16, 41, 51}
"""LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR,
NOT_CONTROLLER, CONCURRENT_TRANSACTIONS: look up the node again."""
_LOADING = {14, 15}
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE: of a node that lists what its coordinators have."""
_LEADER_MOVED = _MOVED | {3}
"""And UNKNOWN_TOPIC_OR_PARTITION: the leader that the metadata name may not know a new topic yet."""
_MAX_RESPONSE_BYTES = 100_000_000

logging.getLogger("kafka").setLevel(logging.CRITICAL)  # otherwise its warnings are printed between the rows


class Unreachable(Refused):
    """A node does not answer."""


class Client:
    """Connections to the nodes of a cluster; close it, or use it in a `with` block."""

    def __init__(self, settings: Mapping[str, Any], timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """`settings` are kafka-python's keyword arguments. Raises Refused if no node answers in time."""
        self.timeout_s = timeout_s
        self._unreachable: set[int] = set()
        """Nodes that did not answer: asked last."""
        self._coordinators: dict[tuple[int, str], int] = {}
        """By key type and key; emptied when one of them has moved or does not answer."""
        self._net = NetworkSelector()
        timeout_ms = int(timeout_s * 1000)
        limits = {"request_timeout_ms": timeout_ms, "receive_message_max_bytes": _MAX_RESPONSE_BYTES}
        self._manager = KafkaConnectionManager(self._net, **{"client_id": "barnabas", **limits, **settings})
        self._net.start()
        try:
            self._manager.bootstrap(timeout_ms)
        except kafka_errors.KafkaError as failure:
            self.close()
            raise Refused(f"The cluster does not answer: {_text(failure)}.") from failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and ends the thread."""
        self._manager.close()
        self._net.close()

    def node_ids(self) -> list[int]:
        """Returns the ids of all brokers, sorted."""
        return sorted(broker.node_id for broker in self._manager.cluster.brokers())

    def ask(self, request: Any, node: int | None = None) -> Any:
        """Sends a request to a node, by default to any, and returns the response. Raises Refused (rule 3)."""
        if node is not None:
            return self._ask(request, node)
        asked: set[int] = set()
        while True:
            any_node = self._any_node(asked)
            try:
                return self._ask(request, any_node)
            except Unreachable:
                asked.add(any_node)
                self._unreachable.add(any_node)
                if asked.issuperset(self.node_ids()):
                    raise

    def _any_node(self, asked: set[int]) -> Any:
        """One that was not asked yet."""
        found = self._manager.least_loaded_node()
        left = [node for node in self.node_ids() if node not in asked]
        if left and (found in asked or found in self._unreachable):
            return min(left, key=lambda node: (node in self._unreachable, node))
        return found

    def _ask(self, request: Any, node: int) -> Any:
        kind = type(request).__name__.removesuffix("Request")
        _check_texts(request.to_dict(), kind)
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                return self._manager.run(self._send, request, node)
            except kafka_errors.NodeNotReadyError as failure:
                if time.monotonic() > deadline:
                    raise self._unreachable_error(node, "its connection fails") from failure
                time.sleep(RETRY_PAUSE_S)
            except kafka_errors.IncompatibleBrokerVersion as failure:
                raise Refused(
                    f"The cluster is too old: it does not know {kind}.", 35, "UNSUPPORTED_VERSION"
                ) from failure
            except kafka_errors.UnknownBrokerIdError as failure:
                raise Refused(f"The cluster has no broker {node} now.") from failure
            except kafka_errors.KafkaError as failure:
                raise self._unreachable_error(node, _text(failure)) from failure
            except (struct.error, OverflowError) as failure:
                raise Refused(f"A value does not fit its field in {kind}: {failure}.") from failure

    async def _send(self, request: Any, node: int) -> Any:
        await self._manager.get_connection(node)  # if the request waited for it, an error of its encoding would be lost
        return await self._manager.send(request, node_id=node)

    def _unreachable_error(self, node: int, reason: str) -> Unreachable:
        """The error of a node that does not answer, with the address that it advertises."""
        found = self._manager.cluster.broker_metadata(node)
        if found is None:
            return Unreachable(f"The cluster stopped answering: {reason}.")
        advice = "if that address is wrong from here, change its advertised.listeners"
        return Unreachable(f"Node {node} does not answer at {found.host}:{found.port} ({reason}); {advice}.")

    def ask_controller(self, request: Any) -> Any:
        """Sends a request to the controller; in a KRaft cluster to any broker, which forwards it."""
        return self._ask_moving(request, self._controller)

    def ask_coordinator(self, request: Any, key: str, kind: int = GROUP) -> Any:
        """Sends a request to the coordinator of a group or a transactional id."""
        return self._ask_moving(request, lambda: self.coordinator(key, kind))

    def ask_loaded(self, request: Any, node: int) -> Any:
        """Sends a request to a node, and again while its coordinators load (rule 2). Raises Refused."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            response = self.ask(request, node)
            if response.error_code not in _LOADING or time.monotonic() > deadline:
                return response
            time.sleep(RETRY_PAUSE_S)

    def _ask_moving(self, request: Any, find: Callable[[], int]) -> Any:
        """Asks the node that `find` returns, again while it answers that it is the wrong one (rule 2)."""
        started = time.monotonic()
        deadline = started + self.timeout_s
        while True:
            try:
                response = self.ask(request, find())
            except Unreachable as failure:
                self._coordinators.clear()
                self._wait_for_failover(started, failure)
                continue
            if time.monotonic() > deadline or not _MOVED.intersection(_codes(response.to_dict())):
                return response
            self._coordinators.clear()
            time.sleep(RETRY_PAUSE_S)

    def _wait_for_failover(self, started_s: float, failure: Unreachable) -> None:
        """Pauses before the node is looked up again; after FAILOVER_S or the timeout it raises the failure (rule 2)."""
        if time.monotonic() - started_s > min(FAILOVER_S, self.timeout_s):
            raise failure
        time.sleep(RETRY_PAUSE_S)

    def _controller(self) -> int:
        return int(self.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False)).controller_id)

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """Returns the node id of the coordinator of a group or a transactional id. Raises Refused."""
        known = self._coordinators.get((kind, key))
        if known is not None and known in self.node_ids():
            return known
        subject = f"{'group' if kind == GROUP else 'transactional id'} {key}"
        deadline = time.monotonic() + self.timeout_s
        while True:
            response = self.ask(FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]))
            found = response.coordinators[0] if response.coordinators else response
            if found.error_code not in _MOVED or time.monotonic() > deadline:
                check(
                    found.error_code,
                    found.error_message,
                    f"find the coordinator of {subject}",
                    f"Describe on {subject}",
                )
                self._coordinators[kind, key] = int(found.node_id)
                return int(found.node_id)
            time.sleep(RETRY_PAUSE_S)

    def coordinators(self, groups: Iterable[str]) -> dict[str, int]:
        """Returns the node ids of the coordinators of groups by group, without those that the cluster does not find now.

        A request asks for up to FIND_BATCH of them (KIP-699). From a cluster that is too old for it, there is none.
        """
        order = list(dict.fromkeys(groups))
        left = [name for name in order if (GROUP, name) not in self._coordinators]
        for at in range(0, len(left), FIND_BATCH):
            keys = left[at : at + FIND_BATCH]
            try:
                response = self.ask(FindCoordinatorRequest(key_type=GROUP, coordinator_keys=keys, min_version=4))
            except Refused:
                break
            for found in response.coordinators:
                if not found.error_code:
                    self._coordinators[GROUP, found.key] = int(found.node_id)
        return {name: self._coordinators[GROUP, name] for name in order if (GROUP, name) in self._coordinators}

    def metadata(self, topics: Iterable[str] | None = None) -> Any:
        """Returns the Metadata response for these topics; None: for all."""
        wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        return self.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Returns the partitions of each leader. Raises Refused for a partition without one."""
        wanted = list(partitions)
        leaders: dict[TopicPartition, int] = {}
        for topic in self.metadata({tp.topic for tp in wanted}).topics:
            check(topic.error_code, None, f"find topic {topic.name}", f"Describe on topic {topic.name}")
            leaders |= {
                TopicPartition(topic.name, found.partition_index): found.leader_id for found in topic.partitions
            }
        found_by_leader: dict[int, list[TopicPartition]] = {}
        for tp in wanted:
            if tp not in leaders:
                raise Refused(f"Topic {tp.topic} has no partition {tp.partition}.", 3, "UNKNOWN_TOPIC_OR_PARTITION")
            if leaders[tp] < 0:
                raise Refused(f"Partition {tp} has no leader now: try again.", 5, "LEADER_NOT_AVAILABLE")
            found_by_leader.setdefault(leaders[tp], []).append(tp)
        return found_by_leader

    def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        make: Callable[[list[TopicPartition]], Any],
    ) -> list[tuple[TopicPartition, Any]]:
        """Asks the leaders of partitions, and again those whose leader moved (rule 2).

        Args:
            partitions: The partitions.
            make: Makes the request for some partitions; its response lists topics with name and partitions.

        Returns:
            Each partition with its part of the response, in the order of the arguments.
        """
        order = list(partitions)
        left = set(order)
        found: dict[TopicPartition, Any] = {}
        started = time.monotonic()
        deadline = started + self.timeout_s
        while left:
            try:
                for node, asked in self.by_leader(sorted(left)).items():
                    for topic in self.ask(make(asked), node).topics:
                        found |= {TopicPartition(topic.name, part.partition_index): part for part in topic.partitions}
            except Unreachable as failure:
                self._wait_for_failover(started, failure)
                continue
            left = {tp for tp in left if found[tp].error_code in _LEADER_MOVED}
            if left and time.monotonic() > deadline:
                break
            if left:
                time.sleep(RETRY_PAUSE_S)
        return [(tp, found[tp]) for tp in order]


def _codes(value: Any) -> Iterator[int]:
    """All error codes in a response, as a dictionary."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "error_code":
                yield item
            else:
                yield from _codes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _codes(item)


def _check_texts(value: Any, kind: str) -> None:
    """Raises Refused for a text that is too long (rule 6)."""
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, str):
        if len(value) > MAX_TEXT_BYTES >> 2 and len(value.encode()) > MAX_TEXT_BYTES:
            raise Refused(f"A value does not fit its field in {kind}: texts have at most {MAX_TEXT_BYTES:,} bytes.")
        return
    elif not isinstance(value, list | tuple):
        return
    for item in value:
        _check_texts(item, kind)


def _text(failure: Exception) -> str:
    """The message of an exception of kafka-python, without its class."""
    return str(failure.args[0] if failure.args else type(failure).__name__).rstrip(".")
