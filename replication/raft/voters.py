"""Who has a vote in the metadata quorum, now and as of any offset of its log.

RULES    1. A replica is a node and the directory that its log lies in: a node that lost its disk is somebody else (KIP-853).
            A directory id of zero stands for any directory: the voters of a static quorum have none.
         2. Voters come from control records and count from the moment that these are in the log, committed or not.
         3. What is cut off the log takes its voters with it.
NOT HERE The records themselves (`protocol/messages/stored.py`), how voters are changed (`raft.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from protocol.messages.stored import Endpoint as StoredEndpoint
from protocol.messages.stored import KRaftVersionFeature, VotersRecord, VotersVoter
from protocol.primitives import ZERO_UUID


class ReplicaKey(NamedTuple):
    """A replica of the metadata log."""

    node_id: int
    directory_id: bytes = ZERO_UUID

    def is_same(self, other: ReplicaKey) -> bool:
        """Whether both can be the same replica (rule 1)."""
        mine, theirs = self.directory_id, other.directory_id
        return self.node_id == other.node_id and (mine == theirs or ZERO_UUID in (mine, theirs))


class Address(NamedTuple):
    """Where a replica listens for others."""

    listener: str
    host: str
    port: int


class Voter(NamedTuple):
    """A replica with a vote."""

    key: ReplicaKey
    addresses: tuple[Address, ...] = ()
    kraft_versions: tuple[int, int] = (0, 1)
    """The lowest and highest kraft.version that it works with."""


class VoterSet:
    """The voters as of some offset; never changed."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._voters: Mapping[int, Voter] = {voter.key.node_id: voter for voter in voters}

    def __contains__(self, replica: ReplicaKey) -> bool:
        voter = self._voters.get(replica.node_id)
        return voter is not None and voter.key.is_same(replica)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"VoterSet({list(self._voters.values())!r})"

    @property
    def node_ids(self) -> list[int]:
        """Whose nodes they are."""
        return list(self._voters)

    @property
    def majority(self) -> int:
        """How many voters must agree."""
        return len(self._voters) // 2 + 1

    def get(self, node_id: int) -> Voter | None:
        """The voter on a node."""
        return self._voters.get(node_id)

    def with_voter(self, voter: Voter) -> VoterSet:
        """With one more, or one that is known anew."""
        return VoterSet({**self._voters, voter.key.node_id: voter}.values())

    def without(self, replica: ReplicaKey) -> VoterSet:
        """With one less."""
        return VoterSet(voter for voter in self if not voter.key.is_same(replica))


def from_record(record: VotersRecord) -> VoterSet:
    """The voters that a control record names."""
    return VoterSet(
        Voter(
            ReplicaKey(voter.voter_id, voter.voter_directory_id),
            tuple(Address(address.name, address.host, address.port) for address in voter.endpoints),
            (voter.kraft_version_feature.min_supported_version, voter.kraft_version_feature.max_supported_version),
        )
        for voter in record.voters
    )


def to_record(voters: VoterSet) -> VotersRecord:
    """The control record that names these voters."""
    return VotersRecord(
        voters=[
            VotersVoter(
                voter_id=voter.key.node_id,
                voter_directory_id=voter.key.directory_id,
                endpoints=[StoredEndpoint(name=name, host=host, port=port) for name, host, port in voter.addresses],
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=voter.kraft_versions[0], max_supported_version=voter.kraft_versions[1]
                ),
            )
            for voter in voters
        ]
    )


class VoterHistory:
    """The voters as they changed along the log."""

    __slots__ = ("_changes",)

    def __init__(self, first: VoterSet) -> None:
        self._changes: list[tuple[int, VoterSet]] = [(-1, first)]

    @property
    def latest(self) -> VoterSet:
        """The newest voters, committed or not (rule 2)."""
        return self._changes[-1][1]

    @property
    def latest_offset(self) -> int:
        """The offset of the record that named them; -1: no record did."""
        return self._changes[-1][0]

    def at(self, end_offset: int) -> VoterSet:
        """The voters as of the records before an offset."""
        return next(voters for offset, voters in reversed(self._changes) if offset < end_offset)

    def changed(self, offset: int, voters: VoterSet) -> None:
        """The record at an offset names these voters."""
        assert offset > self.latest_offset, "voters change along the log"
        self._changes.append((offset, voters))

    def truncated(self, end_offset: int) -> None:
        """The log was cut at an offset (rule 3)."""
        while len(self._changes) > 1 and self._changes[-1][0] >= end_offset:
            self._changes.pop()

    def begins_with(self, end_offset: int, voters: VoterSet) -> None:
        """The log begins at an offset, behind a snapshot with these voters."""
        self._changes = [(-1, voters), *(change for change in self._changes if change[0] >= end_offset)]
