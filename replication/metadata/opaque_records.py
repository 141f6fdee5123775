"""Records that an image keeps as they are: SCRAM credentials, delegation tokens.

RULES    1. A record is kept until a record with the same key replaces or removes it.
         2. SCRAM authentication looks up credentials and tokens by their key.
NOT HERE Their fields (`protocol/messages/stored_records.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from protocol.messages import stored_records
from protocol.schema import Message

Key = tuple[object, ...]


_KEYS: dict[type[Message], Callable[[Any], Key]] = {
    stored_records.UserScramCredentialRecord: lambda record: ("scram", record.name, record.mechanism),
    stored_records.RemoveUserScramCredentialRecord: lambda record: ("scram", record.name, record.mechanism),
    stored_records.DelegationTokenRecord: lambda record: ("token", record.token_id),
    stored_records.RemoveDelegationTokenRecord: lambda record: ("token", record.token_id),
}


def key_of(record: Message) -> Key:
    """The key of what a record sets or removes."""
    return _KEYS[type(record)](record)


def of_kind(opaque_records: Mapping[Key, Message], *kinds: type[Message]) -> Iterator[Message]:
    """The records of these types, type by type."""
    for kind in kinds:
        yield from (record for record in opaque_records.values() if type(record) is kind)
