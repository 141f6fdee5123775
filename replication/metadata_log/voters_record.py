"""The VotersRecord of a voter set, a control record of the metadata log (KIP-853)."""

from __future__ import annotations

from protocol.messages.stored_records import Endpoint, KRaftVersionFeature, VotersRecord, VotersVoter
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet


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
    return VotersRecord(
        voters=[
            VotersVoter(
                voter_id=voter.key.node_id,
                voter_directory_id=voter.key.directory_id,
                endpoints=[Endpoint(name=name, host=host, port=port) for name, host, port in voter.addresses],
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=voter.kraft_versions[0], max_supported_version=voter.kraft_versions[1]
                ),
            )
            for voter in voters
        ]
    )
