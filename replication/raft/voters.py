"""Who has a vote in the metadata quorum.

RULES    1. A replica is a node and the directory that its log lies in: a node that lost its disk is somebody else (KIP-853).
            A key with a directory id of zero leaves the directory open: the voters of a static quorum have none.
         2. A set is never changed.
NOT HERE Which set holds at which offset (`control_state_history.py`), how voters are changed (`voter_changes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from protocol.messages.stored_records import Endpoint as StoredEndpoint
from protocol.messages.stored_records import KRaftVersionFeature, VotersRecord, VotersVoter
from protocol.primitives import ZERO_UUID, uuid_text


class ReplicaKey(NamedTuple):
    """A replica of the metadata log."""

    node_id: int
    directory_id: bytes = ZERO_UUID

    def matches(self, replica: ReplicaKey) -> bool:
        """Whether this key, which may leave the directory open, is that replica's (rule 1)."""
        return self.node_id == replica.node_id and self.directory_id in (ZERO_UUID, replica.directory_id)

    def __str__(self) -> str:
        directory = "<undefined>" if self.directory_id == ZERO_UUID else uuid_text(self.directory_id)
        return f"ReplicaKey(id={self.node_id}, directoryId={directory})"


class Address(NamedTuple):
    """Where a replica listens for others."""

    listener: str
    host: str
    port: int


class Voter(NamedTuple):
    """A replica with a vote."""

    key: ReplicaKey
    addresses: tuple[Address, ...] = ()
    kraft_versions: tuple[int, int] = (0, 0)
    """The lowest and highest kraft.version that it works with; of the voters of a static quorum nothing is known."""

    def supports(self, kraft_version: int) -> bool:
        """Whether it works with a kraft.version."""
        return self.kraft_versions[0] <= kraft_version <= self.kraft_versions[1]


class VoterSet:
    """The voters as of some offset."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self._voters: Mapping[int, Voter] = {voter.key.node_id: voter for voter in voters}

    def __contains__(self, replica: ReplicaKey) -> bool:
        voter = self._voters.get(replica.node_id)
        return voter is not None and voter.key.matches(replica)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"VoterSet({list(self._voters.values())!r})"

    def __str__(self) -> str:
        return f"[{', '.join(str(voter.key) for voter in self)}]"

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

    def without(self, node_id: int) -> VoterSet:
        """With one less."""
        return VoterSet(voter for voter in self if voter.key.node_id != node_id)


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
