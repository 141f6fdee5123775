"""The client quotas of an image by entity, and which of them applies to a client.

SOURCE   Apache Kafka 4.3: `ClientQuotaManager.DefaultQuotaCallback` (KIP-55, KIP-124, KIP-599).
RULES    1. A quota belongs to a user, a client id, both together, or an IP address; a null name is the default entity.
         2. For each kind of quota the first of these applies: user and client id, user and default client, user, default user
            and client id, default user and default client, default user, client id, default client.
         3. Clients share a quota: those of one user if it is a user's (or the default user's), those of one client id if it is
            a client id's, otherwise those of the same user and client id.
NOT HERE Changes (`controller/configs/quotas.py`), enforcement (`broker/quotas/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from protocol.messages.stored_records import EntityData

CLIENT_ID: Final = "client-id"
USER: Final = "user"
IP: Final = "ip"
ENTITY_TYPES: Final = (CLIENT_ID, USER, IP)

Entity = tuple[tuple[str, str | None], ...]
"""(type, name) of the parts, in the order of `ENTITY_TYPES`; the name of a default entity is None."""


Quotas = Mapping[Entity, Mapping[str, float]]
"""The quotas of each entity by kind."""


def entity_of(parts: Iterable[EntityData]) -> Entity:
    """The entity with these parts."""
    names_by_type = {part.entity_type: part.entity_name for part in parts}
    known = [(kind, names_by_type[kind]) for kind in ENTITY_TYPES if kind in names_by_type]
    return (*known, *sorted((kind, name) for kind, name in names_by_type.items() if kind not in ENTITY_TYPES))


def parts_of(entity: Entity) -> list[EntityData]:
    """The parts of an entity as in records and responses."""
    return [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]


class ClientQuota(NamedTuple):
    """The quota that applies to a client."""

    bound: float
    user: str
    """The user whose clients share it; "" if users do not matter."""
    client_id: str
    """The client id whose clients share it; "" if client ids do not matter."""


def find_quota(quotas: Quotas, key: str, user: str, client_id: str) -> ClientQuota | None:
    """The quota of one kind for a client; None: no quota applies."""
    this_user, any_user = (USER, user), (USER, None)
    this_client, any_client = (CLIENT_ID, client_id), (CLIENT_ID, None)
    candidates: tuple[tuple[Entity, str, str], ...] = (
        ((this_client, this_user), user, client_id),
        ((any_client, this_user), user, client_id),
        ((this_user,), user, ""),
        ((this_client, any_user), user, client_id),
        ((any_client, any_user), user, client_id),
        ((any_user,), user, ""),
        ((this_client,), "", client_id),
        ((any_client,), "", client_id),
    )
    for entity, shared_user, shared_client_id in candidates:
        bound = quotas.get(entity, {}).get(key)
        if bound is not None:
            return ClientQuota(bound, shared_user, shared_client_id)
    return None
