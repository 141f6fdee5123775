"""AlterUserScramCredentials: what passwords are compared with; DescribeUserScramCredentials: who has any.

RULES    1. The client sends the salted password; kept is what RFC 5802 has a server keep, from which nobody can log in.
         2. A request can change one credential of each user; users do not depend on each other.
         3. Checks and sentences are Apache Kafka 4.3's (ScramControlManager).
NOT HERE Logging in with them: nobody can yet.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.quotas_scram import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CredentialInfo,
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from protocol.messages.stored_records import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from replication.controller.decision_context import Environment
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_HASHES = {1: hashlib.sha256, 2: hashlib.sha512}


def credentials_of(image: MetadataImage) -> dict[str, dict[int, UserScramCredentialRecord]]:
    """Each user's credentials by their mechanism."""
    found: dict[str, dict[int, UserScramCredentialRecord]] = {}
    for record in image.kept.values():
        if isinstance(record, UserScramCredentialRecord):
            found.setdefault(record.name, {})[record.mechanism] = record
    return found


def alter_credentials(
    image: MetadataImage, environment: Environment, request: AlterUserScramCredentialsRequest
) -> Decision[AlterUserScramCredentialsResponse]:
    """Decide on each user's credentials."""
    del environment
    known = credentials_of(image)
    wanted: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    found: dict[str, Versioned | KafkaError] = {}
    for change in wanted:
        before = found.get(change.name)
        if before is None:
            found[change.name] = _decide(known.get(change.name, {}), change)
        elif not isinstance(before, KafkaError):
            sentence = "A user credential cannot be altered twice in the same request"
            found[change.name] = KafkaError(ErrorCode.DUPLICATE_RESOURCE, sentence)
    records = [made for made in found.values() if not isinstance(made, KafkaError)]
    results = [_result(name, made) for name, made in found.items()]
    return Decision(records, AlterUserScramCredentialsResponse(results=results), is_atomic=False)


def _result(name: str, made: Versioned | KafkaError) -> AlteredScramUser:
    if isinstance(made, KafkaError):
        return AlteredScramUser(user=name, error_code=made.code, error_message=made.message)
    return AlteredScramUser(user=name, error_code=ErrorCode.NONE)


def _decide(
    known: dict[int, UserScramCredentialRecord], change: ScramCredentialDeletion | ScramCredentialUpsertion
) -> Versioned | KafkaError:
    try:
        return _record(known, change)
    except KafkaError as refusal:
        return refusal


def _record(
    known: dict[int, UserScramCredentialRecord], change: ScramCredentialDeletion | ScramCredentialUpsertion
) -> Versioned:
    if not change.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism not in _HASHES:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, ScramCredentialUpsertion):
        return _credential(change), 0
    if change.mechanism not in known:
        sentence = "Attempt to delete a user credential that does not exist"
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, sentence)
    return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism), 0


def _credential(wanted: ScramCredentialUpsertion) -> UserScramCredentialRecord:
    if not MIN_ITERATIONS <= wanted.iterations <= MAX_ITERATIONS:
        words = "few" if wanted.iterations < MIN_ITERATIONS else "many"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too {words} iterations")
    if not wanted.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salted password must not be empty")
    algorithm = _HASHES[wanted.mechanism]
    client_key = hmac.digest(wanted.salted_password, b"Client Key", algorithm)
    return UserScramCredentialRecord(
        name=wanted.name,
        mechanism=wanted.mechanism,
        salt=wanted.salt,
        stored_key=algorithm(client_key).digest(),
        server_key=hmac.digest(wanted.salted_password, b"Server Key", algorithm),
        iterations=wanted.iterations,
    )


def describe_credentials(
    image: MetadataImage, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Who has which credentials, but for what is secret."""
    known = credentials_of(image)
    asked = Counter(user.name for user in request.users or ())
    names: Iterable[str] = asked or sorted(known)
    results = [_described(name, known.get(name, {}), is_repeated=asked[name] > 1) for name in names]
    return DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, error_message="", results=results)


def _described(name: str, known: dict[int, UserScramCredentialRecord], *, is_repeated: bool) -> DescribedScramUser:
    if is_repeated:
        code = ErrorCode.DUPLICATE_RESOURCE
        sentence = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif not known:
        code = ErrorCode.RESOURCE_NOT_FOUND
        sentence = f"Attempt to describe a user credential that does not exist: {name}"
    else:
        infos = [CredentialInfo(mechanism=kind, iterations=found.iterations) for kind, found in sorted(known.items())]
        return DescribedScramUser(user=name, error_code=ErrorCode.NONE, error_message="", credential_infos=infos)
    return DescribedScramUser(user=name, error_code=code, error_message=sentence, credential_infos=[])
