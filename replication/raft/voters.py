"""The voters of the metadata quorum.

RULES    1. A replica is identified by its node id and the id of its metadata log directory: a node with a new disk is another
            replica (KIP-853). A key with a zero directory id matches any directory; static voters have such keys.
         2. A voter set is immutable.
NOT HERE Their record (`metadata_log/control_state.py`), voter sets by offset (`control_state_history.py`), changes of the set
         (`voter_changes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from protocol.primitives import ZERO_UUID, uuid_text


class ReplicaKey(NamedTuple):
    """The identity of a replica of the metadata log."""

    node_id: int
    directory_id: bytes = ZERO_UUID

    def matches(self, replica: ReplicaKey) -> bool:
        """Whether this key denotes the replica; a zero directory id matches any (rule 1)."""
        return self.node_id == replica.node_id and self.directory_id in (ZERO_UUID, replica.directory_id)

    def __str__(self) -> str:
        directory = "<undefined>" if self.directory_id == ZERO_UUID else uuid_text(self.directory_id)
        return f"ReplicaKey(id={self.node_id}, directoryId={directory})"


class ListenerAddress(NamedTuple):
    """The listener, host and port of a replica."""

    listener: str
    host: str
    port: int


class Voter(NamedTuple):
    """A replica with a vote."""

    key: ReplicaKey
    addresses: tuple[ListenerAddress, ...] = ()
    kraft_versions: tuple[int, int] = (0, 0)
    """The lowest and highest supported kraft.version; (0, 0) for static voters, where it is unknown."""

    def supports(self, kraft_version: int) -> bool:
        """Whether the voter supports a kraft.version."""
        lowest, highest = self.kraft_versions
        return lowest <= kraft_version <= highest


class VoterSet:
    """The voters as of one offset."""

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
        """The node ids of the voters."""
        return list(self._voters)

    @property
    def majority(self) -> int:
        """The size of a majority."""
        return len(self._voters) // 2 + 1

    def get(self, node_id: int) -> Voter | None:
        """The voter on a node."""
        return self._voters.get(node_id)

    def with_voter(self, voter: Voter) -> VoterSet:
        """A copy with the voter added or replaced."""
        return VoterSet({**self._voters, voter.key.node_id: voter}.values())

    def without(self, node_id: int) -> VoterSet:
        """A copy without the voter on a node."""
        return VoterSet(voter for voter in self if voter.key.node_id != node_id)
