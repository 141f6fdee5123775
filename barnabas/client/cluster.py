"""A cluster: its nodes, the leaders of partitions, and their offsets.

RULES    1. The first bootstrap node that answers is asked for the metadata; if none does, the error of the first is raised.
         2. A retriable error is retried with new metadata until PATIENCE_S have passed without success, then raised; after
            FIRST_PATIENCE_S if the node has never answered at the address that it advertises, which may be wrong from here.
NOT HERE Reading and writing records (`record_reader.py`, `record_writer.py`), the login (`secure_stream.py`).
"""

from __future__ import annotations

import re
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from barnabas.client.client_settings import security_of
from barnabas.client.error_codes import LEADER_NOT_AVAILABLE, RETRIABLE, refusal
from barnabas.client.errors import ClientError
from barnabas.client.secure_stream import ask, connect
from barnabas.client.topic_partition import TopicPartition
from barnabas.client.wire import CLIENT_ID, Api, Fields, array, request, text

T = TypeVar("T")
PATIENCE_S = 60.0
FIRST_PATIENCE_S = 15.0
"""Longer than the cluster needs to elect other leaders for a node that was killed."""
PAUSE_S = 0.2
EARLIEST, LATEST = -2, -1
NO_OFFSET = -1
_TOPIC_UNKNOWN = 3
_MAX_TOPIC_CHARS = 249
_TOPIC_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{_MAX_TOPIC_CHARS}}}")


class Retriable(Exception):
    """The cluster may answer after a moment; the text is the sentence if it does not."""

    patience_s = PATIENCE_S
    """How long it is worth retrying."""


class NeverReached(Retriable):
    """A node does not answer at the address that it advertises, and has not before."""

    patience_s = FIRST_PATIENCE_S


class NoSuchTopic(ClientError):
    """The topic does not exist, or was deleted."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"There is no topic {topic} at this cluster: barnabas topics list shows all.")
        self.topic = topic


class Node:
    """A connection to one node; one thread uses it."""

    def __init__(self, host: str, port: int, settings: Mapping[str, str]) -> None:
        self._stream = connect(host, port, security_of(settings))
        self._where = f"{host}:{port}"
        self._client_id = settings.get("client.id", CLIENT_ID)
        self._correlation_id = 0

    def ask(self, api: Api, body: bytes) -> Fields:
        """Sends a request, and returns the response after its header. Raises Retriable if the connection breaks."""
        data = self._request(api, body)
        try:
            return Fields(ask(self._stream, data), 4)
        except (OSError, ClientError) as failure:
            raise Retriable(f"The node {self._where} stopped answering: {failure}") from failure

    def send(self, api: Api, body: bytes) -> None:
        """Sends a request that has no response."""
        data = self._request(api, body)
        try:
            self._stream.write(struct.pack(">i", len(data)) + data)
            self._stream.flush()
        except OSError as failure:
            raise Retriable(f"The node {self._where} stopped answering: {failure}") from failure

    def _request(self, api: Api, body: bytes) -> bytes:
        self._correlation_id += 1
        return request(api, self._correlation_id, self._client_id, body)

    def close(self) -> None:
        """Closes the connection, also a broken one, which cannot send what is left in its buffer."""
        with suppress(OSError):
            self._stream.close()


class Cluster:
    """The metadata of a cluster, and a connection for questions about it."""

    def __init__(self, addresses: Sequence[tuple[str, int]], settings: Mapping[str, str]) -> None:
        self._bootstrap = addresses
        self._settings = settings
        self._node: Node | None = None
        self._lock = threading.Lock()
        self._addresses: dict[int, tuple[str, int]] = {}
        self._reached: set[tuple[str, int]] = set()
        """The advertised addresses that have answered."""
        self._internal: set[str] = set()
        """Topics of the cluster itself, such as __consumer_offsets."""

    def connect(self, node_id: int) -> Node:
        """A new connection to a node. Raises Retriable."""
        if node_id not in self._addresses:
            raise Retriable(f"The cluster has no node {node_id} now.")
        return self.connect_to(node_id, self._addresses[node_id])

    def connect_to(self, node_id: int, address: tuple[str, int]) -> Node:
        """A new connection to a node at the address that it advertises. Raises Retriable."""
        try:
            node = Node(*address, self._settings)
        except ClientError as failure:
            if address in self._reached:
                raise Retriable(str(failure)) from failure
            host, port = address
            raise NeverReached(
                f"Node {node_id} does not answer at {host}:{port} ({failure.__cause__ or failure}); "
                "if that address is wrong from here, change its advertised.listeners."
            ) from failure
        self._reached.add(address)
        return node

    def topics(self) -> list[str]:
        """The names of all topics, internal ones too."""
        return sorted(self.retry(lambda: self._metadata(None)))

    def is_internal(self, topic: str) -> bool:
        """Whether a topic that the cluster has named is one of its own."""
        return topic in self._internal

    def partition_numbers(self, topics: Iterable[str] | None) -> dict[str, list[int]]:
        """The partitions of these topics, or of all; of those that exist, also partitions without a leader."""
        found = self.retry(lambda: self._metadata(topics))
        return {name: sorted(partitions) for name, (error, partitions) in found.items() if not error}

    def leaders(self, topic: str, needed: Collection[int] | None = None, *, may_create: bool = False) -> dict[int, int]:
        """The leader of each partition; waits until each that is needed has one (None: all). Raises ClientError."""
        return self.leaders_of({topic: needed}, may_create=may_create)[topic]

    def leaders_of(
        self, topics: Mapping[str, Collection[int] | None], *, may_create: bool = False
    ) -> dict[str, dict[int, int]]:
        """As `leaders`, of topics with the partitions that are needed: one request asks for all. Raises ClientError."""
        for topic in topics:
            if not _TOPIC_NAME.fullmatch(topic):
                raise ClientError(f"{topic[:_MAX_TOPIC_CHARS]!r} is no name of a topic.")

        def find() -> dict[str, dict[int, int]]:
            found = self._metadata(topics, may_create=may_create)
            return {topic: _leaders_in(topic, *found[topic], needed, may_create) for topic, needed in topics.items()}

        return self.retry(find)

    def by_leader(self, partitions: Collection[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions of each leader; waits until each has one. Raises ClientError."""
        needed: dict[str, set[int]] = {}
        for partition in partitions:
            needed.setdefault(partition.topic, set()).add(partition.partition)
        leaders = self.leaders_of(needed)
        found: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            found.setdefault(leader_of(partition, leaders[partition.topic]), []).append(partition)
        return found

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        """The offset of each partition at a timestamp (EARLIEST, LATEST or Unix ms); NO_OFFSET after the last record."""
        return self.retry(lambda: self._offsets(timestamps, committed=committed)) if timestamps else {}

    def retry(self, attempt: Callable[[], T]) -> T:
        """Calls until it does not raise Retriable. Raises ClientError (rule 2)."""
        started = time.monotonic()
        while True:
            try:
                return attempt()
            except Retriable as failure:
                if time.monotonic() - started > failure.patience_s:
                    raise ClientError(str(failure)) from failure
                time.sleep(PAUSE_S)

    def close(self) -> None:
        """Closes the connection for questions."""
        if self._node is not None:
            self._node.close()
            self._node = None

    def ask(self, api: Api, body: bytes) -> Fields:
        """Asks any node; threads may ask at the same time. Raises Retriable."""
        with self._lock:
            if self._node is None:
                self._node = self._any_node()
            try:
                return self._node.ask(api, body)
            except Retriable:
                self.close()
                raise

    def _any_node(self) -> Node:
        first: ClientError | None = None
        for host, port in dict.fromkeys([*self._bootstrap, *self._addresses.values()]):
            try:
                return Node(host, port, self._settings)
            except ClientError as failure:
                first = first or failure
        if self._addresses:
            raise Retriable(str(first))
        raise first or ClientError("--bootstrap names no node.")

    def _metadata(
        self, topics: Iterable[str] | None, *, may_create: bool = False
    ) -> dict[str, tuple[int, dict[int, tuple[int, int]]]]:
        """Of each topic its error and its partitions, each with error and leader."""
        names = b"\xff\xff\xff\xff" if topics is None else array(map(text, topics))
        fields = self.ask(Api.METADATA, names + struct.pack(">?", may_create))

        def node() -> tuple[int, tuple[str, int]]:
            node_id, host, port = fields.number("i"), fields.text(), fields.number("i")
            fields.text()  # its rack
            return node_id, (host, port)

        def partition() -> tuple[int, tuple[int, int]]:
            error, number, leader = fields.numbers("hii")
            for _ in range(2):  # replicas and in-sync replicas
                fields.array(lambda: fields.number("i"))
            return number, (error, leader)

        def topic() -> tuple[str, tuple[int, dict[int, tuple[int, int]]]]:
            error, name, is_internal = fields.number("h"), fields.text(), fields.number("b")
            if is_internal:
                self._internal.add(name)
            return name, (error, dict(fields.array(partition)))

        fields.number("i")
        self._addresses = dict(fields.array(node))
        fields.text()
        fields.number("i")
        return dict(fields.array(topic))

    def _offsets(self, timestamps: Mapping[TopicPartition, int], *, committed: bool) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for leader, partitions in self.by_leader(timestamps.keys()).items():
            node = self.connect(leader)
            body = topic_array(
                partitions, lambda partition: struct.pack(">iq", partition.partition, timestamps[partition])
            )
            fields = node.ask(Api.LIST_OFFSETS, struct.pack(">ib", -1, committed) + body)
            node.close()
            found.update(_offsets_in(fields))
        return found


def _leaders_in(
    topic: str,
    error: int,
    partitions: Mapping[int, tuple[int, int]],
    needed: Collection[int] | None,
    may_create: bool,  # noqa: FBT001
) -> dict[int, int]:
    """The leaders that a topic's metadata name. Raises Retriable, or ClientError."""
    if error == _TOPIC_UNKNOWN and not may_create:
        raise NoSuchTopic(topic)
    if error:
        raise Retriable(str(refusal(error, topic))) if error in RETRIABLE else refusal(error, topic)
    for number, (partition_error, leader) in partitions.items():
        if leader < 0 and (needed is None or number in needed):
            raise Retriable(str(refusal(partition_error or LEADER_NOT_AVAILABLE, f"{topic}-{number}")))
    return {number: leader for number, (_, leader) in sorted(partitions.items())}


def leader_of(partition: TopicPartition, leaders: Mapping[int, int]) -> int:
    """The leader of a partition, from those of its topic. Raises ClientError: the topic has no such partition."""
    if partition.partition not in leaders:
        raise ClientError(
            f"The topic {partition.topic} has no partition {partition.partition}, only 0 to {len(leaders) - 1}."
        )
    return leaders[partition.partition]


def topic_array(partitions: Iterable[TopicPartition], item: Callable[[TopicPartition], bytes]) -> bytes:
    """The array of topics in a request, each with an array of its partitions."""
    topics: dict[str, list[bytes]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(item(partition))
    return array(text(topic) + array(items) for topic, items in topics.items())


def _offsets_in(fields: Fields) -> dict[TopicPartition, int]:
    fields.number("i")
    found: dict[TopicPartition, int] = {}

    def topic() -> None:
        name = fields.text()
        for number, error, _timestamp, offset in fields.array(lambda: fields.numbers("ihqq")):
            about = f"{name}-{number}"
            if error in RETRIABLE:
                raise Retriable(str(refusal(error, about)))
            if error:
                raise refusal(error, about)
            found[TopicPartition(name, number)] = offset

    fields.array(topic)
    return found
