"""Every API, asked by a client with few rights: the answers are those of Apache Kafka with its StandardAuthorizer.

RULES    1. The node and the administrator connect from 127.0.0.1, whose entries allow everything; the tested client from
            127.0.0.3, with the entries of the state. All are User:ANONYMOUS.
         2. Without rights every version of every API is asked, in the other states the newest of each.
         3. `make goldens` records the answers of Apache Kafka. DIFFERENCES are deliberate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protocol.api import APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.messages import acls
from protocol.messages.metadata import ApiVersionsRequest
from protocol.schema import Message
from tests.conformance.brokers import KAFKA, RECORDED, append, assert_as_recorded, running
from tests.support import authorization_walk as walk
from tests.support.batches import batch
from tests.support.config_cases import SET, resource
from tests.support.controller_listener import WITH_CONTROLLER, controller_of
from tests.support.follower import Client
from tests.support.goldens import as_json, golden
from tests.support.kafka import needs_kafka
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

SETTINGS: dict[str, object] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
}
ADMIN, TESTED = "127.0.0.1", "127.0.0.3"
TOPIC, GROUP, CLUSTER, TRANSACTION, TOKEN, USER = 2, 3, 4, 5, 6, 7
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = 2, 3, 4, 5, 6, 7, 8, 9
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 10, 11, 12
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3


def entry(
    kind: int, operation: int, name: str = "*", pattern: int = LITERAL, permission: int = ALLOW, host: str = TESTED
) -> acls.AclCreation:
    return acls.AclCreation(
        resource_type=kind, resource_name="kafka-cluster" if kind == CLUSTER else name, resource_pattern_type=pattern,
        principal="User:ANONYMOUS", host=host, operation=operation, permission_type=permission,
    )  # fmt: skip


STATES: dict[str, list[acls.AclCreation]] = {
    "nothing": [],
    "describe": [entry(kind, DESCRIBE) for kind in (TOPIC, GROUP, TRANSACTION)],
    "describe cluster": [entry(CLUSTER, DESCRIBE)],
    "read": [entry(kind, READ) for kind in (TOPIC, GROUP)],
    "read groups": [entry(GROUP, READ)],
    "read topics": [entry(TOPIC, READ)],
    "write": [entry(TOPIC, WRITE)],
    "write transactions": [entry(TRANSACTION, WRITE)],
    "write all, read groups": [entry(TOPIC, WRITE), entry(TRANSACTION, WRITE), entry(GROUP, READ)],
    "create": [entry(TOPIC, CREATE)],
    "create cluster": [entry(CLUSTER, CREATE)],
    "delete": [entry(TOPIC, DELETE), entry(GROUP, DELETE)],
    "delete cluster": [entry(CLUSTER, DELETE)],
    "alter": [entry(TOPIC, ALTER)],
    "alter cluster": [entry(CLUSTER, ALTER)],
    "describe configs": [entry(kind, DESCRIBE_CONFIGS) for kind in (TOPIC, GROUP)],
    "describe cluster configs": [entry(CLUSTER, DESCRIBE_CONFIGS)],
    "alter configs": [entry(kind, ALTER_CONFIGS) for kind in (TOPIC, GROUP)],
    "alter cluster configs": [entry(CLUSTER, ALTER_CONFIGS)],
    "cluster action": [entry(CLUSTER, CLUSTER_ACTION)],
    "idempotent write": [entry(CLUSTER, IDEMPOTENT_WRITE)],
    "open": [entry(kind, ALL, "open", PREFIXED) for kind in (TOPIC, GROUP, TRANSACTION)],
    "all but secret": [
        *(entry(kind, ALL) for kind in (TOPIC, GROUP, TRANSACTION)),
        *(entry(TOPIC, operation, "secret", LITERAL, DENY) for operation in (READ, DESCRIBE, DESCRIBE_CONFIGS)),
    ],
}
_ANY = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "operation": 1, "permission_type": 1,
}  # fmt: skip


class Node(NamedTuple):
    """A node with the topics of the walk."""

    listeners: dict[str, str]
    names: walk.Names
    log: Callable[[], str]
    """What the node has logged."""

    def change(self, request: Message) -> Any:
        """Ask the broker as administrator."""
        with RawClient(self.listeners["broker"], source=ADMIN) as client:
            return client.ask(request, type(request).MAX_VERSION)

    def entries(self, listener: str) -> int:
        """How many entries for the tested client a listener's authorizer has."""
        request = message(acls.DescribeAclsRequest, **_ANY, host_filter=TESTED)
        with RawClient(self.listeners[listener], source=ADMIN) as client:
            response = client.ask(request, 3)
        assert response.error_code == ErrorCode.NONE, response
        return sum(len(found.acls) for found in response.resources)

    def has_entries(self, listener: str, count: int) -> bool:
        return self.entries(listener) == count

    @contextmanager
    def allowed(self, entries: list[acls.AclCreation]) -> Iterator[None]:
        """The entries during the block."""
        created = self.change(acls.CreateAclsRequest(creations=entries))
        assert all(result.error_code == 0 for result in created.results), created
        for listener in self.listeners:
            until(partial(self.has_entries, listener, len(entries)), "the entries count")
        yield
        wanted = message(acls.DeleteAclsRequest, filters=[{**_ANY, "host_filter": TESTED}])
        assert self.change(wanted).filter_results[0].error_code == 0
        for listener in self.listeners:
            until(partial(self.has_entries, listener, 0), "the entries are removed")


@contextmanager
def prepared(kind: str, path: Path, writer: str | None = None) -> Iterator[Node]:
    """A node whose entries allow the administrator everything; its super user is gone. `writer` has created the entries."""
    with running(writer or kind, {**_settings(writer or kind), "super.users": "User:ANONYMOUS"}, path) as broker:
        client = Client(broker.bootstrap)
        names = walk.Names(client.create(walk.SECRET, [1]), client.create(walk.OPEN, [1]))
        with RawClient(broker.bootstrap) as raw:
            for name in (walk.SECRET, walk.OPEN):
                assert append(raw, name, bytes(batch(RECENT_MS))).error_code == 0
            kinds = (TOPIC, GROUP, CLUSTER, TRANSACTION, TOKEN, USER)
            everything = acls.CreateAclsRequest(creations=[entry(one, ALL, host=ADMIN) for one in kinds])
            assert {result.error_code for result in raw.ask(everything, 3).results} == {0}
            for key_type, key in enumerate((walk.GROUP, walk.TX)):
                query = message(APIS[10].request, key_type=key_type, coordinator_keys=[key])
                until(partial(has_coordinator, raw, query), "there is a coordinator")
            for group in (walk.GROUP, walk.OPEN_GROUP):
                until(partial(is_committed, raw, group), "the group commits an offset")
    with running(kind, _settings(kind), path) as broker:
        controller = broker.controller if kind == KAFKA else controller_of(broker)  # type: ignore[union-attr,arg-type]
        log = broker.log_path.read_text
        node = Node({"broker": broker.bootstrap, "controller": controller}, names, log)
        until(lambda: _is_loaded(node), "the coordinators are loaded")
        yield node


def _settings(kind: str) -> dict[str, object]:
    return SETTINGS if kind == KAFKA else {**SETTINGS, **WITH_CONTROLLER}


def commit(client: RawClient, group: str) -> int:
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    topics = [{"name": walk.OPEN, "partitions": partitions}]
    request = message(APIS[8].request, group_id=group, member_id="", topics=topics)
    return int(client.ask(request, 9).topics[0].partitions[0].error_code)


def is_committed(client: RawClient, group: str) -> bool:
    return commit(client, group) == 0


def has_coordinator(client: RawClient, query: Message) -> bool:
    return bool(client.ask(query, 4).coordinators[0].error_code == 0)


def _is_loaded(node: Node) -> bool:
    with RawClient(node.listeners["broker"], source=ADMIN) as client:
        groups = client.ask(message(APIS[15].request, groups=[walk.GROUP, walk.OPEN_GROUP]), 5).groups
        described = client.ask(message(APIS[65].request, transactional_ids=[walk.TX]), 0).transaction_states
        listed = client.ask(message(APIS[16].request), 4).error_code
    codes = [group.error_code for group in groups]
    return codes == [0, 0] and listed == 0 and described[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def versions(bootstrap: str) -> dict[int, tuple[int, int]]:
    """The versions that a listener supports and this codec has, by API."""
    query = ApiVersionsRequest(client_software_name="walk", client_software_version="1")
    with RawClient(bootstrap, source=ADMIN) as client:
        rows = client.ask(query, 4).api_keys
    known = {row.api_key: row for row in rows if row.api_key in APIS}
    return {
        key: (max(row.min_version, APIS[key].request.MIN_VERSION), min(row.max_version, APIS[key].request.MAX_VERSION))
        for key, row in known.items()
    }


REQUESTS: dict[str, Callable[[walk.Names], Iterator[tuple[str, Message]]]] = {
    "broker": walk.requests,
    "controller": walk.controller_requests,
}


UNCHECKED = {ApiKey.API_VERSIONS, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
"""APIs that need no right."""
ONLY_OURS = {
    ("controller", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS),
    ("controller", ApiKey.DESCRIBE_DELEGATION_TOKEN),
}
"""Apache Kafka's controller advertises them, and answers with UNKNOWN_SERVER_ERROR."""


def walked(node: Node) -> dict[str, Any]:
    """For each listener, request and version: the answers, each with the states that get it."""
    table: dict[str, dict[str, list[Any]]] = {}
    served = {listener: versions(bootstrap) for listener, bootstrap in node.listeners.items()}
    for listener, apis in served.items():
        asked = {request.API_KEY for _, request in REQUESTS[listener](node.names)}
        expected = {key for key in apis if key not in UNCHECKED and (listener, key) not in ONLY_OURS}
        assert asked == expected, "every API is asked"
    for state, entries in STATES.items():
        with node.allowed(entries):
            for listener, bootstrap in node.listeners.items():
                for name, request in REQUESTS[listener](node.names):
                    assert request.API_KEY is not None
                    lowest, highest = served[listener][request.API_KEY]
                    for version in range(lowest if state == "nothing" else highest, highest + 1):
                        fresh = dict(REQUESTS[listener](node.names))[name]
                        found = walk.answer(bootstrap, fresh, version, node.names, TESTED)
                        row = table.setdefault(f"{listener}: {name}, version {version}", {})
                        row.setdefault(repr(found), [found, []])[1].append(state)
    return {
        key: [{"states": states, "answer": found} for found, states in sorted(row.values(), key=lambda one: one[1])]
        for key, row in table.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("kind", RECORDED)
def test_every_api_answers_a_client_with_few_rights_as_kafka_does(kind: str, tmp_path: Path) -> None:
    with prepared(kind, tmp_path / "data") as node:
        assert_as_recorded("authorization", kind, walked(node))


AUDIT = re.compile(
    rf"Principal = .* from host = {TESTED} on resource = (?!Topic:LITERAL: ).*? based on rule [^\n]*?(?= \(kafka|\n|$)"
)
"""A line of the audit log, but not those of Apache Kafka for the empty name of a topic whose id it does not know."""


ALLOWED = " is Allowed operation = "


def audited(node: Node) -> dict[str, list[str]]:
    """The lines of the audit log for each request, at DEBUG: each denial as often as it is logged, each permission once."""
    level = resource(8, "1", ("kafka.authorizer.logger", SET, "DEBUG"))
    changed = node.change(message(APIS[44].request, resources=[level]))
    assert changed.responses[0].error_code == 0, changed
    found: dict[str, list[str]] = {}
    served = versions(node.listeners["broker"])
    entries = [
        entry(TOPIC, READ, "open", PREFIXED),
        entry(TOPIC, ALL, "secret", LITERAL, DENY),
        entry(GROUP, READ, "g"),
        entry(TRANSACTION, WRITE, "open-tx"),
    ]
    with node.allowed(entries):
        requests = {**dict(walk.requests(node.names)), **of_three_partitions(node.names)}
        for name, request in requests.items():
            before = len(node.log())
            assert request.API_KEY is not None
            version = 3 if request.API_KEY == ApiKey.ADD_PARTITIONS_TO_TXN else served[request.API_KEY][1]
            walk.answer(node.listeners["broker"], request, version, node.names, TESTED)
            lines = AUDIT.findall(node.log()[before:])
            found[name] = sorted({line for line in lines if ALLOWED in line}) + sorted(
                line for line in lines if ALLOWED not in line
            )
    return found


def of_three_partitions(names: walk.Names) -> dict[str, Message]:
    """Requests that name three partitions of a topic."""
    topic = {"topic": walk.OPEN, "topic_id": names.open}
    fetched = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1} for index in range(3)]
    listed = [{"partition_index": index, "timestamp": -1} for index in range(3)]
    transaction = {"v3_and_below_transactional_id": "open-tx", "v3_and_below_producer_id": 1}
    added = [{"name": walk.OPEN, "partitions": [0, 1, 2]}]
    return {
        "Fetch of three": message(
            APIS[1].request, max_wait_ms=0, min_bytes=0, topics=[topic | {"partitions": fetched}]
        ),
        "ListOffsets of three": message(APIS[2].request, topics=[{"name": walk.OPEN, "partitions": listed}]),
        "AddPartitionsToTxn of three": message(
            APIS[24].request, **transaction, v3_and_below_producer_epoch=0, v3_and_below_topics=added
        ),
    }


@pytest.mark.parametrize("kind", RECORDED)
def test_the_audit_log_has_kafkas_lines(kind: str, tmp_path: Path) -> None:
    with prepared(kind, tmp_path / "data") as node:
        assert_as_recorded("audit_log", kind, audited(node))


@needs_kafka
@pytest.mark.parametrize(("writer", "reader"), [(KAFKA, "barnabas"), ("barnabas", KAFKA)])
def test_acls_that_one_broker_wrote_are_obeyed_by_the_other(writer: str, reader: str, tmp_path: Path) -> None:
    recorded = {
        state: row["answer"]
        for row in golden("authorization")["broker: Metadata, version 13"]
        for state in row["states"]
    }
    with prepared(reader, tmp_path / "data", writer) as node:
        for state in ("nothing", "open"):
            with node.allowed(STATES[state]):
                request = dict(walk.requests(node.names))["Metadata"]
                found = walk.answer(node.listeners["broker"], request, 13, node.names, TESTED)
                assert as_json(found) == recorded[state]
