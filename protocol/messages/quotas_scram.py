"""Messages about users: their quotas and their SCRAM credentials."""

from __future__ import annotations

from protocol.messages.stored_records import EntityData
from protocol.schema import Float64, Int8, Int16, Int32, Message

# ---- quotas ----------------------------------------------------------------------------------------------


class QuotaFilter(Message):
    """Which entities are meant; match_type: 0 this name, 1 the default, 2 any name or the default."""

    entity_type: str
    match_type: Int8
    match: str | None


class DescribeClientQuotasRequest(Message, api_key=48, versions=(0, 1), flexible=1):
    """Show quotas; strict: of entities that have no other part."""

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


class DescribeClientQuotasResponse(Message, api_key=48, versions=(0, 1), flexible=1):
    """The answer to DescribeClientQuotasRequest."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None = None
    entries: list[QuotaEntry] | None


class QuotaChange(Message):
    """One quota, set or taken back."""

    key: str
    value: Float64
    remove: bool


class AlteredQuotas(Message):
    """Changes of one entity's quotas."""

    entity: list[EntityData]
    ops: list[QuotaChange]


class AlterClientQuotasRequest(Message, api_key=49, versions=(0, 1), flexible=1):
    """Change quotas."""

    entries: list[AlteredQuotas]
    validate_only: bool


class AlteredQuotasResult(Message):
    """What became of one entity's changes."""

    error_code: Int16
    error_message: str | None = None
    entity: list[EntityData]


class AlterClientQuotasResponse(Message, api_key=49, versions=(0, 1), flexible=1):
    """The answer to AlterClientQuotasRequest."""

    throttle_time_ms: Int32 = 0
    entries: list[AlteredQuotasResult]


# ---- SCRAM credentials -----------------------------------------------------------------------------------


class ScramUser(Message):
    """A user who is asked about."""

    name: str


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions=(0, 0), flexible=0):
    """Who has which credentials? null or nobody: everybody."""

    users: list[ScramUser] | None


class CredentialInfo(Message):
    """A credential, but for what is secret; mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    mechanism: Int8
    iterations: Int32


class DescribedScramUser(Message):
    """What a user has."""

    user: str
    error_code: Int16
    error_message: str | None = None
    credential_infos: list[CredentialInfo]


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions=(0, 0), flexible=0):
    """The answer to DescribeUserScramCredentialsRequest."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None = None
    results: list[DescribedScramUser]


class ScramCredentialDeletion(Message):
    """A credential that goes."""

    name: str
    mechanism: Int8


class ScramCredentialUpsertion(Message):
    """A credential that comes; the password is salted by the client."""

    name: str
    mechanism: Int8
    iterations: Int32
    salt: bytes
    salted_password: bytes


class AlterUserScramCredentialsRequest(Message, api_key=51, versions=(0, 0), flexible=0):
    """Change credentials."""

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlteredScramUser(Message):
    """What became of a user's changes."""

    user: str
    error_code: Int16
    error_message: str | None = None


class AlterUserScramCredentialsResponse(Message, api_key=51, versions=(0, 0), flexible=0):
    """The answer to AlterUserScramCredentialsRequest."""

    throttle_time_ms: Int32 = 0
    results: list[AlteredScramUser]
