"""kafka-delegation-tokens against Barnabas, a login with its token, and tokens of a directory that the other broker wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.delegation_tokens import CreateDelegationTokenRequest, DescribeDelegationTokenRequest
from tests.conformance.brokers import KAFKA
from tests.conformance.test_delegation_tokens import SECRET, node_of
from tests.support.kafka import needs_kafka, run_tool
from tests.support.raw_client import RawClient
from tests.support.sasl import MODULE, handshake, jaas, plain_token, sasl_node, send_token
from tests.support.waiting import until

pytestmark = needs_kafka

TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
ALICE = f'{MODULE}.plain.PlainLoginModule required username="alice" password="alice-secret";'


def test_kafkas_tools_create_and_use_a_token(tmp_path: Path) -> None:
    settings, address = sasl_node(SECRET)

    def run(tool: str, mechanism: str, jaas: str, *arguments: str) -> str:
        lines = ("security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", f"sasl.jaas.config={jaas}")
        commands = tmp_path / "client.properties"
        commands.write_text("\n".join(lines))
        done = run_tool(tool, "--bootstrap-server", address, "--command-config", commands, *arguments)
        return done.stdout + done.stderr

    with Broker(settings=settings):
        created = run(
            TOOL, "PLAIN", ALICE, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"
        )
        assert "User:alice" in created
        assert "[User:bob]" in created
        row = re.search(r"^([\w-]{22})\s+(\S+==)\s+User:alice", created, re.MULTILINE)
        assert row is not None, created
        token_id, secret = row.groups()
        login = f'{MODULE}.scram.ScramLoginModule required username="{token_id}" password="{secret}" tokenauth="true";'
        assert run(TOPICS, "SCRAM-SHA-512", login, "--create", "--topic", "t").strip() == "Created topic t."
        refused = run(TOOL, "SCRAM-SHA-512", login, "--describe")
        assert "DelegationTokenDisabledException" in refused or "not allowed" in refused, refused
        assert token_id in run(TOOL, "PLAIN", ALICE, "--describe", "--owner-principal", "User:alice")
        assert "Completed expire operation" in run(
            TOOL, "PLAIN", ALICE, "--expire", "--expiry-time-period", "-1", "--hmac", secret
        )
        gone = run(TOOL, "PLAIN", ALICE, "--describe", "--owner-principal", "User:alice")
        assert "Total number of tokens : 0" in gone


@pytest.mark.long
@pytest.mark.parametrize(("writer", "reader"), [(KAFKA, "barnabas"), ("barnabas", KAFKA)])
def test_tokens_that_one_broker_wrote_are_described_by_the_other(writer: str, reader: str, tmp_path: Path) -> None:
    users = f'{MODULE}.plain.PlainLoginModule required user_alice="alice-secret";'
    settings, address = sasl_node(jaas(plain=users) | SECRET)
    create = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)

    def described() -> list[tuple[str, bytes]]:
        with RawClient(address) as client:
            handshake(client, "PLAIN")
            send_token(client, plain_token("alice", "alice-secret"))
            tokens = client.ask(DescribeDelegationTokenRequest(owners=None), 3).tokens
        return [(token.token_id, bytes(token.hmac)) for token in tokens]

    with node_of(writer, settings, tmp_path / "data"), RawClient(address) as client:
        handshake(client, "PLAIN")
        send_token(client, plain_token("alice", "alice-secret"))
        created = client.ask(create, 3)
        assert created.error_code == ErrorCode.NONE
        until(described, "the token is described")
    with node_of(reader, settings, tmp_path / "data"):
        assert until(described, "the token is described") == [(created.token_id, bytes(created.hmac))]
