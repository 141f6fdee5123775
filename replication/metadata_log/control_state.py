"""The state that control records of the metadata log set: the voters and kraft.version (KIP-853).

NOT HERE Values by offset (`raft/control_state_history.py`), changes of the voters (`raft/voter_changes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.control_records import ControlType
from protocol.messages.common import KRaftVersionFeature, ListenerEndpoint
from protocol.messages.stored_records import KRaftVersionRecord, VotersRecord, VotersVoter
from protocol.schema import Message
from replication.metadata.feature_levels import WITH_DYNAMIC_VOTERS
from replication.raft.control_state_history import ControlStateHistory
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet


class ControlState:
    """The voters and kraft.version along one log."""

    def __init__(self) -> None:
        self.voters = ControlStateHistory(VoterSet())
        """Empty if the voters are configured (kraft.version 0)."""
        self.kraft_version = ControlStateHistory(0)

    def apply(self, offset: int, message: Message) -> None:
        """Apply the control record at an offset."""
        if isinstance(message, VotersRecord):
            self.voters.append(offset, from_record(message))
        elif isinstance(message, KRaftVersionRecord):
            self.kraft_version.append(offset, message.kraft_version)

    def reset_to(self, end_offset: int, messages: Iterable[Message]) -> None:
        """Replace all values by those of the snapshot that ends at `end_offset`, where the log restarts."""
        self.truncate_to(0)
        for message in messages:
            if isinstance(message, VotersRecord):
                self.voters.reset_to(end_offset, from_record(message))
            elif isinstance(message, KRaftVersionRecord):
                self.kraft_version.reset_to(end_offset, message.kraft_version)

    def truncate_to(self, end_offset: int) -> None:
        """Remove the values of records at or after `end_offset`."""
        self.voters.truncate_to(end_offset)
        self.kraft_version.truncate_to(end_offset)


def from_record(record: VotersRecord) -> VoterSet:
    """The voter set of a VotersRecord."""
    return VoterSet(
        Voter(
            ReplicaKey(voter.voter_id, voter.voter_directory_id),
            tuple(ListenerAddress(address.name, address.host, address.port) for address in voter.endpoints),
            (voter.kraft_version_feature.min_supported_version, voter.kraft_version_feature.max_supported_version),
        )
        for voter in record.voters
    )


def to_record(voters: VoterSet) -> VotersRecord:
    """The VotersRecord of a voter set."""
    return VotersRecord(voters=[_record_of(voter) for voter in voters])


def _record_of(voter: Voter) -> VotersVoter:
    lowest, highest = voter.kraft_versions
    return VotersVoter(
        voter_id=voter.key.node_id,
        voter_directory_id=voter.key.directory_id,
        endpoints=[ListenerEndpoint(name=name, host=host, port=port) for name, host, port in voter.addresses],
        kraft_version_feature=KRaftVersionFeature(min_supported_version=lowest, max_supported_version=highest),
    )


def voter_records(
    voters: VotersRecord, kraft_version: int | None = WITH_DYNAMIC_VOTERS
) -> list[tuple[ControlType, Message]]:
    """The control records with the voters of a quorum, and with its kraft.version unless None."""
    records: list[tuple[ControlType, Message]] = [(ControlType.KRAFT_VOTERS, voters)]
    if kraft_version is not None:
        version = KRaftVersionRecord(kraft_version=kraft_version)
        records.insert(0, (ControlType.KRAFT_VERSION, version))
    return records
