"""Client quotas and SCRAM credentials."""

from __future__ import annotations

from protocol.messages.common import ErrorMessageResponse, Response
from protocol.messages.stored_records import EntityData
from protocol.schema import Float64, Int8, Int16, Int32, Message

# ---- quotas ----------------------------------------------------------------------------------------------


class QuotaFilter(Message):
    """A filter on one entity type; match_type: 0 exact name, 1 the default entity, 2 any."""

    entity_type: str
    match_type: Int8
    match: str | None


class DescribeClientQuotasRequest(Message, api_key=48, versions=(0, 1), flexible=1):
    """Describe quotas; strict excludes entities with other entity types."""

    components: list[QuotaFilter]
    strict: bool


class QuotaValue(Message):
    """One quota."""

    key: str
    value: Float64


class QuotaEntry(Message):
    """The quotas of one entity."""

    entity: list[EntityData]
    values: list[QuotaValue]


class DescribeClientQuotasResponse(ErrorMessageResponse, request=DescribeClientQuotasRequest):
    entries: list[QuotaEntry] | None


class QuotaChange(Message):
    """Set or remove one quota."""

    key: str
    value: Float64
    remove: bool


class AlteredQuotas(Message):
    """Changes to one entity's quotas."""

    entity: list[EntityData]
    ops: list[QuotaChange]


class AlterClientQuotasRequest(Message, api_key=49, versions=(0, 1), flexible=1):
    """Change quotas."""

    entries: list[AlteredQuotas]
    validate_only: bool


class AlteredQuotasResult(Message):
    """The result for one entity."""

    error_code: Int16
    error_message: str | None = None
    entity: list[EntityData]


class AlterClientQuotasResponse(Response, request=AlterClientQuotasRequest):
    entries: list[AlteredQuotasResult]


# ---- SCRAM credentials -----------------------------------------------------------------------------------


class ScramUser(Message):
    """A user to describe."""

    name: str


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions=(0, 0), flexible=0):
    """Describe SCRAM credentials; null or an empty list means all users."""

    users: list[ScramUser] | None


class CredentialInfo(Message):
    """The mechanism and iterations of a credential; mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    mechanism: Int8
    iterations: Int32


class AlteredScramUser(Message):
    """The result for one user."""

    user: str
    error_code: Int16
    error_message: str | None = None


class DescribedScramUser(AlteredScramUser):
    """The credentials of one user."""

    credential_infos: list[CredentialInfo]


class DescribeUserScramCredentialsResponse(ErrorMessageResponse, request=DescribeUserScramCredentialsRequest):
    results: list[DescribedScramUser]


class ScramCredentialDeletion(Message):
    """A credential to delete."""

    name: str
    mechanism: Int8


class ScramCredentialUpsertion(Message):
    """A credential to create or change; the client salts the password."""

    name: str
    mechanism: Int8
    iterations: Int32
    salt: bytes
    salted_password: bytes


class AlterUserScramCredentialsRequest(Message, api_key=51, versions=(0, 0), flexible=0):
    """Change SCRAM credentials."""

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlterUserScramCredentialsResponse(Response, request=AlterUserScramCredentialsRequest):
    results: list[AlteredScramUser]
