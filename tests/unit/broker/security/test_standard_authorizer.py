"""Decisions of the authorizer (broker/security/standard_authorizer.py), also against a model without index or cache."""

from __future__ import annotations

import itertools
import logging
import random
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.security.authorizer import NotLoaded, Operation, Resource
from broker.security.operations import OPERATION_CODES, RESOURCE_CODES, authorized_operations
from broker.security.standard_authorizer import StandardAuthorizer
from protocol.api import ApiKey
from replication.metadata.acls import CLUSTER_NAME, Acl
from tests.support.seeds import seed_of

TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL, PREFIXED = 3, 4
ALL, READ, WRITE, DELETE, DESCRIBE = 2, 3, 4, 6, 8
DENY, ALLOW = 2, 3


@dataclass
class Connection:
    principal: str = "User:ann"
    peer_host: str = "10.0.0.1"


@dataclass
class Request:
    connection: Connection = field(default_factory=Connection)
    api_key: int = ApiKey.FETCH


def acl(
    name: str, operation: int = READ, permission: int = ALLOW, *, pattern: int = LITERAL, kind: int = TOPIC,
    principal: str = "User:ann", host: str = "*",
) -> Acl:  # fmt: skip
    return Acl(kind, name, pattern, principal, host, operation, permission)


def authorizer(*acls: Acl, **settings: Any) -> StandardAuthorizer:
    made = StandardAuthorizer(**settings)
    made.update(by_id(acls))
    return made


def by_id(acls: Any) -> dict[bytes, Acl]:
    return {number.to_bytes(16, "big"): one for number, one in enumerate(acls)}


def may(made: StandardAuthorizer, operation: str, name: str, kind: str = Resource.TOPIC, **who: str) -> bool:
    return made.authorize(Request(Connection(**who)), operation, kind, name)


@pytest.mark.parametrize(
    ("entries", "operation", "name", "expected"),
    [
        ([], Operation.READ, "t", False),
        ([acl("t")], Operation.READ, "t", True),
        ([acl("t")], Operation.READ, "t2", False),
        ([acl("t")], Operation.WRITE, "t", False),
        ([acl("t", ALL)], Operation.WRITE, "t", True),
        ([acl("*")], Operation.READ, "t", True),
        ([acl("t", pattern=PREFIXED)], Operation.READ, "t2", True),
        ([acl("t", kind=GROUP)], Operation.READ, "t", False),
        ([acl("t", principal="User:*")], Operation.READ, "t", True),
        ([acl("t", principal="User:bob")], Operation.READ, "t", False),
        ([acl("t", host="10.0.0.1")], Operation.READ, "t", True),
        ([acl("t", host="10.0.0.2")], Operation.READ, "t", False),
        ([acl("t"), acl("*", permission=DENY)], Operation.READ, "t", False),
        ([acl("t"), acl("", permission=DENY, pattern=PREFIXED)], Operation.READ, "t", False),
        *(([acl("t", operation)], Operation.DESCRIBE, "t", True) for operation in (READ, WRITE, DELETE, 7, DESCRIBE)),
        ([acl("t", 5)], Operation.DESCRIBE, "t", False),
        ([acl("t", 11)], Operation.DESCRIBE_CONFIGS, "t", True),
        ([acl("t", READ, DENY), acl("t", WRITE)], Operation.DESCRIBE, "t", True),
        ([acl("t", DESCRIBE)], Operation.READ, "t", False),
    ],
)
def test_entries_decide(entries: list[Acl], operation: str, name: str, expected: bool) -> None:
    assert may(authorizer(*entries), operation, name) is expected


def test_super_users_need_no_entries_and_no_image() -> None:
    made = StandardAuthorizer(["User:ann"])
    assert may(made, Operation.ALTER, CLUSTER_NAME, Resource.CLUSTER)
    with pytest.raises(NotLoaded):
        may(made, Operation.ALTER, CLUSTER_NAME, Resource.CLUSTER, principal="User:bob")


def test_a_resource_with_any_entry_is_not_open_to_everyone() -> None:
    made = authorizer(acl("t", principal="User:bob"), acl("p", WRITE, pattern=PREFIXED), allows_without_acl=True)
    assert [may(made, Operation.READ, name) for name in ("t", "p1", "free")] == [False, False, True]


def test_a_change_of_entries_counts_at_once() -> None:
    made = authorizer(acl("t"))
    assert may(made, Operation.READ, "t")
    made.update(by_id([acl("t"), acl("t", permission=DENY)]))
    assert not may(made, Operation.READ, "t")
    made.update(by_id([acl("t")]))
    assert may(made, Operation.READ, "t")
    made.update({})
    assert not may(made, Operation.READ, "t")


@pytest.mark.parametrize(
    ("peer", "entry"),
    [("::1", "0:0:0:0:0:0:0:1"), ("fe80::a%eth0", "fe80:0:0:0:0:0:0:a%eth0"), ("::ffff:10.1.2.3", "10.1.2.3")],
)
def test_hosts_are_compared_as_java_prints_them(peer: str, entry: str) -> None:
    assert may(authorizer(acl("t", host=entry)), Operation.READ, "t", peer_host=peer)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], False),
        ([acl("a", WRITE)], True),
        ([acl("a", READ)], False),
        ([acl("a", WRITE), acl("a", ALL, DENY)], False),
        ([acl("a", WRITE), acl("a", READ, DENY)], True),
        ([acl("abc", WRITE), acl("ab", WRITE, DENY, pattern=PREFIXED)], False),
        ([acl("abc", WRITE, pattern=PREFIXED), acl("abc", WRITE, DENY)], True),
        ([acl("*", WRITE), acl("a", WRITE, DENY)], True),
        ([acl("a", WRITE), acl("*", WRITE, DENY)], False),
        ([acl("a", WRITE, host="10.0.0.2")], False),
        ([acl("a", WRITE, kind=GROUP)], False),
    ],
)
def test_authorize_any_needs_one_resource_that_is_allowed_and_not_denied(entries: list[Acl], expected: bool) -> None:
    """InitProducerId without a transactional id."""
    assert authorizer(*entries).authorize_any(Request(), Operation.WRITE, Resource.TOPIC) is expected


def test_long_names_of_denied_resources_are_not_kept() -> None:
    made = authorizer(acl("t"))
    tracemalloc.start()
    try:
        for number in range(2_000):
            assert not may(made, Operation.DESCRIBE, f"{number} {'x' * 10_000}")
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def test_authorized_operations_are_bits_with_the_implied_ones() -> None:
    made = authorizer(acl("t", READ), acl("t", 10))
    assert authorized_operations(made, Request(), Resource.TOPIC, "t") == 1 << 3 | 1 << 8 | 1 << 10


def test_the_audit_log_has_kafkas_sentences(caplog: pytest.LogCaptureFixture) -> None:
    made = authorizer(acl("t", host="10.0.0.1"), acl("n", pattern=PREFIXED, permission=DENY), super_users=["User:root"])
    with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
        assert may(made, Operation.READ, "t")
        assert not may(made, Operation.DESCRIBE_CONFIGS, "n1")
        assert not may(made, Operation.READ, "n1")
        assert may(made, Operation.READ, "x", principal="User:root")
        assert not made.authorize(Request(), Operation.READ, Resource.TOPIC, "n1", log_denied=False)
    start = (
        "Principal = User:ann is {} operation = {} from host = 10.0.0.1 on resource = Topic:LITERAL:{} "
        "for request = Fetch with "
    )
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("DEBUG", start.format("Allowed", "READ", "t") + "resourceRefCount = 1 based on rule MatchingAcl(acl=StandardAcl["
         "resourceType=TOPIC, resourceName=t, patternType=LITERAL, principal=User:ann, host=10.0.0.1, operation=READ, "
         "permissionType=ALLOW])"),
        ("INFO", start.format("Denied", "DESCRIBE_CONFIGS", "n1") + "resourceRefCount = 1 based on rule DefaultDeny"),
        ("INFO", start.format("Denied", "READ", "n1") + "resourceRefCount = 1 based on rule MatchingAcl(acl=StandardAcl["
         "resourceType=TOPIC, resourceName=n, patternType=PREFIXED, principal=User:ann, host=*, operation=READ, "
         "permissionType=DENY])"),
        ("DEBUG", start.format("Allowed", "READ", "x").replace("ann", "root")
         + "resourceRefCount = 1 based on rule SuperUser"),
    ]  # fmt: skip


# ---- a model: all entries, in the words of KIP-11, KIP-290 and StandardAuthorizer

IMPLIES = {DESCRIBE: {DESCRIBE, READ, WRITE, DELETE, 7}, 10: {10, 11}}
NAMES = ("", "a", "ab", "abc", "b", "*")
PRINCIPALS, HOSTS = ("User:ann", "User:bob"), ("10.0.0.1", "10.0.0.2")


def model(entries: list[Acl], who: Connection, operation: int, kind: int, name: str, *, default: bool) -> bool:
    patterns = [
        one for one in entries
        if one.resource_type == kind
        and (name.startswith(one.resource_name) if one.pattern_type == PREFIXED else one.resource_name in (name, "*"))
    ]  # fmt: skip
    about = [one for one in patterns if one.principal in (who.principal, "User:*") and one.host in (who.peer_host, "*")]
    if any(one.permission_type == DENY and one.operation in (operation, ALL) for one in about):
        return False
    allowed = IMPLIES.get(operation, {operation}) | {ALL}
    if any(one.permission_type == ALLOW and one.operation in allowed for one in about):
        return True
    return default and not patterns


def random_acl(rng: random.Random) -> Acl:
    return Acl(
        rng.choice((TOPIC, TOPIC, GROUP)), rng.choice(NAMES), rng.choice((LITERAL, PREFIXED)),
        rng.choice((*PRINCIPALS, "User:*")), rng.choice((*HOSTS, "*")), rng.choice((ALL, READ, WRITE, 7, 8, 10, 11)),
        rng.choice((DENY, ALLOW, ALLOW)),
    )  # fmt: skip


def test_every_decision_is_the_models() -> None:
    seed = seed_of()
    print(f"seed {seed}")
    rng = random.Random(seed)
    outcomes = set()
    for default in (False, True) * 20:
        made = StandardAuthorizer(allows_without_acl=default)
        acls: dict[bytes, Acl] = {}
        for _ in range(12):
            acls = dict(acls)
            if acls and rng.random() < 0.4:
                del acls[rng.choice(list(acls))]
            else:
                acls[rng.randbytes(16)] = random_acl(rng)
            made.update(acls)
            questions = itertools.product(
                PRINCIPALS, HOSTS, (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
                (Resource.TOPIC, Resource.GROUP), NAMES,
            )  # fmt: skip
            for principal, host, operation, kind, name in questions:
                who = Connection(principal, host)
                expected = model(
                    list(acls.values()), who, OPERATION_CODES[operation], RESOURCE_CODES[kind], name, default=default
                )
                assert made.authorize(Request(who), operation, kind, name) is expected, (acls, who, operation, name)
                outcomes.add((default, expected))
    assert len(outcomes) == 4
