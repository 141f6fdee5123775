"""SASL listeners of a node, users, and a raw client that authenticates."""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.quotas_scram import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.support.kafka import free_port
from tests.support.raw_client import RawClient

MODULE = "org.apache.kafka.common.security"
PLAIN_JAAS = f'{MODULE}.plain.PlainLoginModule required user_alice="alice-secret" "user_b=,ob"="bob\\"s";'
SCRAM_JAAS = f"{MODULE}.scram.ScramLoginModule required;"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
SCRAM_USER, SCRAM_PASSWORD = "carol", "carol-secret"


def jaas(listener: str = "sasl_plaintext", plain: str = PLAIN_JAAS) -> dict[str, str]:
    """The JAAS settings of a listener with all mechanisms."""
    prefix = f"listener.name.{listener}"
    return {
        f"{prefix}.{mechanism.lower()}.sasl.jaas.config": plain if mechanism == "PLAIN" else SCRAM_JAAS
        for mechanism in MECHANISMS
    }


def sasl_node(settings: Mapping[str, str] | None = None) -> tuple[dict[str, str], str]:
    """The settings of a node with a plaintext, a SASL and a controller listener, and the address of the second."""
    plain, address, controller = (f"127.0.0.1:{free_port()}" for _ in range(3))
    listeners = f"PLAINTEXT://{plain},SASL_PLAINTEXT://{address},CONTROLLER://{controller}"
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        **jaas(),
        **(settings or {}),
    }, address


def listener_address(settings: Mapping[str, str], name: str) -> str:
    """The address of a listener."""
    return dict(text.split("://") for text in settings["listeners"].split(","))[name]


def add_scram_user(bootstrap: str, user: str = SCRAM_USER, password: str = SCRAM_PASSWORD) -> None:
    """Stores credentials of a user for both hash functions."""
    with RawClient(bootstrap) as client:
        for number, (mechanism, name) in enumerate(HASHES.items(), 1):
            salted = hashlib.pbkdf2_hmac(name, password.encode(), b"salt" + mechanism.encode(), 4096)
            change = ScramCredentialUpsertion(
                name=user, mechanism=number, iterations=4096, salt=b"salt" + mechanism.encode(), salted_password=salted
            )
            request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[change])
            (result,) = client.ask(request, 0).results
            assert result.error_code == ErrorCode.NONE, result.error_message


def handshake(client: RawClient, mechanism: str, version: int = 1) -> Any:
    return client.ask(SaslHandshakeRequest(mechanism=mechanism), version)


def send_token(client: RawClient, token: bytes, version: int = 2) -> Any:
    return client.ask(SaslAuthenticateRequest(auth_bytes=token), version)


def plain_token(user: str, password: str, authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{user}\0{password}".encode()


def scram_first(user: str, nonce: str = "client") -> bytes:
    return f"n,,n={user},r={nonce}".encode()


def scram_final(
    mechanism: str,
    first: bytes,
    server_first: bytes,
    password: str,
    binding: bytes = b"biws",
    nonce: bytes | None = None,
) -> bytes:
    """The last message of a client to the server's first one."""
    fields = dict(part.split(b"=", 1) for part in server_first.split(b","))
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), b64decode(fields[b"s"]), int(fields[b"i"]))
    client_key = hmac.digest(salted, b"Client Key", name)
    unsigned = b"c=" + binding + b",r=" + (nonce or fields[b"r"])
    signed = b",".join((first.split(b",", 2)[2], server_first, unsigned))
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    return unsigned + b",p=" + b64encode(proof)


def outlast(seconds: float) -> None:
    """Lets time pass on the broker's clock, until a session or a token is that old."""
    time.sleep(seconds)
