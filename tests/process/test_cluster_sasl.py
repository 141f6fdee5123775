"""A cluster of one controller and two brokers that authenticate to each other, with ACLs for the nodes' user."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from barnabas import Cluster
from barnabas.embedded import BrokerError
from broker.config.oauth_configs import JWKS_HANDLER
from broker.config.oauth_login_configs import FILE_HANDLER
from broker.config.security_configs import STANDARD_AUTHORIZER
from protocol.errors import ErrorCode
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.delegation_tokens import CreateDelegationTokenRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce_fetch import ProduceRequest
from tests.support.batches import batch
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import MODULE, SCRAM_JAAS, handshake, outlast, plain_token, scram_final, send_token
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

USERS = 'user_node="node-secret" user_alice="alice-secret";'


def settings(password: str = "node-secret") -> dict[str, str]:
    nodes = f'{MODULE}.plain.PlainLoginModule required username="node" password="{password}" {USERS}'
    return {
        "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": nodes,
        "listener.name.controller.plain.sasl.jaas.config": nodes,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:node;User:alice",
        "connections.max.reauth.ms": "1500",
    }


def with_tokens(folder: Path) -> dict[str, str]:
    """The nodes authenticate with a signed token in a file, clients with passwords."""
    key = ec.generate_private_key(ec.SECP256R1())
    jwks, token = folder / "jwks.json", folder / "token"
    jwks.write_text(json.dumps({"keys": [json.loads(ECAlgorithm.to_jwk(key.public_key()))]}))
    claims = {"sub": "node", "iat": 1_700_000_000, "exp": 4_000_000_000, "iss": "https://issuer", "aud": "kafka"}
    token.write_text(jwt.encode(claims, key, "ES256") + "\n")
    per_listener = {
        "sasl.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.server.callback.handler.class": JWKS_HANDLER,
        "sasl.login.callback.handler.class": FILE_HANDLER,
    }
    return {
        **settings(),
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "kafka",
        "barnabas.sasl.oauthbearer.allowed.urls": f"{token.as_uri()},{jwks.as_uri()}",
        **{
            f"listener.name.{listener}.oauthbearer.{name}": text
            for listener in ("plaintext", "controller")
            for name, text in per_listener.items()
        },
    }


def logged_in(address: str) -> RawClient:
    client = RawClient(address)
    handshake(client, "PLAIN")
    assert send_token(client, plain_token("alice", "alice-secret")).error_code == ErrorCode.NONE
    return client


@pytest.mark.parametrize("mechanism", [pytest.param("PLAIN", marks=pytest.mark.long), "OAUTHBEARER"])
def test_nodes_authenticate_to_each_other(mechanism: str, tmp_path: Path) -> None:
    own = settings() if mechanism == "PLAIN" else with_tokens(tmp_path)
    with Cluster(2, 1, settings=own) as cluster:
        addresses = cluster.bootstrap.split(",")
        with logged_in(addresses[0]) as client:
            topics = [{"name": "t", "num_partitions": 1, "replication_factor": 2}]
            created = client.ask(message(CreateTopicsRequest, topics=topics, timeout_ms=30_000), 7)
            assert created.topics[0].error_code == ErrorCode.NONE

        def produced(address: str) -> int:
            partitions = [{"index": 0, "records": bytes(batch(RECENT_MS))}]
            topic_data = [{"name": "t", "partition_data": partitions}]
            with logged_in(address) as client:
                request = message(ProduceRequest, acks=-1, timeout_ms=9000, topic_data=topic_data)
                return int(client.ask(request, 9).responses[0].partition_responses[0].error_code)

        until(lambda: 0 in {produced(address) for address in addresses}, "the follower replicates")
        with RawClient(addresses[0]) as client:
            client.send(MetadataRequest(topics=None), 12)
            with pytest.raises((EOFError, ConnectionResetError)):
                client.receive_frame()
        outlast(2)  # longer than a session: the nodes authenticate again
        for node in cluster.nodes.values():
            assert "expired" not in node.log()
            assert "-secret" not in node.log()


def test_nodes_with_a_wrong_password_form_no_cluster() -> None:
    cluster = Cluster(1, 1, settings=settings("wrong"), start_timeout_s=3)
    with pytest.raises(BrokerError), cluster:
        pass


def test_a_token_of_one_broker_logs_in_at_another() -> None:
    """The request is forwarded to a controller on another node, with the client's name."""
    scram = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.plaintext.scram-sha-512.sasl.jaas.config": SCRAM_JAAS,
        "listener.name.controller.scram-sha-512.sasl.jaas.config": SCRAM_JAAS,
        "delegation.token.secret.key": "key of the tests",
    }
    create = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=60_000)
    with Cluster(2, 1, settings=settings() | scram) as cluster:
        first_broker, second_broker = cluster.bootstrap.split(",")
        with logged_in(first_broker) as client:
            created = client.ask(create, 3)
        assert (created.error_code, created.principal_name) == (ErrorCode.NONE, "alice")

        def log_in() -> RawClient | None:
            client = RawClient(second_broker)
            handshake(client, "SCRAM-SHA-512")
            first = f"n,,n={created.token_id},r=x,tokenauth=true".encode()
            challenge = send_token(client, first)
            if challenge.error_code != ErrorCode.NONE:  # the second broker does not have the token yet
                client.close()
                return None
            password = b64encode(created.hmac).decode()
            final = scram_final("SCRAM-SHA-512", first, bytes(challenge.auth_bytes), password)
            assert 0 < send_token(client, final).session_lifetime_ms <= 60_000
            return client

        with until(log_in, "the second broker knows the token") as client:
            assert client.ask(create, 3).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
            request = message(CreateTopicsRequest, topics=topics, timeout_ms=30_000)
            assert client.ask(request, 7).topics[0].error_code == ErrorCode.NONE
