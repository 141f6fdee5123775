"""The invariants of a cluster, checked after every event, and after the faults ended.

RULES    1. At most one node leads an epoch of the quorum or of a partition, per process. A new leader has everything that is
            committed; one that learns late of an old epoch, what was committed when that epoch was decided.
         2. Committed metadata and records are never lost or changed.
         3. The high watermark of a leader process does not decrease and does not exceed what is committed. Up to it, all
            replicas are equal.
         4. ISR members have all committed records; in a *cached* simulation, except machines that crashed recently.
         5. Committed metadata are durable on a majority; a snapshot covers the offsets below the log start.
         6. No image has a fenced broker as leader.
         7. Records acknowledged with acks=all are committed.
         8. A voter votes once per epoch; the epoch of a process does not decrease.
         9. After the faults, all images are equal, all replicas are in sync and equal in bytes, and everything is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.messages.raft import VoteRequest
from protocol.records import BatchHeader, headers
from protocol.schema import Message
from replication.metadata.image import NO_LEADER, MetadataDelta, MetadataImage, PartitionState
from replication.metadata_log.raft_wire import single_partition
from replication.partition.partition import Partition
from replication.raft.voters import ReplicaKey
from storage.io.disk_lookup import wait_for_disk
from tests.simulation.cluster.process import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.simulator import Simulation

READ_BYTES = 1 << 20
IDLE_RECORDS = 2
"""The number of NoOp records of an idle controller that may be in flight."""
Key = tuple[bytes, int]
"""Topic id and index."""


class Entry(NamedTuple):
    """The identity of a batch in a log."""

    base_offset: int
    next_offset: int
    epoch: int
    crc: int


class ReplicaView:
    """The last observed state of one replica's log."""

    def __init__(self) -> None:
        self.log: Any = None
        self.entries: list[Entry] = []
        self.agreed = 0
        """The number of entries that were compared with the committed ones."""
        self.was_leader = False
        self.seen: tuple[int, int, bool, int] | None = None
        """Log end, high watermark, leadership and epoch."""

    @property
    def end(self) -> int:
        return self.entries[-1].next_offset if self.entries else 0


def entry_of(header: BatchHeader) -> Entry:
    return Entry(header.base_offset, header.next_offset, header.leader_epoch, header.crc)


class Invariants:
    """Observes all nodes."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.newest = MetadataImage("")
        """The newest published image."""
        self.committed: dict[Key, list[Entry]] = {}
        self._views: dict[tuple[int, Key], ReplicaView] = {}
        self._leaders: dict[tuple[Key, int], tuple[int, int]] = {}
        self._committed_at_decision: dict[tuple[Key, int], int] = {}
        """The number of committed entries when the first image with an epoch was published."""
        self._watermarks: dict[tuple[int, int, Key, int], int] = {}
        self._acknowledged: list[tuple[int, tuple[str, int], int]] = []
        self._quorum = QuorumInvariants(simulation)

    def after_event(self, touched: Iterable[int]) -> None:
        """Check rules 1 to 8 for the nodes that changed."""
        found = [self._simulation.machines[node_id].process for node_id in touched]
        processes = [process for process in found if process is not None and not process.has_closed_logs]
        for process in processes:
            self._quorum.look(process)
            for partition in process.replicas.partitions.values():
                if partition.log.is_open:
                    self._look(process, partition)
        for process in processes:
            if process.publisher.image.offset > self.newest.offset:
                self._on_image(process.publisher.image)
        acknowledged, self._acknowledged = self._acknowledged, []
        for node_id, key, offset in acknowledged:
            self._check_acknowledged(node_id, key, offset)

    def voted(self, voter_id: int, request: Message, message: Message) -> bool:
        """Record a Vote response; returns whether the vote was granted."""
        return self._quorum.voted(voter_id, request, message)

    def process_stopping(self, process: Process) -> None:
        """A process stops as requested: record what it flushed."""
        self._quorum.note_durable(process)

    def process_ended(self, node_id: int) -> None:
        """A process ended: read its logs again after the restart."""
        for (of, _), view in self._views.items():
            if of == node_id:
                view.log = None

    # ------------------------------------------------------------ partitions
    def _look(self, process: Process, partition: Partition) -> None:
        assert partition.topic_id is not None
        key = (partition.topic_id, partition.index)
        node_id, committed = process.node_id, self.committed.setdefault(key, [])
        view = self._views.setdefault((node_id, key), ReplicaView())
        state = (partition.log.log_end_offset, partition.high_watermark, partition.is_leader, partition.leader_epoch)
        if view.log is partition.log and view.seen == state:
            return
        view.seen = state
        if view.log is not partition.log:
            self._on_active(node_id, key, view, partition)
        self._read(view, partition.log)
        watermark, name = partition.high_watermark, f"node {node_id}'s {partition.log.name}"
        if partition.is_leader:
            self._check_leader(process, key, partition, view)
        self._check_committed(name, view, committed, watermark)
        if watermark > _end(committed):
            led = partition.is_leader or view.was_leader  # one event may apply two images
            assert led, f"{name} is a follower with high watermark {watermark} above what is committed"
            self._advance_committed(name, key, partition, view, watermark)
        view.was_leader = partition.is_leader

    def _on_active(self, node_id: int, key: Key, view: ReplicaView, partition: Partition) -> None:
        view.log, view.entries, view.agreed, view.was_leader = partition.log, [], 0, False
        self._read(view, partition.log)
        state = self._state(key)
        if state is not None and node_id in state.isr:
            self._check_member(node_id, key, "lost records and is in the ISR")

    @staticmethod
    def _read(view: ReplicaView, log: Any) -> None:
        end, entries = log.log_end_offset, view.entries
        if end == view.end:
            return
        while entries and entries[-1].next_offset > end:
            entries.pop()
        view.agreed = min(view.agreed, len(entries))
        while view.end < end:
            entries += [
                entry_of(header)
                for _, header in headers(wait_for_disk(log.open().reader.read_records, view.end, READ_BYTES))
            ]

    def _check_leader(self, process: Process, key: Key, partition: Partition, view: ReplicaView) -> None:
        leader, epoch = (process.node_id, process.number), partition.leader_epoch
        name = f"{partition.log.name} in epoch {epoch}"
        first = self._leaders.get((key, epoch))
        if first is None:
            self._leaders[key, epoch] = leader
            self._simulation.log_event(f"node {leader[0]} leads {name} from {view.end} on")
            committed = self.committed[key][: self._committed_before(key, epoch)]
            has_all = view.entries[: len(committed)] == committed
            assert has_all, f"node {leader[0]} leads {name} without all committed records"
        else:
            assert first == leader, f"nodes {first[0]} and {leader[0]} both lead {name}, or one does twice"
        lifecycle = (*leader, key, epoch)
        known, now = self._watermarks.get(lifecycle, 0), partition.high_watermark
        assert now >= known, f"the high watermark of {name} went back from {known} to {now}"
        self._watermarks[lifecycle] = now

    def _committed_before(self, key: Key, epoch: int) -> int:
        """The number of entries that were committed when an epoch was decided."""
        state = self._state(key)
        if state is None or state.leader_epoch < epoch:
            return len(self.committed[key])
        return max(
            (count for (of, e), count in self._committed_at_decision.items() if of == key and e <= epoch), default=0
        )

    @staticmethod
    def _check_committed(name: str, view: ReplicaView, committed: list[Entry], watermark: int) -> None:
        """A replica has the committed entries up to its high watermark (rules 2 and 3)."""
        assert view.end >= watermark, f"{name} ends at {view.end}, before its high watermark {watermark}"
        while view.agreed < len(committed) and committed[view.agreed].next_offset <= watermark:
            node_specific, right = view.entries[view.agreed], committed[view.agreed]
            assert node_specific == right, f"{name} takes {node_specific} for committed, which is {right}"
            view.agreed += 1

    def _advance_committed(self, name: str, key: Key, partition: Partition, view: ReplicaView, watermark: int) -> None:
        committed = self.committed[key]
        for entry in view.entries[len(committed) :]:
            if entry.next_offset > watermark:
                break
            committed.append(entry)
        view.agreed = len(committed)
        assert _end(committed) == watermark, f"{name} commits half of a batch"
        for member in partition.isr:
            self._check_member(member, key, f"is in sync with {name}")

    def _check_member(self, node_id: int, key: Key, why: str) -> None:
        if self._simulation.may_lack_committed(node_id):
            return
        committed = self.committed.get(key, [])
        view = self._views.get((node_id, key))
        has_all = not committed or (view is not None and view.entries[: len(committed)] == committed)
        end = 0 if view is None else view.end
        assert has_all, (
            f"node {node_id} {why}, and ends at {end}, without all that is committed up to {_end(committed)}"
        )

    def acknowledged(self, node_id: int, key: tuple[str, int], offset: int) -> None:
        """A client received an acknowledgement."""
        self._acknowledged.append((node_id, key, offset))

    def _check_acknowledged(self, node_id: int, key: tuple[str, int], offset: int) -> None:
        topic = self.newest.topics_by_name[key[0]]
        end = _end(self.committed.get((topic.topic_id, key[1]), []))
        assert offset < end, f"node {node_id} acknowledges {offset} of {key}, and {end} is committed"

    # ------------------------------------------------------------ images
    def _on_image(self, image: MetadataImage) -> None:
        """Check the ISRs and leaders of a new image (rules 4 and 6)."""
        changes = MetadataDelta.between(self.newest, image)
        for topic_id, indexes in changes.partitions.items():
            for index in indexes:
                state, before = image.topics_by_id[topic_id].partitions[index], self._state((topic_id, index))
                if before is None or (before.leader, before.isr) != (state.leader, state.isr):
                    key = (topic_id, index)
                    self._committed_at_decision.setdefault((key, state.leader_epoch), len(self.committed.get(key, ())))
                    name = f"{image.topics_by_id[topic_id].name}-{index}"
                    isr = ", ".join(map(str, state.isr))
                    self._simulation.log_event(
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
        """Whether all replicas of this process are in sync, according to the metadata."""
        process, broker = self._simulation.machines[node_id].process, self.newest.brokers.get(node_id)
        if process is None or broker is None or broker.incarnation_id != process.incarnation_id:
            return False
        return not broker.is_fenced and all(
            node_id in state.isr for _, state in self._states() if node_id in state.replicas
        )

    def replica_sets(self, node_id: int) -> list[tuple[int, ...]]:
        """The replicas of each partition of a node."""
        return [state.replicas for _, state in self._states() if node_id in state.replicas]

    # ------------------------------------------------------------ after the faults
    def check_recovered(self) -> None:
        self._quorum.check_recovered()
        processes = [machine.process for machine in self._simulation.machines.values() if machine.process is not None]
        assert len(processes) == len(self._simulation.machines), "all nodes run"
        for process in processes:
            image = process.publisher.image
            behind = self.newest.offset - image.offset
            assert behind <= IDLE_RECORDS, (
                f"node {process.node_id} is {behind} metadata records behind after the faults"
            )
            for field in set(MetadataImage.__slots__) - {"offset"}:
                is_same = getattr(image, field) == getattr(self.newest, field)
                assert is_same, f"node {process.node_id} has another image: {field}"
        for key, state in self._states():
            name = f"{self.newest.topics_by_id[key[0]].name}-{key[1]}"
            assert state.leader != NO_LEADER, f"{name} has no leader after the faults; {state}"
            assert set(state.isr) == set(state.replicas), (
                f"after the faults {state.isr} of {state.replicas} are in sync: {name}"
            )
            entries_by_node = {node_id: self._views[node_id, key].entries for node_id in state.replicas}
            ends = {node_id: _end(entries) for node_id, entries in entries_by_node.items()}
            assert all(entries == self.committed[key] for entries in entries_by_node.values()), (
                f"after the faults the replicas of {name} end at {ends}, and {_end(self.committed[key])} is committed"
            )
            logs = [self._views[node_id, key].log for node_id in state.replicas]
            whole = {bytes(_all_bytes(log)) for log in logs}
            assert len(whole) == 1, f"after the faults the replicas of {name} differ in bytes"


class QuorumInvariants:
    """The invariants of the metadata log."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._leaders: dict[int, tuple[int, int]] = {}
        self._committed: dict[int, Entry] = {}
        self._end = 0
        self._watermarks: dict[tuple[int, int], int] = {}
        self._flushed: dict[int, int] = {}
        self._epochs: dict[tuple[int, int], int] = {}
        self._votes: dict[tuple[int, int], ReplicaKey] = {}

    def look(self, process: Process) -> None:
        """Check rules 1, 2, 3, 5 and 8."""
        node_id, raft, log = process.node_id, process.node.raft, process.metadata_log
        if process.node.quorum.is_leading:
            leader = (node_id, process.number)
            first = self._leaders.setdefault(raft.state.epoch, leader)
            assert first == leader, f"nodes {first[0]} and {node_id} both lead the quorum's epoch {raft.state.epoch}"
        lifecycle = (node_id, process.number)
        assert raft.state.epoch >= self._epochs.get(lifecycle, 0), f"node {node_id} went back in the quorum's epochs"
        self._epochs[lifecycle] = raft.state.epoch
        self.note_durable(process)
        if log.start_offset:
            oldest = log.oldest_snapshot
            assert oldest is not None, f"node {node_id} has no snapshot before {log.start_offset}"
            is_covered = oldest.offset >= log.start_offset
            assert is_covered, f"node {node_id}'s snapshot {oldest} does not reach the log's start {log.start_offset}"
        self._check_watermark(node_id, process)

    def note_durable(self, process: Process) -> None:
        """Record the flushed offset of a node; a new process does not know what its predecessor flushed."""
        node_id, log = process.node_id, process.metadata_log
        self._flushed[node_id] = min(max(self._flushed.get(node_id, 0), log.flushed_offset), log.next_offset)

    def _check_watermark(self, node_id: int, process: Process) -> None:
        watermark, log = process.node.raft.state.high_watermark, process.metadata_log
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
        request_copy, answer = single_partition(request), single_partition(message)
        if not isinstance(request, VoteRequest) or answer is None or not answer.vote_granted or request_copy.pre_vote:
            return False
        candidate = ReplicaKey(request_copy.replica_id, request_copy.replica_directory_id)
        first = self._votes.setdefault((voter_id, request_copy.replica_epoch), candidate)
        assert first == candidate, f"node {voter_id} voted twice in epoch {request_copy.replica_epoch}"
        return True

    def check_recovered(self) -> None:
        """One node leads, and all nodes know the committed offset."""
        processes = [machine.process for machine in self._simulation.machines.values() if machine.process is not None]
        leaders = [process.node_id for process in processes if process.node.quorum.is_leading]
        assert len(leaders) == 1, f"nodes {leaders} lead the quorum after the faults"
        ends = {process.node_id: process.node.raft.state.high_watermark for process in processes}
        is_known = min(ends.values()) >= self._end - IDLE_RECORDS
        assert is_known, f"after the faults the metadata are committed up to {self._end}, the nodes know {ends}"


def _end(entries: list[Entry]) -> int:
    return entries[-1].next_offset if entries else 0


def _all_bytes(log: Any) -> bytearray:
    found = bytearray()
    offset = 0
    while offset < log.log_end_offset:
        piece = wait_for_disk(log.open().reader.read_records, offset, READ_BYTES)
        found += piece
        offset = headers(piece)[-1][1].next_offset
    return found
