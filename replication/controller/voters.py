"""Other voters for the metadata log: this node is the only one, and nobody follows its log yet.

RULES    1. Checks, their order, codes and sentences are Apache Kafka 4.3's (AddVoterHandler, RemoveVoterHandler). The last of
            them, whether the new voter has followed the log, nobody passes here; the last voter stays one.
NOT HERE Following the metadata log, elections among voters: they come with several controllers.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    VoterListener,
)
from protocol.messages.stored import VotersVoter
from protocol.primitives import ZERO_UUID, uuid_text


def add_voter(
    cluster_id: str, listener: str, voter: VotersVoter | None, request: AddRaftVoterRequest
) -> AddRaftVoterResponse:
    """Why there will not be another voter.

    Args:
        cluster_id: of this cluster.
        listener: the name of the listener that voters reach each other at.
        voter: this node; None where the voters are a setting.
        request: what is asked for.
    """
    new = request.voter_id, request.voter_directory_id
    refusal = (
        _wrong_cluster(cluster_id, request.cluster_id)
        or _no_key("Add", *new)
        or _no_endpoint(listener, request.listeners)
        or _why_not_add(voter, *new)
    )
    return AddRaftVoterResponse(error_code=refusal.code, error_message=refusal.message)


def remove_voter(
    cluster_id: str, voter: VotersVoter | None, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    """Why the voters stay as they are; the arguments are those of `add_voter`."""
    old = request.voter_id, request.voter_directory_id
    refusal = _wrong_cluster(cluster_id, request.cluster_id) or _no_key("Remove", *old) or _why_not_remove(voter, *old)
    return RemoveRaftVoterResponse(error_code=refusal.code, error_message=refusal.message)


def _wrong_cluster(cluster_id: str, said: str | None) -> KafkaError | None:
    if said in (None, cluster_id):
        return None
    sentence = f'The given id "{said}" doesn\'t match the cluster id "{cluster_id}"'
    return KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, sentence)


def _no_key(verb: str, voter_id: int, directory: bytes) -> KafkaError | None:
    if voter_id >= 0 and directory != ZERO_UUID:
        return None
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{verb} voter request didn't include a valid voter")


def _no_endpoint(listener: str, listeners: Sequence[VoterListener]) -> KafkaError | None:
    if listener in {one.name for one in listeners}:
        return None
    told = ", ".join(f"ListenerName({one.name})={one.host}/<unresolved>:{one.port}" for one in listeners)
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Add voter request didn't include the endpoint (Endpoints(endpoints={{{told}}})) for the default listener "
        f"ListenerName({listener})",
    )


def _why_not_add(voter: VotersVoter | None, new_id: int, directory: bytes) -> KafkaError:
    if voter is None:
        return _are_a_setting("adding")
    key = _key(new_id, directory)
    if new_id == voter.voter_id:
        sentence = f"The voter id for {key} is already part of the set of voters {_set(voter)}."
        return KafkaError(ErrorCode.DUPLICATE_VOTER, sentence)
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"New voter {key} has not followed the metadata log")


def _why_not_remove(voter: VotersVoter | None, old_id: int, directory: bytes) -> KafkaError:
    if voter is None:
        return _are_a_setting("removing")
    sentence = f"Cannot remove voter {_key(old_id, directory)} from the set of voters {_set(voter)}"
    return KafkaError(ErrorCode.VOTER_NOT_FOUND, sentence)


def _are_a_setting(what: str) -> KafkaError:
    sentence = f"Cluster doesn't support {what} voter because the kraft.version feature is 0"
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, sentence)


def _key(voter_id: int, directory: bytes) -> str:
    return f"ReplicaKey(id={voter_id}, directoryId={uuid_text(directory)})"


def _set(voter: VotersVoter) -> str:
    return f"[{_key(voter.voter_id, voter.voter_directory_id)}]"
