"""Security: what clients get on a listener with authentication and ACLs; these scenarios need a security profile.

A step runs as the user that its process is named after: `main` may do everything, the others as in `LOGINS` and `grant`.
"""

from __future__ import annotations

from functools import partial

from tests.conformance.suite.steps import Scenario, Step, containing, do, members, numbered, scenario, values, without
from tests.conformance.suite.tables.offsets import join
from tests.conformance.suite.tables.records import read, topic, write
from tests.conformance.suite.tables.transactions import begin, committed, end, send
from tests.support.security_profiles import Login, SecuredNode

_security = partial(scenario, "security")
BOB, WRONG_PASSWORD, WRONG_AUTHORITY = "bob", "wrong password", "wrong authority"
NO_LOGIN = ("SASL_AUTHENTICATION_FAILED", "authentication", "KafkaTimeoutError")
"""kafka-python drops the response if the end of the connection arrives with it, and tries again until a timeout."""
NO_TRUST = ("certificate",)


def logins(node: SecuredNode) -> dict[str, Login]:
    """How processes of these names connect; all others connect as `main` does."""
    return {
        "main": node.login("alice"),
        BOB: node.login("bob"),
        WRONG_PASSWORD: node.login("alice", "wrong"),
        WRONG_AUTHORITY: node.login("alice", trusts_node=False),
    }


def grant(node: SecuredNode) -> None:
    """Alice may do everything, without being a super user; Bob may read some topics and write to others."""
    for resource in ("topic", "group", "transactional_id"):
        node.allow("alice", "all", resource, "*")
    node.allow("alice", "create alter describe describe_configs alter_configs idempotent_write", "cluster")
    node.allow("bob", "read", "topic", "readable", "prefixed")
    node.allow("bob", "write", "topic", "writable", "prefixed")
    node.allow("bob", "read", "group", "reader", "prefixed")
    node.allow("bob", "write", "transactional_id", "sender", "prefixed")


def _open_by_bob(transactional_id: str) -> Step:
    return do("open", producer="p", transactional_id=transactional_id, timeout_ms=60_000).by(BOB)


SCENARIOS: tuple[Scenario, ...] = (
    _security(
        "a user with all rights: records, a group, a transaction, a topic's end",
        topic(),
        write(numbered(10)),
        join("a"),
        members("a").becomes(values=values(10)),
        do("commit", member="a"),
        do("committed", group="$g", topic="$t").becomes(offsets={"0": 10}),
        do("open", producer="p", transactional_id="$x", timeout_ms=60_000),
        begin(),
        send(10, 5),
        end("commit_transaction"),
        committed(15).gives(records=numbered(15)),
        do("delete_topic", topic="$t"),
    ),
    _security(
        "a wrong password",
        do("list_topics").by(WRONG_PASSWORD).is_refused(*NO_LOGIN),
    ),
    _security(
        "a node that the client does not trust",
        do("list_topics").by(WRONG_AUTHORITY).is_refused(*NO_TRUST),
    ),
    _security(
        "Read on the topic and the group is enough for a group",
        topic(name="$readable"),
        write(numbered(10), name="$readable"),
        join("a", group="$readers", topics=["$readable"]).by(BOB),
        members("a@bob").becomes(values=values(10)),
        do("commit", member="a").by(BOB),
        do("committed", group="$readers", topic="$readable").by(BOB).becomes(offsets={"0": 10}),
    ),
    _security(
        "Write on the topic is enough for a producer",
        topic(name="$writable"),
        write(numbered(10), name="$writable").by(BOB).gives(offsets=list(range(10))),
        write(numbered(10), name="$writable", idempotent=True).by(BOB),
        read(20, name="$writable"),
    ),
    _security(
        "Write on the topic and the transactional id is enough for transactions",
        topic(name="$writable"),
        _open_by_bob("$sender"),
        begin().by(BOB),
        do("send", producer="p", topic="$writable", records=numbered(5)).by(BOB),
        end("commit_transaction").by(BOB),
        read(5, name="$writable", isolation="read_committed").gives(records=numbered(5)),
    ),
    _security(
        "a consumer without Read on the topic",
        topic(name="$writable"),
        write(numbered(1), name="$writable"),
        read(1, name="$writable").by(BOB).is_refused("TOPIC_AUTHORIZATION_FAILED"),
    ),
    _security(
        "a producer without Write on the topic",
        topic(name="$readable"),
        write(numbered(1), name="$readable").by(BOB).is_refused("TOPIC_AUTHORIZATION_FAILED"),
    ),
    _security(
        "a group without Read",
        do("committed", group="$g", topic="$t").by(BOB).is_refused(
            "GROUP_AUTHORIZATION_FAILED",
            "KafkaJSGroupCoordinatorNotFound",
        ),
    ),
    _security(
        "a transactional id without Write",
        _open_by_bob("$x").is_refused("TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ),
    _security(
        "a topic is created without Create, and deleted without Delete",
        topic(name="$readable").by(BOB).is_refused("TOPIC_AUTHORIZATION_FAILED"),
        topic(name="$readable"),
        do("delete_topic", topic="$readable").by(BOB).is_refused("TOPIC_AUTHORIZATION_FAILED"),
    ),
    _security(
        "configs are described without DescribeConfigs",
        topic(name="$readable"),
        do("describe_configs", kind="topic", name="$readable").by(BOB).is_refused("TOPIC_AUTHORIZATION_FAILED"),
    ),
    _security(
        "a list shows only topics with Describe",
        topic(name="$readable"),
        topic(name="$hidden"),
        do("list_topics").by(BOB).becomes(topics=containing("$readable")),
        do("list_topics").by(BOB).gives(topics=without("$hidden")),
    ),
)  # fmt: skip


def scenarios(node: SecuredNode) -> list[Scenario]:
    """Those that a profile has: passwords need SASL, trust needs TLS."""
    absent = set()
    if not node.profile.mechanism:
        absent.add("a wrong password")
    if not node.profile.has_tls:
        absent.add("a node that the client does not trust")
    return [one for one in SCENARIOS if one.name not in absent]
