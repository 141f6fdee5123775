"""Quotas and SCRAM credentials compared with Apache Kafka: what is stored, and what is described."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from protocol.messages import quotas_scram
from tests.conformance.brokers import running
from tests.support.admin_cases import normalised
from tests.support.cluster_cases import altered, credential, gone
from tests.support.follower_harness import BOTH
from tests.support.raw_client import RawClient
from tests.support.waiting import until

RATE = "producer_byte_rate"
EXACT, DEFAULT, ANY = 0, 1, 2
TOO_MUCH = "Request specified MATCH_TYPE_{}, but also specified a match string."
MIXED = (
    "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter "
    "component."
)
USER = ("user=a", [(RATE, 1.0), ("request_percentage", 2.5)])
BOTH_PARTS = ("client-id=c,user=a", [(RATE, 2.0)])
DEFAULT_USER = ("user=None", [(RATE, 3.0)])
DEFAULT_CLIENT = ("client-id=None", [(RATE, 4.0)])
ADDRESS = ("ip=1.2.3.4", [("connection_creation_rate", 5.0)])
EVERYTHING = [DEFAULT_CLIENT, BOTH_PARTS, ADDRESS, DEFAULT_USER, USER]
Filter = tuple[str, int, str | None]
FILTERS: list[tuple[list[Filter], bool, Any]] = [
    ([], False, EVERYTHING),
    ([], True, []),
    ([("user", EXACT, "a")], False, [BOTH_PARTS, USER]),
    ([("user", EXACT, "a")], True, [USER]),
    ([("user", DEFAULT, None)], False, [DEFAULT_USER]),
    ([("user", DEFAULT, None)], True, [DEFAULT_USER]),
    ([("user", ANY, None)], False, [BOTH_PARTS, DEFAULT_USER, USER]),
    ([("user", ANY, None)], True, [DEFAULT_USER, USER]),
    ([("client-id", ANY, None)], False, [DEFAULT_CLIENT, BOTH_PARTS]),
    ([("client-id", ANY, None), ("user", ANY, None)], True, [BOTH_PARTS]),
    ([("ip", EXACT, "1.2.3.4")], True, [ADDRESS]),
    ([("user", EXACT, "nobody")], False, []),
    (
        [("user", EXACT, "a"), ("user", EXACT, "b")],
        False,
        (42, "Entity type user cannot appear more than once in the filter."),
    ),
    ([("x", EXACT, "a")], False, (35, "Unsupported entity type x")),
    ([("", EXACT, "a")], False, (42, "Invalid empty entity type.")),
    ([("user", 3, None)], False, (42, "Unknown match type 3")),
    ([("user", EXACT, None)], False, (42, "Request specified MATCH_TYPE_EXACT, but set match string to null.")),
    ([("user", DEFAULT, "x")], False, (42, TOO_MUCH.format("DEFAULT"))),
    ([("user", ANY, "x")], False, (42, TOO_MUCH.format("SPECIFIED"))),
    ([("ip", ANY, None), ("user", ANY, None)], False, (42, MIXED)),
]
"""The filters of a description, whether it is strict, and the quotas that the test sets, or the error."""


@pytest.fixture(params=BOTH)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    with running(request.param) as broker:
        yield broker.bootstrap


def quotas(client: RawClient, components: list[Filter], *, strict: bool = False) -> Any:
    """The quotas that match these filters."""
    filters = [quotas_scram.QuotaFilter(entity_type=kind, match_type=how, match=text) for kind, how, text in components]
    response = client.ask(quotas_scram.DescribeClientQuotasRequest(components=filters, strict=strict), 1)
    if response.entries is None:
        return response.error_code, response.error_message
    assert response.error_code == 0
    return sorted(
        (
            ",".join(f"{part.entity_type}={part.entity_name}" for part in entry.entity),
            sorted((value.key, value.value) for value in entry.values),
        )
        for entry in response.entries
    )


def credentials(client: RawClient, *users: str) -> list[tuple[str, int, str | None, list[tuple[int, int]]]]:
    """The described credentials of these users."""
    names = [quotas_scram.ScramUser(name=user) for user in users] or None
    response = client.ask(quotas_scram.DescribeUserScramCredentialsRequest(users=names), 0)
    assert response.error_code == 0
    return sorted(
        (
            row.user,
            row.error_code,
            row.error_message or None,
            sorted((info.mechanism, info.iterations) for info in row.credential_infos),  # Kafka's order is not defined
        )
        for row in response.results
    )


def becomes(look: Callable[[], object], wanted: object) -> None:
    until(lambda: look() == wanted, f"{wanted} is told")


def test_quotas_are_set_described_changed_and_deleted(bootstrap: str) -> None:
    """Set, described with every filter, changed, deleted."""
    user: dict[str, str | None] = {"user": "a"}
    both: dict[str, str | None] = {"client-id": "c", "user": "a"}
    wanted = [
        altered(user, (RATE, 1.0), ("request_percentage", 2.5)),
        altered(both, (RATE, 2.0)),
        altered({"user": None}, (RATE, 3.0)),
        altered({"client-id": None}, (RATE, 4.0)),
        altered({"ip": "1.2.3.4"}, ("connection_creation_rate", 5.0)),
    ]
    with RawClient(bootstrap) as client:
        response = client.ask(quotas_scram.AlterClientQuotasRequest(entries=wanted, validate_only=False), 1)
        assert [code for _, code, _ in normalised(response)] == [0] * 5
        becomes(lambda: len(quotas(client, [])), 5)
        assert [(one, strict, quotas(client, one, strict=strict)) for one, strict, _ in FILTERS] == FILTERS
        changes = [
            altered(user, (RATE, None), ("request_percentage", 7.0)),
            altered(both, (RATE, None)),
            altered(user, ("request_percentage", 8.0)),
        ]
        response = client.ask(quotas_scram.AlterClientQuotasRequest(entries=changes, validate_only=False), 1)
        twice = "Ignoring duplicate entity ClientQuotaEntity(entries={user=a})"
        assert sorted((code, message) for _, code, message in normalised(response)) == [(0, None), (42, twice)]
        becomes(lambda: quotas(client, [("user", EXACT, "a")]), [("user=a", [("request_percentage", 7.0)])])


def test_credentials_are_created_described_replaced_and_deleted(bootstrap: str) -> None:
    """Created, described without secrets, replaced, deleted."""
    with RawClient(bootstrap) as client:
        client.ask(
            quotas_scram.AlterUserScramCredentialsRequest(deletions=[], upsertions=[credential("a", 2, 16_384)]), 0
        )
        made = [credential("b", 2, 8192), credential("a"), credential("bad", 1, 5)]
        response = client.ask(quotas_scram.AlterUserScramCredentialsRequest(deletions=[], upsertions=made), 0)
        assert normalised(response) == [("a", 0, None), ("b", 0, None), ("bad", 93, "Too few iterations")]
        a, b = ("a", 0, None, [(1, 4096), (2, 16_384)]), ("b", 0, None, [(2, 8192)])
        becomes(lambda: credentials(client), [a, b])
        twice = "Cannot describe SCRAM credentials for the same user twice in a single request: b"
        unknown_user = "Attempt to describe a user credential that does not exist: c"
        assert credentials(client, "b", "a", "b", "c") == [a, ("b", 92, twice, []), ("c", 91, unknown_user, [])]
        changes = quotas_scram.AlterUserScramCredentialsRequest(
            deletions=[gone("a", 2)], upsertions=[credential("b", 2, 5000)]
        )
        assert normalised(client.ask(changes, 0)) == [("a", 0, None), ("b", 0, None)]
        becomes(lambda: credentials(client), [("a", 0, None, [(1, 4096)]), ("b", 0, None, [(2, 5000)])])
