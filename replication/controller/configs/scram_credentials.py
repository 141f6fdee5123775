"""AlterUserScramCredentials and DescribeUserScramCredentials.

RULES    1. The client sends the salted password. The stored keys of RFC 5802 are not enough to log in.
         2. A request changes at most one credential per user; users are independent.
         3. The checks and messages are Apache Kafka 4.3's (ScramControlManager).
NOT HERE Authentication with SCRAM (`broker/security/sasl/scram.py`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import quotas_scram
from protocol.messages.stored_records import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from replication.controller.decision_context import DecisionContext
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import Versioned
from replication.metadata.opaque_records import key_of
from replication.state_machine import Decision

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_HASHES = {1: hashlib.sha256, 2: hashlib.sha512}
MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
"""The number in records and the hash function of each mechanism."""

_Change = quotas_scram.ScramCredentialDeletion | quotas_scram.ScramCredentialUpsertion


def credentials_of(image: MetadataImage) -> dict[str, dict[int, UserScramCredentialRecord]]:
    """The credentials of each user, by mechanism."""
    credentials: dict[str, dict[int, UserScramCredentialRecord]] = {}
    for record in image.opaque_records.values():
        if isinstance(record, UserScramCredentialRecord):
            credentials.setdefault(record.name, {})[record.mechanism] = record
    return credentials


def alter_credentials(
    context: DecisionContext, request: quotas_scram.AlterUserScramCredentialsRequest
) -> Decision[quotas_scram.AlterUserScramCredentialsResponse]:
    """Decide on the credentials of each user."""
    wanted: list[_Change] = [*request.deletions, *request.upsertions]
    outcomes: dict[str, Versioned | KafkaError] = {}
    for change in wanted:
        before = outcomes.get(change.name)
        if before is None:
            try:
                outcomes[change.name] = _record(context.image, change)
            except KafkaError as error:
                outcomes[change.name] = error
        elif not isinstance(before, KafkaError):
            message = "A user credential cannot be altered twice in the same request"
            outcomes[change.name] = KafkaError(ErrorCode.DUPLICATE_RESOURCE, message)
    records = [outcome for outcome in outcomes.values() if not isinstance(outcome, KafkaError)]
    results = [_result(name, outcome) for name, outcome in outcomes.items()]
    return Decision(records, quotas_scram.AlterUserScramCredentialsResponse(results=results), is_atomic=False)


def _result(name: str, outcome: Versioned | KafkaError) -> quotas_scram.AlteredScramUser:
    if isinstance(outcome, KafkaError):
        return quotas_scram.AlteredScramUser(user=name, error_code=outcome.code, error_message=outcome.message)
    return quotas_scram.AlteredScramUser(user=name, error_code=ErrorCode.NONE)


def _record(image: MetadataImage, change: _Change) -> Versioned:
    if not change.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism not in _HASHES:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, quotas_scram.ScramCredentialUpsertion):
        return _credential(change), 0
    removal = RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    if key_of(removal) not in image.opaque_records:
        message = "Attempt to delete a user credential that does not exist"
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    return removal, 0


def _credential(wanted: quotas_scram.ScramCredentialUpsertion) -> UserScramCredentialRecord:
    if not MIN_ITERATIONS <= wanted.iterations <= MAX_ITERATIONS:
        words = "few" if wanted.iterations < MIN_ITERATIONS else "many"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too {words} iterations")
    if not wanted.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salted password must not be empty")
    return credential_record(wanted.name, wanted.mechanism, wanted.salt, wanted.salted_password, wanted.iterations)


def credential_record(
    name: str, mechanism: int, salt: bytes, salted_password: bytes, iterations: int
) -> UserScramCredentialRecord:
    """The record of a credential (RFC 5802, section 3)."""
    algorithm = _HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", algorithm)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=salt,
        stored_key=algorithm(client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", algorithm),
        iterations=iterations,
    )


def describe_credentials(
    image: MetadataImage, request: quotas_scram.DescribeUserScramCredentialsRequest
) -> quotas_scram.DescribeUserScramCredentialsResponse:
    """The mechanisms and iterations of the credentials, without secrets."""
    known = credentials_of(image)
    requested = Counter(user.name for user in request.users or ())
    names: Iterable[str] = requested or sorted(known)
    results = [_described(name, known.get(name, {}), is_repeated=requested[name] > 1) for name in names]
    return quotas_scram.DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE, error_message="", results=results
    )


def _described(
    name: str, known: dict[int, UserScramCredentialRecord], *, is_repeated: bool
) -> quotas_scram.DescribedScramUser:
    if is_repeated:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif not known:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {name}"
    else:
        infos = [
            quotas_scram.CredentialInfo(mechanism=kind, iterations=outcomes.iterations)
            for kind, outcomes in sorted(known.items())
        ]
        return quotas_scram.DescribedScramUser(
            user=name, error_code=ErrorCode.NONE, error_message="", credential_infos=infos
        )
    return quotas_scram.DescribedScramUser(user=name, error_code=code, error_message=message, credential_infos=[])
