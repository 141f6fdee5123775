"""Delegation tokens: the answers to clients that may and may not use them are those of Apache Kafka.

RULES    1. Secrets, ids and times differ in every run: answers have their lengths, and times since the creation.
         2. `make goldens` records the answers of Apache Kafka.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas import Broker
from broker.config.security_configs import STANDARD_AUTHORIZER
from protocol.errors import ErrorCode
from protocol.messages.acls import AclCreation, CreateAclsRequest
from protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from protocol.messages.metadata import MetadataRequest
from protocol.schema import Message
from tests.conformance.brokers import KAFKA, RECORDED, assert_as_recorded
from tests.support.kafka import ApacheKafka
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import (
    MODULE,
    handshake,
    jaas,
    listener_address,
    outlast,
    plain_token,
    sasl_node,
    scram_final,
    send_token,
)
from tests.support.waiting import until

USERS: Final = ("alice", "bob", "dave", "erin", "frank")
PASSWORDS: Final = "".join(f' user_{name}="{name}-secret"' for name in USERS)
ACLS: Final = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
SECRET: Final = {"delegation.token.secret.key": "key of the tests"}
TOKEN, USER = 6, 7
DESCRIBE, CREATE_TOKENS, DESCRIBE_TOKENS = 8, 13, 14


def principals(*names: str) -> list[TokenPrincipal]:
    return [TokenPrincipal(principal_type="User", principal_name=name) for name in names]


def create(owner: str | None = None, *renewers: str, kind: str = "User", lifetime_ms: int = -1) -> Message:
    return CreateDelegationTokenRequest(
        owner_principal_type="" if owner is None else "User",
        owner_principal_name=owner or "",
        renewers=[TokenPrincipal(principal_type=kind, principal_name=name) for name in renewers],
        max_lifetime_ms=lifetime_ms,
    )


def describe(*owners: str, everyone: bool = False) -> Message:
    return DescribeDelegationTokenRequest(owners=None if everyone else principals(*owners))


def logged_in(address: str, user: str) -> RawClient:
    client = RawClient(address)
    handshake(client, "PLAIN")
    assert send_token(client, plain_token(user, f"{user}-secret")).error_code == ErrorCode.NONE
    return client


class Node:
    """A node, and its answers by name."""

    def __init__(self, settings: dict[str, str], address: str) -> None:
        self.plaintext, self.controller = (listener_address(settings, name) for name in ("PLAINTEXT", "CONTROLLER"))
        self.address = address
        self.answers: dict[str, Any] = {}
        self.issued: dict[bytes, int] = {}
        """When tokens were created, by secret, in the node's milliseconds."""

    def ask(self, name: str, user: str | RawClient, request: Message, version: int | None = None) -> Any:
        """Records the answer to a user's request, and returns it."""
        version = request.MAX_VERSION if version is None else version
        if isinstance(user, RawClient):
            response = user.ask(request, version)
        else:
            with logged_in(self.address, user) as client:
                response = client.ask(request, version)
        assert name not in self.answers
        self.answers[name] = self._shown(request, response)
        return response

    def token(self, name: str, user: str, request: Message, version: int | None = None) -> Any:
        """The same for a token, once it is described."""
        created = self.ask(name, user, request, version)
        assert created.error_code == ErrorCode.NONE
        self.issued[bytes(created.hmac)] = created.issue_timestamp_ms
        until(lambda: created.token_id in self.ids(user), "the token is described")
        return created

    def ids(self, user: str) -> list[str]:
        with logged_in(self.address, user) as client:
            return [token.token_id for token in client.ask(describe(everyone=True), 3).tokens]

    def _shown(self, request: Message, response: Any) -> Any:
        if isinstance(request, CreateDelegationTokenRequest):
            return _without_chance(response, "issue_timestamp_ms")
        if isinstance(request, DescribeDelegationTokenRequest):
            tokens = sorted(repr(_without_chance(token, "issue_timestamp")) for token in response.tokens)
            return response.error_code, tokens
        if response.expiry_timestamp_ms <= 0:
            return response.error_code, response.expiry_timestamp_ms
        issued_ms = self.issued[bytes(request.hmac)]  # type: ignore[attr-defined]
        return response.error_code, round((response.expiry_timestamp_ms - issued_ms) / 60_000)  # minutes


def _without_chance(token: Any, issued_field: str) -> dict[str, Any]:
    issued_ms = getattr(token, issued_field)
    shown: dict[str, Any] = {}
    for name in sorted({name for cls in type(token).__mro__ for name in getattr(cls, "__slots__", ())}):
        value = getattr(token, name)
        if name in ("hmac", "token_id"):
            value = len(value)
        elif "timestamp" in name and value > 0:
            value = round((value - issued_ms) / 60_000)
        elif name == "renewers":
            value = [(one.principal_type, one.principal_name) for one in value]
        shown[name] = value
    return shown


def allow(node: Node, kind: int, name: str, user: str, operation: int) -> None:
    entry = AclCreation(
        resource_type=kind,
        resource_name=name,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=3,
    )
    with RawClient(node.plaintext) as client:
        (result,) = client.ask(CreateAclsRequest(creations=[entry]), 3).results
        assert result.error_code == ErrorCode.NONE


def token_login(node: Node, token_id: str, secret: bytes, mechanism: str) -> tuple[RawClient, Any]:
    """A client that sends a token's id and secret, and the last answer."""
    client = RawClient(node.address)
    handshake(client, mechanism)
    first = f"n,,n={token_id},r=nonce,tokenauth=true".encode()
    challenge = send_token(client, first)
    if challenge.error_code:
        return client, challenge
    final = scram_final(mechanism, first, bytes(challenge.auth_bytes), b64encode(secret).decode())
    return client, send_token(client, final)


def play(node: Node) -> None:
    """Everything that a client can ask."""
    for version in (1, 2):
        node.token(f"create v{version}", "alice", create(), version)
    own = node.token("create", "alice", create(None, "bob"))
    node.ask("create with a lifetime", "erin", create(lifetime_ms=600_000))
    node.ask("create for another", "dave", create("alice"))
    node.ask("create for another with a group", "dave", create("alice", "x", kind="Group"))
    node.ask("create with a group", "alice", create(None, "x", kind="Group"))
    allow(node, USER, "User:alice", "frank", CREATE_TOKENS)
    until(lambda: _may_create(node), "the ACL counts")
    other = node.token("create for another with the right", "frank", create("alice"))
    node.ask("create for oneself by name", "alice", create("alice", lifetime_ms=1))
    secret = bytes(own.hmac)
    _renew_and_expire(node, secret)
    _describe(node, own.token_id)
    _log_in(node, own.token_id, secret)
    node.ask("expire as the requester", "frank", expire(bytes(other.hmac), -1))
    node.ask("renew as the requester", "frank", renew(bytes(other.hmac)))
    for name in ("removed", "removed again"):
        node.ask(f"expire: {name}", "alice", expire(bytes(other.hmac), -1))
        until(lambda: other.token_id not in node.ids("frank"), "the token is removed")
    for name, address in (("plaintext", node.plaintext), ("controller", node.controller)):
        with RawClient(address) as client:
            for request in (create(), renew(secret), expire(secret, 1), describe(everyone=True)):
                if name == "plaintext" or not isinstance(request, DescribeDelegationTokenRequest):
                    node.ask(f"{name}: {type(request).__name__}", client, request)


def _may_create(node: Node) -> bool:
    with logged_in(node.address, "frank") as client:
        code = client.ask(create("alice", "x", kind="Group"), 3).error_code
    return bool(code == ErrorCode.INVALID_PRINCIPAL_TYPE)


def renew(secret: bytes, period_ms: int = -1) -> Message:
    return RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)


def expire(secret: bytes, period_ms: int) -> Message:
    return ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)


def _renew_and_expire(node: Node, secret: bytes) -> None:
    changes: tuple[tuple[str, Callable[[bytes, int], Message]], ...] = (("renew", renew), ("expire", expire))
    for name, change in changes:
        for user in ("alice", "bob", "dave"):
            node.ask(f"{name} as {user}", user, change(secret, 3_600_000))
        node.ask(f"{name}: unknown", "alice", change(b"unknown", 1))
        node.ask(f"{name}: long", "alice", change(secret, 10**12))
        node.ask(f"{name}: v1", "alice", change(secret, 7_200_000), 1)
    node.ask("renew: no period", "alice", renew(secret, 0))
    node.ask("expire: no period", "erin", expire(secret, 0))
    node.ask("expire: dave at once", "dave", expire(secret, -1))
    short = node.token("create for a moment", "bob", create(lifetime_ms=1500))
    outlast(1.6)
    for name, change in changes:
        node.ask(f"{name}: expired", "bob", change(bytes(short.hmac), 1))
        node.ask(f"{name}: expired, of another", "dave", change(bytes(short.hmac), 1))
    node.ask("expire: expired, at once", "bob", expire(bytes(short.hmac), -1))
    until(lambda: short.token_id not in node.ids("bob"), "the token is removed")


def _describe(node: Node, token_id: str) -> None:
    for user in ("alice", "bob", "dave"):
        node.ask(f"describe all as {user}", user, describe(everyone=True))
        node.ask(f"describe none as {user}", user, describe())
    for owner in ("alice", "bob", "frank", "nobody"):
        node.ask(f"describe {owner}'s", "alice", describe(owner))
    node.ask("describe v1", "alice", describe("alice"), 1)
    allow(node, TOKEN, token_id, "dave", DESCRIBE)
    allow(node, USER, "User:alice", "erin", DESCRIBE_TOKENS)
    for user in ("dave", "erin"):
        until(lambda user=user: token_id in node.ids(user), "the ACL counts")  # type: ignore[misc]
        node.ask(f"describe with a right as {user}", user, describe("alice"))


def _log_in(node: Node, token_id: str, secret: bytes) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        client, answer = token_login(node, token_id, secret, mechanism)
        with client:
            minutes = round(answer.session_lifetime_ms / 60_000)
            node.answers[f"login with {mechanism}"] = answer.error_code, answer.error_message, minutes
            for request in (create(), renew(secret), expire(secret, 1), describe(everyone=True)):
                node.ask(f"{mechanism}: {type(request).__name__}", client, request)
            assert client.ask(message(MetadataRequest, topics=[]), 12).brokers
    for name, (user, password) in {"wrong secret": (token_id, b"x"), "unknown id": ("x", secret)}.items():
        client, answer = token_login(node, user, password, "SCRAM-SHA-256")
        with client:
            node.answers[f"login with a {name}"] = answer.error_code, answer.error_message


def node_of(kind: str, settings: dict[str, str], data_dir: Path | None = None) -> Any:
    """A node with these settings."""
    if kind != KAFKA:
        return Broker(data_dir, settings=settings)
    host, port = listener_address(settings, "PLAINTEXT").split(":")
    node = ApacheKafka(settings, address=(host, int(port)), data_dir=data_dir)
    node.controller_port = int(listener_address(settings, "CONTROLLER").split(":")[1])
    return node


@pytest.mark.parametrize("kind", RECORDED)
def test_tokens_are_as_recorded(kind: str) -> None:
    plain = f"{MODULE}.plain.PlainLoginModule required{PASSWORDS};"
    answers: dict[str, Any] = {}
    for name, secret in (("enabled", SECRET), ("disabled", {})):
        settings, address = sasl_node(jaas(plain=plain) | ACLS | secret)
        node = Node(settings, address)
        with node_of(kind, settings):
            if secret:
                play(node)
            else:
                for request in (create(), create("bob"), renew(b"x"), expire(b"x", 1), describe(), describe("bob")):
                    node.ask(repr(request), "alice", request)
                node.ask("create with a group", "alice", create(None, "x", kind="Group"))
        answers |= {f"{name}: {case}": answer for case, answer in node.answers.items()}
    assert_as_recorded("delegation_tokens", kind, answers)
