"""Random ACLs: Apache Kafka and Barnabas decide alike about what clients may do and see.

RULES    1. A round creates random ACLs on both brokers, asks both the same questions as two users from two addresses, describes
            ACLs by random filters, and deletes them. RANDOM_ACLS_SEED chooses all of it, and is printed.
         2. The order of lists, ids of processes in messages and the throttle times do not count.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, NamedTuple

import pytest

from barnabas import Broker
from protocol.api import APIS
from protocol.errors import ErrorCode
from replication.metadata.acls import OperationCode, PatternCode, PermissionCode, ResourceCode
from tests.conformance.brokers import new_producer
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import MODULE, handshake, jaas, listener_address, plain_token, sasl_node, send_token
from tests.support.waiting import until

SEED: Final = int(os.environ.get("RANDOM_ACLS_SEED") or random.randrange(10**6))
ROUNDS: Final = 8
USERS, SOURCES = ("alice", "bob"), ("127.0.0.1", "127.0.0.2")
TOPICS: Final = ("a", "ab", "b", "orders", "orders-eu")
GROUPS: Final = ("g", "ga", "b")
NAMES: Final = {
    ResourceCode.TOPIC: (*TOPICS, "*", "o", "ord", "z"),
    ResourceCode.GROUP: (*GROUPS, "*"),
    ResourceCode.CLUSTER: ("kafka-cluster",),
    ResourceCode.TRANSACTIONAL_ID: ("t", "tx", "*"),
}
EVERYTHING: Final = {
    "resource_type_filter": ResourceCode.ANY, "resource_name_filter": None, "pattern_type_filter": PatternCode.ANY,
    "principal_filter": None, "host_filter": None, "operation": OperationCode.ANY, "permission_type": PermissionCode.ANY,
}  # fmt: skip
SETTINGS: Final = {
    **jaas(plain=f'{MODULE}.plain.PlainLoginModule required user_alice="s" user_bob="s";'),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "auto.create.topics.enable": "false",
}


class Node(NamedTuple):
    """A broker: the address of its users, and a super user's connection."""

    secured: str
    admin: RawClient


def random_acl(choice: random.Random) -> dict[str, Any]:
    kind = choice.choice((*NAMES, ResourceCode.TOPIC, ResourceCode.TOPIC))
    patterns = (PatternCode.LITERAL,) if kind == ResourceCode.CLUSTER else (PatternCode.LITERAL, PatternCode.PREFIXED)
    return {
        "resource_type": kind,
        "resource_name": choice.choice(NAMES[kind]),
        "resource_pattern_type": choice.choice(patterns),
        "principal": choice.choice(("User:alice", "User:bob", "User:*", "Group:alice", "User:Alice")),
        "host": choice.choice(("*", "*", *SOURCES, "::1", "localhost")),
        "operation": choice.randint(OperationCode.ALL, OperationCode.IDEMPOTENT_WRITE),
        "permission_type": choice.choice((PermissionCode.DENY, *[PermissionCode.ALLOW] * 3)),
    }


def random_filter(choice: random.Random) -> dict[str, Any]:
    return {
        "resource_type_filter": choice.choice((ResourceCode.ANY, *NAMES)),
        "resource_name_filter": choice.choice((None, "*", "a", "ab", "orders-eu", "kafka-cluster", "")),
        "pattern_type_filter": choice.randint(PatternCode.ANY, PatternCode.PREFIXED),
        "principal_filter": choice.choice((None, None, "User:alice", "User:*")),
        "host_filter": choice.choice((None, None, "*", "127.0.0.1")),
        "operation": choice.choice((*[OperationCode.ANY] * 3, OperationCode.ALL, OperationCode.READ)),
        "permission_type": choice.choice((PermissionCode.ANY, PermissionCode.DENY, PermissionCode.ALLOW)),
    }


def described(client: RawClient, query: dict[str, Any]) -> Any:
    answer = client.ask(message(APIS[29].request, **query), 3)
    acls = [
        (
            one.resource_type,
            one.resource_name,
            one.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for one in answer.resources
        for acl in one.acls
    ]
    return answer.error_code, answer.error_message, sorted(acls)


def decisions(client: RawClient) -> Iterator[tuple[str, Any]]:
    """What a user may do and see; the questions change nothing."""
    flags = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
    for name, named in (("topics", [{"name": one} for one in (*TOPICS, "missing")]), ("all topics", None)):
        found = client.ask(message(APIS[3].request, topics=named, **flags), 12).topics
        yield name, sorted((one.name, one.error_code, one.topic_authorized_operations) for one in found)
    cluster = client.ask(message(APIS[60].request, include_cluster_authorized_operations=True), 1)
    yield "cluster", (cluster.error_code, cluster.cluster_authorized_operations)
    groups = client.ask(message(APIS[15].request, groups=list(GROUPS), include_authorized_operations=True), 5).groups
    yield "groups", sorted((one.group_id, one.error_code, one.authorized_operations) for one in groups)
    for kind, key in ((0, "g"), (1, "t"), (1, "tx")):
        found = client.ask(message(APIS[10].request, key_type=kind, coordinator_keys=[key]), 4).coordinators
        denied = {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        yield f"coordinator of {key}", [one.error_code in denied for one in found]
    request = message(APIS[22].request, transactional_id=None, transaction_timeout_ms=1000)
    yield "producer id", client.ask(request, 4).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    resources = [(2, "orders"), (4, "1"), (32, "g"), (2, "nowhere")]
    wanted = [{"resource_type": kind, "resource_name": name, "configuration_keys": []} for kind, name in resources]
    results = client.ask(message(APIS[32].request, resources=wanted), 4).results
    yield "configs", [(one.resource_name, one.error_code, one.error_message) for one in results]
    topics: list[dict[str, Any]] = [{"name": name, "topic_id": bytes(16)} for name in ("nowhere", "orders-nowhere")]
    found = client.ask(message(APIS[20].request, topics=topics, timeout_ms=1000), 6).responses
    yield "deletions", sorted((one.name, one.error_code, one.error_message) for one in found)
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("ab", "ord")]
    found = client.ask(message(APIS[19].request, topics=topics, timeout_ms=1000, validate_only=True), 7).topics
    yield (
        "creations",
        sorted((one.name, one.error_code, one.topic_config_error_code, one.num_partitions) for one in found),
    )
    yield "ACLs", described(client, EVERYTHING)[0]


def are_groups_loaded(admin: RawClient) -> bool:
    admin.ask(message(APIS[10].request, key_type=0, coordinator_keys=list(GROUPS)), 4)  # creates the topic
    groups = admin.ask(message(APIS[15].request, groups=list(GROUPS)), 5).groups
    return {one.error_code for one in groups} == {ErrorCode.NONE}


def answers(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for user in USERS:
        for source in SOURCES:
            with RawClient(node.secured, source=source) as client:
                handshake(client, "PLAIN")
                assert send_token(client, plain_token(user, "s")).error_code == ErrorCode.NONE
                found |= {f"{user} from {source}: {name}": answer for name, answer in decisions(client)}
    return found


@pytest.fixture(scope="module", params=["false", "true"], ids=["denied by default", "allowed by default"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    with ExitStack() as stack:
        made = []
        for is_kafka in (True, False):
            settings, address = sasl_node({**SETTINGS, "allow.everyone.if.no.acl.found": request.param})
            inside = listener_address(settings, "PLAINTEXT")
            node: Any = Broker(settings=settings)
            if is_kafka:
                host, port = inside.split(":")
                node = ApacheKafka(settings, address=(host, int(port)))
                node.controller_port = int(listener_address(settings, "CONTROLLER").rpartition(":")[2])
            stack.enter_context(node)
            admin = stack.enter_context(RawClient(inside))
            topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in TOPICS]
            created = admin.ask(message(APIS[19].request, topics=topics, timeout_ms=10_000), 7).topics
            assert {one.error_code for one in created} == {ErrorCode.NONE}
            until(partial(new_producer, admin), "the node has producer ids")
            until(partial(are_groups_loaded, admin), "the group coordinator is loaded")
            made.append(Node(address, admin))
        yield made[0], made[1]


@pytest.mark.long
@needs_kafka
def test_random_acls_are_obeyed_alike(nodes: tuple[Node, Node]) -> None:
    print(f"RANDOM_ACLS_SEED={SEED}")
    choice = random.Random(SEED)
    kafka, barnabas = nodes
    for _ in range(ROUNDS):
        acls = [random_acl(choice) for _ in range(choice.randint(1, 14))]
        created = [
            [
                (one.error_code, one.error_message)
                for one in node.admin.ask(message(APIS[30].request, creations=acls), 3).results
            ]
            for node in nodes
        ]
        assert created[0] == created[1], acls
        until(lambda: described(kafka.admin, EVERYTHING) == described(barnabas.admin, EVERYTHING), f"both have {acls}")
        theirs, ours = map(answers, nodes)
        assert {name: (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]} == {}, acls
        for query in [random_filter(choice) for _ in range(10)]:
            assert described(kafka.admin, query) == described(barnabas.admin, query), query
        deleted = choice.choice((EVERYTHING, random_filter(choice)))
        counts = [
            [
                len(one.matching_acls)
                for one in node.admin.ask(message(APIS[31].request, filters=[deleted]), 3).filter_results
            ]
            for node in nodes
        ]
        assert counts[0] == counts[1], deleted
