"""Which of several quotas applies to a client (replication/metadata/client_quotas.py)."""

from __future__ import annotations

from itertools import combinations

import pytest

from protocol.messages.stored_records import EntityData
from replication.metadata.client_quotas import ClientQuota, Entity, entity_of, find_quota, parts_of

KEY = "producer_byte_rate"
CASES: list[tuple[Entity, tuple[str, str]]] = [
    ((("client-id", "c"), ("user", "u")), ("u", "c")),
    ((("client-id", None), ("user", "u")), ("u", "c")),
    ((("user", "u"),), ("u", "")),
    ((("client-id", "c"), ("user", None)), ("u", "c")),
    ((("client-id", None), ("user", None)), ("u", "c")),
    ((("user", None),), ("u", "")),
    ((("client-id", "c"),), ("", "c")),
    ((("client-id", None),), ("", "c")),
]
"""The entities in Kafka's order of precedence, and which clients share their quota."""
OTHERS: list[Entity] = [(("client-id", "d"), ("user", "u")), (("client-id", "c"), ("user", "v")), (("ip", None),)]


@pytest.mark.parametrize("size", range(1, len(CASES) + 1))
def test_the_first_in_the_order_of_precedence_applies(size: int) -> None:
    for chosen in combinations(range(len(CASES)), size):
        quotas = {CASES[index][0]: {KEY: 100.0 + index} for index in reversed(chosen)}
        quotas |= {entity: {KEY: 1.0} for entity in OTHERS}
        first = chosen[0]
        assert find_quota(quotas, KEY, "u", "c") == ClientQuota(100.0 + first, *CASES[first][1])


def test_quotas_of_another_kind_hide_nothing() -> None:
    quotas = {CASES[0][0]: {"consumer_byte_rate": 1.0}, CASES[-1][0]: {KEY: 2.0}}
    assert find_quota(quotas, KEY, "u", "c") == ClientQuota(2.0, "", "c")
    assert find_quota(quotas, "request_percentage", "u", "c") is None


def test_the_parts_of_an_entity_have_a_fixed_order() -> None:
    parts = [
        EntityData(entity_type="user", entity_name=None),
        EntityData(entity_type="x", entity_name="b"),
        EntityData(entity_type="client-id", entity_name="c"),
    ]
    entity = (("client-id", "c"), ("user", None), ("x", "b"))
    assert entity_of(parts) == entity
    assert entity_of(parts_of(entity)) == entity
