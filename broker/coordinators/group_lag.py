"""How far the groups that this broker coordinates are behind: in records, in seconds, and until they have caught up.

RULES    1. The node of a group's coordinator shows its lag. Ends of partitions that it leads are its own; it asks the other
            leaders, one request each (ListOffsets). Without an answer, the high watermark of its own replica counts.
         2. The lag in seconds is the age of the first record that the group has not committed, read from the log at the
            committed offset: exact, not interpolated. It needs a replica on this node; a partition without one has none.
         3. The time to catch up is the lag divided by how much faster the group commits than producers write, over the scrapes
            of the last `RATE_WINDOW_S`; infinite if it is not faster.
         4. Everything happens for a scrape, in steps: `prepare` yields pauses, and completions to wait for. At most
            `MAX_POSITIONS` positions and `MAX_LOOKUPS` reads.
NOT HERE Names (`group_metrics.py`); why so: docs/decisions/0077-lag-of-groups.md
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.coordinators.classic.group_records import to_offset_and_metadata
from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime, ShardState
from broker.coordinators.transactions.remote_verification import SendToBroker
from protocol.errors import ErrorCode
from protocol.messages.common import Topic
from protocol.messages.produce_fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse
from protocol.schema import Message
from replication.completion import Completion, all_done
from replication.metadata.image import NO_LEADER, MetadataImage
from replication.partition.list_offsets import LATEST
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock

MAX_POSITIONS: Final = 10_000
MAX_LOOKUPS: Final = 1_000
POSITIONS_PER_STEP: Final = 500
RATE_WINDOW_S: Final = 120.0
_UNKNOWN: Final = -1

TopicPartition = tuple[str, int]
Step = Completion[None] | None
"""A pause, or something to wait for."""


@dataclass(slots=True)
class Position:
    """Where a group is in one partition."""

    group_id: str
    topic: str
    partition: int
    committed: int
    end: int = _UNKNOWN
    """The high watermark; -1: unknown."""
    behind_s: float | None = None
    """The lag in seconds; None: unknown."""

    @property
    def lag(self) -> int:
        """The records that are not committed; -1: unknown."""
        return _UNKNOWN if self.end < 0 else max(self.end - self.committed, 0)


class TopicSums(NamedTuple):
    """The sums of a group's topic at one scrape."""

    mono_s: float
    committed: int
    end: int


class GroupLag:
    """The positions of all groups of this broker, as of the last `prepare`."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupCoordinator],
        replicas: ReplicaManager,
        send: SendToBroker,
        clock: Clock,
    ) -> None:
        self._runtime = runtime
        self._replicas = replicas
        self._send = send
        self._clock = clock
        self.positions: list[Position] = []
        self.omitted = 0
        """Positions above the limit."""
        self._timestamps: dict[tuple[TopicPartition, int], int] = {}
        self._history: dict[tuple[str, str], deque[TopicSums]] = {}

    def coordinators(self) -> list[GroupCoordinator]:
        """The active coordinators."""
        shards = self._runtime.shards.values()
        return [shard.coordinator for shard in shards if shard.state is ShardState.ACTIVE]

    # ------------------------------------------------------------ preparing a scrape
    def prepare(self) -> Iterator[Step]:
        """Find out where all groups are."""
        positions: list[Position] = []
        yield from self._collect(positions)
        yield from self._find_ends(positions)
        yield from self._find_timestamps(positions)
        self._record(positions)
        self.positions = positions

    def _collect(self, positions: list[Position]) -> Iterator[Step]:
        known = self._replicas.image.topics_by_name
        self.omitted = paused_at = 0
        for coordinator in self.coordinators():
            for group_id, topics in list(coordinator.offsets.by_group.items()):
                for topic, partitions in topics.items():
                    if topic not in known:
                        continue
                    left = MAX_POSITIONS - len(positions)
                    self.omitted += max(len(partitions) - left, 0)
                    for index, stored in list(partitions.items())[:left]:
                        committed = to_offset_and_metadata(stored).offset
                        positions.append(Position(group_id, topic, index, committed))
                if len(positions) >= paused_at + POSITIONS_PER_STEP:
                    paused_at = len(positions)
                    yield None
            yield None

    def _find_ends(self, positions: list[Position]) -> Iterator[Step]:
        ends: dict[TopicPartition, int] = {}
        remote: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, (topic, index) in enumerate(list(_partitions(positions)), 1):
            if number % POSITIONS_PER_STEP == 0:
                yield None
            local = self._replicas.partitions.get((topic, index))
            if local is not None:
                ends[topic, index] = local.high_watermark
            if local is None or not local.is_leader:
                leader = _leader(self._replicas.image, topic, index)
                if leader not in (NO_LEADER, self._replicas.broker_id):
                    remote[leader][topic].append(index)
        if remote:
            answers = [self._send(leader, _latest(topics)) for leader, topics in remote.items()]
            yield all_done(answers)
            for answer in answers:
                if answer.is_done:
                    ends.update(_offsets(answer.result()))
        for position in positions:
            position.end = ends.get((position.topic, position.partition), _UNKNOWN)
        yield None

    def _find_timestamps(self, positions: list[Position]) -> Iterator[Step]:
        """Read the timestamps of the first records that are not committed (rule 2)."""
        now_ms = self._clock.wall_ms()
        known: dict[tuple[TopicPartition, int], int] = {}
        reading: dict[tuple[TopicPartition, int], Completion[int]] = {}
        for position in positions:
            key = ((position.topic, position.partition), position.committed)
            if position.lag > 0 and key in self._timestamps:
                known[key] = self._timestamps[key]
            elif position.lag > 0 and key not in reading and len(reading) < MAX_LOOKUPS:
                read = self._read_timestamp(*key)
                if read is not None:
                    reading[key] = read
                    if len(reading) % POSITIONS_PER_STEP == 0:
                        yield None
        if reading:
            yield all_done(reading.values())
        for key, timestamp in reading.items():
            if timestamp.is_done and timestamp.error is None and timestamp.value >= 0:
                known[key] = timestamp.value
        self._timestamps = known
        for position in positions:
            if position.lag == 0:
                position.behind_s = 0.0
            else:
                found = known.get(((position.topic, position.partition), position.committed))
                position.behind_s = None if found is None else max(now_ms - found, 0) / 1000
        yield None

    def _read_timestamp(self, partition: TopicPartition, offset: int) -> Completion[int] | None:
        if partition not in self._replicas.partitions or self._replicas.at_file_limit():
            return None
        return self._replicas.lookup(*partition, lambda replica: replica.timestamp_at(offset))

    # ------------------------------------------------------------ catching up
    def _record(self, positions: Iterable[Position]) -> None:
        now_s = self._clock.mono_ms() / 1000
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for position in positions:
            if position.end >= 0:
                total = sums[position.group_id, position.topic]
                total[0] += position.committed
                total[1] += position.end
        history = {key: self._history.get(key) or deque() for key in sums}
        for key, (committed, end) in sums.items():
            progress = history[key]
            while len(progress) > 1 and progress[0].mono_s < now_s - RATE_WINDOW_S:
                progress.popleft()
            progress.append(TopicSums(now_s, committed, end))
        self._history = history

    def catch_up_s(self) -> Iterator[tuple[str, str, float]]:
        """Group, topic, and the seconds until the group has caught up (rule 3); a group that was seen once has none."""
        for (group_id, topic), progress in self._history.items():
            first, last = progress[0], progress[-1]
            lag, elapsed_s = last.end - last.committed, last.mono_s - first.mono_s
            if lag <= 0:
                yield group_id, topic, 0.0
            elif elapsed_s > 0:
                gained = (last.committed - first.committed) - (last.end - first.end)
                yield group_id, topic, lag * elapsed_s / gained if gained > 0 else float("inf")


def _partitions(positions: Iterable[Position]) -> Iterable[TopicPartition]:
    return dict.fromkeys((position.topic, position.partition) for position in positions)


def _leader(image: MetadataImage, topic: str, index: int) -> int:
    known = image.topics_by_name.get(topic)
    state = None if known is None else known.partitions.get(index)
    return NO_LEADER if state is None else state.leader


def _latest(topics: dict[str, list[int]]) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        topics=[
            Topic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in indexes],
            )
            for topic, indexes in topics.items()
        ]
    )


def _offsets(response: Message | None) -> dict[TopicPartition, int]:
    """The offsets of an answer; none without one."""
    if not isinstance(response, ListOffsetsResponse):
        return {}
    return {
        (topic.name, found.partition_index): found.offset
        for topic in response.topics
        for found in topic.partitions
        if found.error_code == ErrorCode.NONE
    }
