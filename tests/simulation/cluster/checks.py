"""What must hold in a cluster after every event, and when all is well again.

RULES    1. At most one node leads an epoch of the quorum, or of a partition, and in one life of its process; who begins to
            lead has all that is committed; who hears late of an epoch that is over, what was committed when it was decided.
         2. What was committed anywhere, metadata or records, is never lost or changed.
         3. No high watermark goes back in one life of its leader, and none is beyond what is committed. Up to there all
            replicas are the same.
         4. Who is in an ISR has all that is committed; in a *cached* history, those who crashed lately excepted.
         5. What is committed of the metadata is durable on a majority; a snapshot covers what lies before the log's start.
         6. In no image does a fenced broker lead.
         7. What was acknowledged to acks=all is committed.
         8. A voter votes once in an epoch; no process goes back in epochs.
         9. In peace all images are the same, all replicas are in sync and the same, byte for byte; all is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.messages.raft import VoteRequest
from protocol.records import BatchHeader, headers
from protocol.schema import Message
from replication.metadata.image import NO_LEADER, Changes, MetadataImage, PartitionState
from replication.partition.partition import Partition
from replication.raft.rpc_messages import only_partition
from replication.raft.voters import ReplicaKey
from tests.simulation.cluster.process import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

READ_BYTES = 1 << 20
IDLE_RECORDS = 2
"""An idle controller writes NoOps: so many of them may be on their way."""
Key = tuple[bytes, int]
"""Topic id and index."""


class Entry(NamedTuple):
    """A batch of a log, as far as one can tell it from others."""

    base_offset: int
    next_offset: int
    epoch: int
    crc: int


class Copy:
    """One replica's log, as it was seen last."""

    def __init__(self) -> None:
        self.log: Any = None
        self.entries: list[Entry] = []
        self.agreed = 0
        """So many of them were compared with what is committed."""
        self.was_leader = False
        self.seen: tuple[int, int, bool, int] | None = None
        """The log's end, the high watermark, whether it leads, and the epoch."""

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.entries[-1].next_offset if self.entries else 0


def entry_of(header: BatchHeader) -> Entry:
    """Of a batch."""
    return Entry(header.base_offset, header.next_offset, header.leader_epoch, header.crc)


class Checks:
    """Looks at all nodes from outside."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.newest = MetadataImage("")
        """The newest image that somebody has published."""
        self.committed: dict[Key, list[Entry]] = {}
        self._copies: dict[tuple[int, Key], Copy] = {}
        self._leaders: dict[tuple[Key, int], tuple[int, int]] = {}
        self._decided: dict[tuple[Key, int], int] = {}
        """How many entries were committed when the first image told of an epoch."""
        self._watermarks: dict[tuple[int, int, Key, int], int] = {}
        self._acknowledged: list[tuple[int, tuple[str, int], int]] = []
        self._quorum = QuorumChecks(world)

    def after_event(self, touched: Iterable[int]) -> None:
        """Rules 1 to 8, for the nodes that did something."""
        processes = [process for node_id in touched if (process := self._world.machines[node_id].process) is not None]
        for process in processes:
            self._quorum.look(process)
            for partition in process.replicas.partitions.values():
                if partition.log.is_open:
                    self._look(process, partition)
        for process in processes:
            if process.publisher.image.offset > self.newest.offset:
                self._follow(process.publisher.image)
        acknowledged, self._acknowledged = self._acknowledged, []
        for node_id, key, offset in acknowledged:
            self._check_acknowledged(node_id, key, offset)

    def voted(self, voter_id: int, request: Message, message: Message) -> bool:
        """An answer to who wants votes has left; whether it is a vote."""
        return self._quorum.voted(voter_id, request, message)

    def left(self, process: Process) -> None:
        """A process ends as it was asked to: what it made durable in the end it may have told of."""
        self._quorum.note_durable(process)

    def crashed(self, node_id: int) -> None:
        """A process has ended: its logs are looked at anew when the next one opens them."""
        for (of, _), copy in self._copies.items():
            if of == node_id:
                copy.log = None

    # ------------------------------------------------------------ partitions
    def _look(self, process: Process, partition: Partition) -> None:
        assert partition.topic_id is not None
        key = (partition.topic_id, partition.index)
        node_id, committed = process.node_id, self.committed.setdefault(key, [])
        copy = self._copies.setdefault((node_id, key), Copy())
        state = (partition.log.log_end_offset, partition.high_watermark, partition.is_leader, partition.leader_epoch)
        if copy.log is partition.log and copy.seen == state:
            return
        copy.seen = state
        if copy.log is not partition.log:
            self._begin(node_id, key, copy, partition)
        self._read(copy, partition.log)
        watermark, name = partition.high_watermark, f"node {node_id}'s {partition.log.name}"
        if partition.is_leader:
            self._check_leader(process, key, partition, copy)
        self._agree(name, copy, committed, watermark)
        if watermark > _end(committed):
            led = partition.is_leader or copy.was_leader  # it may have learned of two images in one event
            assert led, f"{name} follows, and takes {watermark} for committed"
            self._commit(name, key, partition, copy, watermark)
        copy.was_leader = partition.is_leader

    def _begin(self, node_id: int, key: Key, copy: Copy, partition: Partition) -> None:
        copy.log, copy.entries, copy.agreed, copy.was_leader = partition.log, [], 0, False
        self._read(copy, partition.log)
        state = self._state(key)
        if state is not None and node_id in state.isr:
            self._check_member(node_id, key, "has lost something, and is in sync")

    @staticmethod
    def _read(copy: Copy, log: Any) -> None:
        end, entries = log.log_end_offset, copy.entries
        if end == copy.end:
            return
        while entries and entries[-1].next_offset > end:
            entries.pop()
        copy.agreed = min(copy.agreed, len(entries))
        while copy.end < end:
            entries += [entry_of(header) for _, header in headers(log.read_records(copy.end, READ_BYTES))]

    def _check_leader(self, process: Process, key: Key, partition: Partition, copy: Copy) -> None:
        who, epoch = (process.node_id, process.number), partition.leader_epoch
        name = f"{partition.log.name} in epoch {epoch}"
        first = self._leaders.get((key, epoch))
        if first is None:
            self._leaders[key, epoch] = who
            self._world.tell(f"node {who[0]} leads {name} from {copy.end} on")
            committed = self.committed[key][: self._committed_before(key, epoch)]
            has_all = copy.entries[: len(committed)] == committed
            assert has_all, f"node {who[0]} begins to lead {name} without all that is committed"
        else:
            assert first == who, f"nodes {first[0]} and {who[0]} both lead {name}, or one does twice"
        life = (*who, key, epoch)
        known, now = self._watermarks.get(life, 0), partition.high_watermark
        assert now >= known, f"the high watermark of {name} went back from {known} to {now}"
        self._watermarks[life] = now

    def _committed_before(self, key: Key, epoch: int) -> int:
        """So many entries were committed when an epoch was decided; fewer where nobody published that image."""
        state = self._state(key)
        if state is None or state.leader_epoch < epoch:
            return len(self.committed[key])
        return max((count for (of, e), count in self._decided.items() if of == key and e <= epoch), default=0)

    @staticmethod
    def _agree(name: str, copy: Copy, committed: list[Entry], watermark: int) -> None:
        """Rules 2 and 3."""
        assert copy.end >= watermark, f"{name} ends at {copy.end}, before its high watermark {watermark}"
        while copy.agreed < len(committed) and committed[copy.agreed].next_offset <= watermark:
            own, right = copy.entries[copy.agreed], committed[copy.agreed]
            assert own == right, f"{name} takes {own} for committed, which is {right}"
            copy.agreed += 1

    def _commit(self, name: str, key: Key, partition: Partition, copy: Copy, watermark: int) -> None:
        committed = self.committed[key]
        for entry in copy.entries[len(committed) :]:
            if entry.next_offset > watermark:
                break
            committed.append(entry)
        copy.agreed = len(committed)
        assert _end(committed) == watermark, f"{name} commits half of a batch"
        for member in partition.isr:
            self._check_member(member, key, f"is in sync with {name}")

    def _check_member(self, node_id: int, key: Key, why: str) -> None:
        """Rule 4."""
        if self._world.is_excused(node_id):
            return
        committed = self.committed.get(key, [])
        copy = self._copies.get((node_id, key))
        has_all = not committed or (copy is not None and copy.entries[: len(committed)] == committed)
        end = 0 if copy is None else copy.end
        assert has_all, (
            f"node {node_id} {why}, and ends at {end}, without all that is committed up to {_end(committed)}"
        )

    def acknowledged(self, node_id: int, key: tuple[str, int], offset: int) -> None:
        """A client was told that a record is safe."""
        self._acknowledged.append((node_id, key, offset))

    def _check_acknowledged(self, node_id: int, key: tuple[str, int], offset: int) -> None:
        """Rule 7."""
        topic = self.newest.topics_by_name[key[0]]
        end = _end(self.committed.get((topic.topic_id, key[1]), []))
        assert offset < end, f"node {node_id} acknowledges {offset} of {key}, and {end} is committed"

    # ------------------------------------------------------------ images
    def _follow(self, image: MetadataImage) -> None:
        """Rules 4 and 6."""
        changes = Changes.between(self.newest, image)
        for topic_id, indexes in changes.partitions.items():
            for index in indexes:
                state, before = image.topics_by_id[topic_id].partitions[index], self._state((topic_id, index))
                if before is None or (before.leader, before.isr) != (state.leader, state.isr):
                    key = (topic_id, index)
                    self._decided.setdefault((key, state.leader_epoch), len(self.committed.get(key, ())))
                    name = f"{image.topics_by_id[topic_id].name}-{index}"
                    isr = ", ".join(map(str, state.isr))
                    self._world.tell(
                        f"{name}: led by {state.leader} in epoch {state.leader_epoch}, in sync are [{isr}]"
                    )
        self.newest = image
        for key, state in self._states():
            if state.leader != NO_LEADER:
                broker = image.brokers.get(state.leader)
                assert broker is not None, f"broker {state.leader} leads, and is not registered"
                assert not broker.is_fenced, f"broker {state.leader} is fenced, and leads"
            for member in state.isr:
                self._check_member(member, key, f"is in sync at {image.offset} of the metadata")

    def _states(self) -> Iterator[tuple[Key, PartitionState]]:
        for topic in self.newest.topics_by_id.values():
            for index, state in topic.partitions.items():
                yield (topic.topic_id, index), state

    def _state(self, key: Key) -> PartitionState | None:
        topic = self.newest.topics_by_id.get(key[0])
        return None if topic is None else topic.partitions.get(key[1])

    def is_in_sync(self, node_id: int) -> bool:
        """Whether the metadata say so of all its replicas, and of this process."""
        process, broker = self._world.machines[node_id].process, self.newest.brokers.get(node_id)
        if process is None or broker is None or broker.incarnation_id != process.incarnation_id:
            return False
        return not broker.is_fenced and all(
            node_id in state.isr for _, state in self._states() if node_id in state.replicas
        )

    def replicas_beside(self, node_id: int) -> list[tuple[int, ...]]:
        """The replicas of each partition that a node has."""
        return [state.replicas for _, state in self._states() if node_id in state.replicas]

    # ------------------------------------------------------------ peace
    def all_agree(self) -> None:
        """Rule 9."""
        self._quorum.all_agree()
        processes = [machine.process for machine in self._world.machines.values() if machine.process is not None]
        assert len(processes) == len(self._world.machines), "all run"
        for process in processes:
            image = process.publisher.image
            behind = self.newest.offset - image.offset
            assert behind <= IDLE_RECORDS, f"node {process.node_id} is {behind} records of metadata behind in peace"
            for field in set(MetadataImage.__slots__) - {"offset"}:
                is_same = getattr(image, field) == getattr(self.newest, field)
                assert is_same, f"node {process.node_id} has another image: {field}"
        for key, state in self._states():
            name = f"{self.newest.topics_by_id[key[0]].name}-{key[1]}"
            assert state.leader != NO_LEADER, f"nobody leads {name} in peace; {state}"
            assert set(state.isr) == set(state.replicas), (
                f"in peace {state.isr} of {state.replicas} are in sync: {name}"
            )
            ends = {node_id: self._copies[node_id, key].entries for node_id in state.replicas}
            assert all(entries == self.committed[key] for entries in ends.values()), (
                f"in peace replicas of {name} end at { ({node: _end(entries) for node, entries in ends.items()}) }, "
                f"and {_end(self.committed[key])} is committed"
            )
            logs = [self._copies[node_id, key].log for node_id in state.replicas]
            whole = {bytes(_whole(log)) for log in logs}
            assert len(whole) == 1, f"in peace the replicas of {name} differ in bytes"


class QuorumChecks:
    """The metadata log and who leads it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[int, tuple[int, int]] = {}
        self._committed: dict[int, Entry] = {}
        self._end = 0
        self._watermarks: dict[tuple[int, int], int] = {}
        self._flushed: dict[int, int] = {}
        self._epochs: dict[tuple[int, int], int] = {}
        self._votes: dict[tuple[int, int], ReplicaKey] = {}

    def look(self, process: Process) -> None:
        """Rules 1, 2, 3, 5 and 8."""
        node_id, raft, log = process.node_id, process.node.raft, process.metadata_log
        if process.node.quorum.is_leading:
            who = (node_id, process.number)
            first = self._leaders.setdefault(raft.epoch, who)
            assert first == who, f"nodes {first[0]} and {node_id} both lead the quorum's epoch {raft.epoch}"
        life = (node_id, process.number)
        assert raft.epoch >= self._epochs.get(life, 0), f"node {node_id} went back in the quorum's epochs"
        self._epochs[life] = raft.epoch
        self.note_durable(process)
        if log.start_offset:
            oldest = log.oldest_snapshot
            assert oldest is not None, f"node {node_id} has no snapshot before {log.start_offset}"
            is_covered = oldest.offset >= log.start_offset
            assert is_covered, f"node {node_id}'s snapshot {oldest} does not reach the log's start {log.start_offset}"
        self._check_watermark(node_id, process)

    def note_durable(self, process: Process) -> None:
        """How far a node's log of the metadata is durable now; a new process does not know what the one before it synced."""
        node_id, log = process.node_id, process.metadata_log
        self._flushed[node_id] = min(max(self._flushed.get(node_id, 0), log.flushed_offset), log.next_offset)

    def _check_watermark(self, node_id: int, process: Process) -> None:
        watermark, log = process.node.raft.high_watermark, process.metadata_log
        known = self._watermarks.get((node_id, process.number), 0)
        assert watermark >= known, (
            f"node {node_id}'s high watermark of the metadata went back from {known} to {watermark}"
        )
        if watermark == known:
            return
        self._watermarks[node_id, process.number] = watermark
        offset = max(known, log.start_offset)
        while offset < watermark:
            for _, header in headers(log.read(offset, READ_BYTES)):
                offset = header.next_offset
                if offset > watermark:
                    break
                first = self._committed.setdefault(header.base_offset, entry_of(header))
                assert first == entry_of(header), f"node {node_id} has other metadata at {first} than were committed"
        if watermark > self._end:
            self._end = watermark
            voters = log.voters.latest.node_ids
            having = sum(self._flushed.get(voter, 0) >= watermark for voter in voters)
            assert having > len(voters) // 2, (
                f"metadata up to {watermark} are committed, but durable on {having} voters only"
            )

    def voted(self, voter_id: int, request: Message, message: Message) -> bool:
        """Rule 8."""
        asked, answer = only_partition(request), only_partition(message)
        if not isinstance(request, VoteRequest) or answer is None or not answer.vote_granted or asked.pre_vote:
            return False
        candidate = ReplicaKey(asked.replica_id, asked.replica_directory_id)
        first = self._votes.setdefault((voter_id, asked.replica_epoch), candidate)
        assert first == candidate, f"node {voter_id} voted twice in epoch {asked.replica_epoch}"
        return True

    def all_agree(self) -> None:
        """Somebody leads, and all have all."""
        processes = [machine.process for machine in self._world.machines.values() if machine.process is not None]
        leaders = [process.node_id for process in processes if process.node.quorum.is_leading]
        assert len(leaders) == 1, f"nodes {leaders} lead the quorum in peace"
        ends = {process.node_id: process.node.raft.high_watermark for process in processes}
        is_known = min(ends.values()) >= self._end - IDLE_RECORDS
        assert is_known, f"in peace the metadata are committed up to {self._end}, and known: {ends}"


def _end(entries: list[Entry]) -> int:
    return entries[-1].next_offset if entries else 0


def _whole(log: Any) -> bytearray:
    found = bytearray()
    offset = 0
    while offset < log.log_end_offset:
        piece = log.read_records(offset, READ_BYTES)
        found += piece
        offset = headers(piece)[-1][1].next_offset
    return found
