"""Quotas of users, client ids and addresses: list, set, delete.

RULES    1. An entity is a mapping of entity type to name; the name None is the default of its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest

from barnabas.admin.client import Client
from barnabas.admin.errors import check

TYPES = ("user", "client-id", "ip")
DEFAULT = "<default>"
"""How the default of a type is written."""
_EXACT, _DEFAULT = 0, 1
"""Match types of DescribeClientQuotas."""
Entity = Mapping[str, str | None]


class Quota(NamedTuple):
    """A quota of an entity, and its value: bytes/s, percent, requests or connections/s, by the key."""

    entity: dict[str, str | None]
    key: str
    value: float


def list_quotas(client: Client, entity: Entity, *, exact: bool = False) -> list[Quota]:
    """Returns the quotas of entities that have these types and names; none: all. Raises Refused.

    Args:
        client: The cluster.
        entity: The types and names (rule 1).
        exact: Only of the entity that has no other types.
    """
    kind: Any = DescribeClientQuotasRequest.ComponentData
    components = [
        kind(entity_type=entity_type, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for entity_type, name in entity.items()
    ]
    response = client.ask_controller(DescribeClientQuotasRequest(components=components, strict=exact))
    check(response.error_code, response.error_message, "list quotas", "DescribeConfigs on the cluster")
    found = [
        Quota({part.entity_type: part.entity_name for part in entry.entity}, value.key, value.value)
        for entry in response.entries or ()
        for value in entry.values
    ]
    return sorted(found, key=lambda quota: (entity_text(quota.entity), quota.key))


def alter_quotas(
    client: Client, entity: Entity, changes: Mapping[str, float | None], *, validate_only: bool = False
) -> None:
    """Sets quotas of an entity, and deletes those whose value is None. Raises Refused."""
    kinds: Any = AlterClientQuotasRequest.EntryData
    parts = [kinds.EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in entity.items()]
    operations = [
        kinds.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
        for key, value in changes.items()
    ]
    entries = [kinds(entity=parts, ops=operations)]
    response = client.ask_controller(AlterClientQuotasRequest(entries=entries, validate_only=validate_only))
    for entry in response.entries:
        action = f"alter quotas of {entity_text(entity)}"
        check(entry.error_code, entry.error_message, action, "AlterConfigs on the cluster")


def entity_text(entity: Entity) -> str:
    """An entity in one word: `user=alice,client-id=<default>`."""
    order = sorted(entity, key=lambda entity_type: TYPES.index(entity_type) if entity_type in TYPES else len(TYPES))
    return ",".join(
        f"{entity_type}={DEFAULT if entity[entity_type] is None else entity[entity_type]}" for entity_type in order
    )
