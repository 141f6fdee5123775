"""What the metadata log holds for others: quotas, access control entries, SCRAM credentials, delegation tokens.

RULES    1. Whoever goes on with the directory finds it all: a record is kept until another replaces it or takes it back.
         2. Nothing here is obeyed; quotas and SCRAM credentials can be changed and are shown. Each kind moves to a place of
            its own when this broker begins to obey it.
NOT HERE Their fields (`protocol/messages/stored_records.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from protocol.messages import stored_records
from protocol.schema import Message

Key = tuple[object, ...]


def _quota(record: stored_records.ClientQuotaRecord) -> Key:
    entity = sorted((part.entity_type, part.entity_name) for part in record.entity)
    return "quota", *entity, record.key


_KEYS: dict[type[Message], Callable[[Any], Key]] = {
    stored_records.ClientQuotaRecord: _quota,
    stored_records.AccessControlEntryRecord: lambda record: ("acl", record.id),
    stored_records.RemoveAccessControlEntryRecord: lambda record: ("acl", record.id),
    stored_records.UserScramCredentialRecord: lambda record: ("scram", record.name, record.mechanism),
    stored_records.RemoveUserScramCredentialRecord: lambda record: ("scram", record.name, record.mechanism),
    stored_records.DelegationTokenRecord: lambda record: ("token", record.token_id),
    stored_records.RemoveDelegationTokenRecord: lambda record: ("token", record.token_id),
}


def key_of(record: Message) -> Key:
    """What a record sets or takes back; equal for both."""
    return _KEYS[type(record)](record)


def of_kind(kept: Mapping[Key, Message], *kinds: type[Message]) -> Iterator[Message]:
    """The records of these kinds, kind by kind."""
    for kind in kinds:
        yield from (record for record in kept.values() if type(record) is kind)
