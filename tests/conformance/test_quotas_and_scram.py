"""Quotas and SCRAM credentials compared with Apache Kafka: what is stored, and what is described."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas import Broker
from protocol.messages.quotas_scram import (
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    QuotaFilter,
    ScramUser,
)
from tests.conformance.brokers import BOTH, running
from tests.support.admin_cases import normalised
from tests.support.cluster_cases import altered, credential, gone
from tests.support.kafka import needs_kafka, run_tool
from tests.support.raw_client import RawClient
from tests.support.waiting import until

RATE = "producer_byte_rate"
EXACT, DEFAULT, ANY = 0, 1, 2
MIXED = (
    "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter "
    "component."
)
FILTERS: list[tuple[list[tuple[str, int, str | None]], bool]] = [
    ([], False),
    ([], True),
    *(([("user", EXACT, "a")], strict) for strict in (False, True)),
    *(([("user", DEFAULT, None)], strict) for strict in (False, True)),
    *(([("user", ANY, None)], strict) for strict in (False, True)),
    ([("client-id", ANY, None)], False),
    ([("client-id", ANY, None), ("user", ANY, None)], True),
    ([("ip", EXACT, "1.2.3.4")], True),
    ([("user", EXACT, "nobody")], False),
    ([("user", EXACT, "a"), ("user", EXACT, "b")], False),
    ([("x", EXACT, "a")], False),
    ([("", EXACT, "a")], False),
    ([("user", 3, None)], False),
    ([("user", EXACT, None)], False),
    ([("user", DEFAULT, "x")], False),
    ([("user", ANY, "x")], False),
    ([("ip", ANY, None), ("user", ANY, None)], False),
]


@pytest.fixture(params=BOTH)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    with running(request.param) as broker:
        yield broker.bootstrap


def quotas(client: RawClient, components: list[tuple[str, int, str | None]], *, strict: bool = False) -> Any:
    """The quotas that match these filters."""
    filters = [QuotaFilter(entity_type=kind, match_type=how, match=text) for kind, how, text in components]
    response = client.ask(DescribeClientQuotasRequest(components=filters, strict=strict), 1)
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
    names = [ScramUser(name=user) for user in users] or None
    response = client.ask(DescribeUserScramCredentialsRequest(users=names), 0)
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


A, BOTH, DEFAULT_USER, ADDRESS = {"user": "a"}, {"client-id": "c", "user": "a"}, {"user": None}, {"ip": "1.2.3.4"}


def test_quotas(bootstrap: str) -> None:
    """Set, described with every filter, changed, deleted."""
    wanted = [
        altered(A, (RATE, 1.0), ("request_percentage", 2.5)),
        altered(BOTH, (RATE, 2.0)),
        altered(DEFAULT_USER, (RATE, 3.0)),
        altered({"client-id": None}, (RATE, 4.0)),
        altered(ADDRESS, ("connection_creation_rate", 5.0)),
    ]
    with RawClient(bootstrap) as client:
        response = client.ask(AlterClientQuotasRequest(entries=wanted, validate_only=False), 1)
        assert [code for _, code, _ in normalised(response)] == [0] * 5
        user, both, default = (
            ("user=a", [(RATE, 1.0), ("request_percentage", 2.5)]),
            ("client-id=c,user=a", [(RATE, 2.0)]),
            ("user=None", [(RATE, 3.0)]),
        )
        client_id, address = ("client-id=None", [(RATE, 4.0)]), ("ip=1.2.3.4", [("connection_creation_rate", 5.0)])
        becomes(lambda: len(quotas(client, [])), 5)
        assert [quotas(client, components, strict=strict) for components, strict in FILTERS] == [
            [client_id, both, address, default, user],
            [],
            [both, user],
            [user],
            [default],
            [default],
            [both, default, user],
            [default, user],
            [client_id, both],
            [both],
            [address],
            [],
            (42, "Entity type user cannot appear more than once in the filter."),
            (35, "Unsupported entity type x"),
            (42, "Invalid empty entity type."),
            (42, "Unknown match type 3"),
            (42, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
            (42, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
            (42, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
            (42, MIXED),
        ]  # fmt: skip
        changes = [altered(A, (RATE, None), ("request_percentage", 7.0)), altered(BOTH, (RATE, None))]
        client.ask(AlterClientQuotasRequest(entries=changes, validate_only=False), 1)
        becomes(lambda: quotas(client, [("user", EXACT, "a")]), [("user=a", [("request_percentage", 7.0)])])


def test_credentials(bootstrap: str) -> None:
    """Created, described without secrets, replaced, deleted."""
    with RawClient(bootstrap) as client:
        client.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[credential("a", 2, 16_384)]), 0)
        made = [credential("b", 2, 8192), credential("a"), credential("bad", 1, 5)]
        response = client.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=made), 0)
        assert normalised(response) == [("a", 0, None), ("b", 0, None), ("bad", 93, "Too few iterations")]
        a, b = ("a", 0, None, [(1, 4096), (2, 16_384)]), ("b", 0, None, [(2, 8192)])
        becomes(lambda: credentials(client), [a, b])
        twice = "Cannot describe SCRAM credentials for the same user twice in a single request: b"
        unknown_user = "Attempt to describe a user credential that does not exist: c"
        assert credentials(client, "b", "a", "b", "c") == [a, ("b", 92, twice, []), ("c", 91, unknown_user, [])]
        changes = AlterUserScramCredentialsRequest(deletions=[gone("a", 2)], upsertions=[credential("b", 2, 5000)])
        assert normalised(client.ask(changes, 0)) == [("a", 0, None), ("b", 0, None)]
        becomes(lambda: credentials(client), [("a", 0, None, [(1, 4096)]), ("b", 0, None, [(2, 5000)])])


@needs_kafka
def test_the_tool_for_settings_knows_users_groups_and_subscriptions() -> None:
    """kafka-configs.sh, unchanged: quotas, a password."""
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        for arguments in (
            ("--entity-type", "users", "--entity-name", "a", "--alter", "--add-config", "producer_byte_rate=1024"),
            ("--entity-type", "users", "--entity-name", "a", "--alter", "--add-config", "SCRAM-SHA-256=[password=p]"),
        ):
            done = run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap, *arguments)
            assert done.returncode == 0, done.stdout + done.stderr
        assert quotas(client, []) == [("user=a", [(RATE, 1024.0)])]
        assert credentials(client) == [("a", 0, None, [(1, 4096)])]
