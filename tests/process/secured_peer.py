"""A malicious peer of TLS and SASL listeners, and the listeners.

RULES    1. As `malicious_peer.py`. The peer has an account, `mallory`, and does not know the clients' passwords.
         2. On a TLS listener an act uses the bare socket, or speaks TLS and then misbehaves inside.
NOT HERE The number of acts, and the state of the broker afterwards (`fuzzing_peer.py`).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.certificates import CertificateAuthority
from barnabas.cluster import free_ports
from protocol.api import ApiKey
from protocol.codec import encode
from protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.oracle.mutations import damaged
from tests.process.malicious_peer import (
    HUNG_UP,
    LENGTHS,
    PATIENCE_S,
    MaliciousPeer,
    Served,
    absurd_length,
    byte_by_byte,
    connects_and_drops,
    framed,
    half_a_frame,
    random_bytes,
    random_frame,
)
from tests.support.raw_client import RawClient, receive_frame
from tests.support.sasl import MECHANISMS, jaas, plain_token, scram_final, scram_first

PROTOCOLS: Final = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
WORKER, PEER = "worker", "mallory"
MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecuredListeners(NamedTuple):
    """TLS and SASL listeners of a broker beside its other ones."""

    settings: Mapping[str, str]
    arguments: tuple[str, ...]
    addresses: Mapping[str, str]
    """By security protocol."""
    authority: Path
    passwords: Mapping[str, str]
    """By user."""

    def librdkafka(self) -> dict[str, object]:
        """A worker's settings: SCRAM over TLS."""
        return {
            "bootstrap.servers": self.addresses["SASL_SSL"], "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority), "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": WORKER,
            "sasl.password": self.passwords[WORKER],
        }  # fmt: skip

    def kafka_python(self) -> dict[str, object]:
        """A worker's settings: PLAIN over TLS."""
        return {
            "bootstrap_servers": self.addresses["SASL_SSL"], "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.authority), "sasl_mechanism": "PLAIN", "sasl_plain_username": WORKER,
            "sasl_plain_password": self.passwords[WORKER],
        }  # fmt: skip


def secured_listeners(folder: Path, others: str) -> SecuredListeners:
    """Listeners of all three protocols behind `others`, the first of which brokers use among each other."""
    authority = CertificateAuthority.open_or_create(folder)
    node = authority.issue_node("node", ["127.0.0.1"]).path
    ports = free_ports(len(PROTOCOLS))
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(PROTOCOLS, ports, strict=True)}
    passwords = {user: secrets.token_hex(8) for user in (WORKER, PEER)}
    users = " ".join(f'user_{user}="{password}"' for user, password in passwords.items())
    plain = f"{MODULE} required {users};"
    listeners = ",".join([others, *(f"{name}://{address}" for name, address in addresses.items())])
    names = [text.split("://")[0] for text in listeners.split(",")]
    settings = {
        "listeners": listeners,
        "listener.security.protocol.map": ",".join(f"{n}:{n if n in PROTOCOLS else 'PLAINTEXT'}" for n in names),
        "inter.broker.listener.name": names[0],
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(node),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        **jaas("sasl_plaintext", plain),
        **jaas("sasl_ssl", plain),
    }
    arguments = [
        word
        for user, password in passwords.items()
        for word in ("--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]")
    ]
    return SecuredListeners(settings, tuple(arguments), addresses, authority.certificate_path, passwords)


class SecuredPeer(MaliciousPeer):
    """A peer of one listener."""

    def __init__(self, listeners: SecuredListeners, protocol: str, served: list[Served], seed: int) -> None:
        super().__init__(listeners.addresses[protocol], served, seed)
        self.has_sasl = protocol != "SSL"
        self.password = listeners.passwords[PEER]
        self.tls: ssl.SSLContext | None = None
        if protocol != "SASL_PLAINTEXT":
            self.tls = ssl.create_default_context(cafile=str(listeners.authority))

    @property
    def acts(self) -> Mapping[Callable[[Any], None], int]:
        """What it does, and how often."""
        return BARE_ACTS | (TLS_ACTS if self.tls else {}) | (SASL_ACTS if self.has_sasl else {})

    def speak(self) -> socket.socket:
        """A connection on which Kafka's protocol is spoken."""
        connection = self.connect()
        connection.settimeout(PATIENCE_S)
        if self.tls is None:
            return connection
        try:
            return self.tls.wrap_socket(connection, server_hostname="127.0.0.1")
        except OSError:
            connection.close()
            raise

    def ask(self, connection: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
        """The response, without length and header."""
        connection.sendall(framed(self.header(api_key, version) + body))
        return receive_frame(connection)[4:]


def begun_hello(peer: SecuredPeer) -> bytes:
    """The bytes of a ClientHello."""
    assert peer.tls is not None
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        peer.tls.wrap_bio(received, sent, server_hostname="127.0.0.1").do_handshake()
    return sent.read()


def half_a_hello(peer: SecuredPeer) -> None:
    """An incomplete ClientHello on a connection that stays open."""
    connection, hello = peer.connect(), begun_hello(peer)
    with contextlib.suppress(OSError):
        connection.sendall(hello[: peer.rng.randrange(len(hello))])
    peer.hold(connection)


def damaged_hello(peer: SecuredPeer) -> None:
    """A changed ClientHello."""
    peer.say(damaged(begun_hello(peer), peer.rng))


def hello_and_silence(peer: SecuredPeer) -> None:
    """A complete ClientHello and no answer to the server's."""
    connection = peer.connect()
    with contextlib.suppress(OSError):
        connection.sendall(begun_hello(peer))
    peer.hold(connection)


def hello_and_noise(peer: SecuredPeer) -> None:
    """A complete ClientHello, then bytes instead of the client's part of the handshake."""
    peer.say(begun_hello(peer) + peer.rng.randbytes(peer.rng.randrange(1, 3000)))


def noise_inside(peer: SecuredPeer) -> None:
    """A connection that speaks TLS, with random bytes or lengths inside."""
    with contextlib.suppress(*HUNG_UP), peer.speak() as connection:
        noise = peer.rng.choice(LENGTHS).to_bytes(4, "big", signed=True) if peer.rng.random() < 0.5 else b""
        connection.sendall(noise + peer.rng.randbytes(peer.rng.randrange(1, 2000)))
        while connection.recv(65536):
            pass


def noise_outside(peer: SecuredPeer) -> None:
    """Bytes that are no TLS record on an established TLS connection."""
    with contextlib.suppress(*HUNG_UP), peer.speak() as connection, socket.socket(fileno=connection.detach()) as bare:
        bare.sendall(peer.rng.randbytes(peer.rng.randrange(1, 500)))
        bare.settimeout(PATIENCE_S)
        while bare.recv(65536):
            pass


def requests_inside(peer: SecuredPeer) -> None:
    """Requests of all kinds, which a listener with SASL refuses before the login."""
    with contextlib.suppress(*HUNG_UP), peer.speak() as connection:
        for _ in range(peer.rng.randrange(1, 5)):
            connection.sendall(peer.frame(*peer.drawn()))
            receive_frame(connection)


def token_of(peer: SecuredPeer, mechanism: str) -> bytes:
    """A first token, with the right password half of the time."""
    password = peer.password if peer.rng.random() < 0.5 else "wrong"
    return plain_token(PEER, password) if mechanism == "PLAIN" else scram_first(PEER)


def handshake_inside(peer: SecuredPeer, connection: socket.socket, mechanism: str, version: int = 1) -> None:
    peer.ask(connection, ApiKey.SASL_HANDSHAKE, version, encode(SaslHandshakeRequest(mechanism=mechanism), version))


def logs_in(peer: SecuredPeer) -> None:
    """A right or wrong login, and requests after it."""
    mechanism = peer.rng.choice(("PLAIN", "SCRAM-SHA-512"))
    with contextlib.suppress(*HUNG_UP), peer.speak() as connection:
        handshake_inside(peer, connection, mechanism, version=0)
        token = token_of(peer, mechanism)
        connection.sendall(framed(token))
        answer = receive_frame(connection)
        if mechanism != "PLAIN":
            connection.sendall(framed(scram_final(mechanism, token, answer, peer.password)))
            receive_frame(connection)
        for _ in range(5):
            connection.sendall(framed(damaged(peer.frame(*peer.drawn())[4:], peer.rng)))
            receive_frame(connection)


def damaged_tokens(peer: SecuredPeer) -> None:
    """Tokens with changes, as requests or bare, in the first or second step."""
    mechanism, version = peer.rng.choice(MECHANISMS), peer.rng.randrange(3)
    with contextlib.suppress(*HUNG_UP), peer.speak() as connection:
        handshake_inside(peer, connection, mechanism, version=min(version, 1))
        token = token_of(peer, mechanism)
        for _ in range(2):
            sent = damaged(token, peer.rng) if peer.rng.random() < 0.7 else token
            if version == 0:
                connection.sendall(framed(sent))
                token = receive_frame(connection)
            else:
                token = peer.ask(
                    connection,
                    ApiKey.SASL_AUTHENTICATE,
                    version,
                    encode(SaslAuthenticateRequest(auth_bytes=sent), version),
                )


def damaged_login_requests(peer: SecuredPeer) -> None:
    """The requests of a login in any order, with changes."""
    bodies = {
        (ApiKey.API_VERSIONS, 3): b"\2a\2b\0",
        (ApiKey.SASL_HANDSHAKE, 1): encode(SaslHandshakeRequest(mechanism=peer.rng.choice((*MECHANISMS, "X"))), 1),
        (ApiKey.SASL_AUTHENTICATE, 2): encode(SaslAuthenticateRequest(auth_bytes=token_of(peer, "PLAIN")), 2),
    }
    with contextlib.suppress(*HUNG_UP), peer.speak() as connection:
        for _ in range(peer.rng.randrange(1, 6)):
            (api_key, version), body = peer.rng.choice(list(bodies.items()))
            frame = peer.header(api_key, version) + body
            connection.sendall(framed(damaged(frame, peer.rng) if peer.rng.random() < 0.5 else frame))
            receive_frame(connection)


def half_a_login(peer: SecuredPeer) -> None:
    """A login that stops, on a connection that stays open."""
    with contextlib.suppress(*HUNG_UP):
        connection = peer.speak()
        peer.hold(connection)
        handshake_inside(peer, connection, peer.rng.choice(MECHANISMS))


BARE_ACTS: dict[Callable[[SecuredPeer], None], int] = {
    random_frame: 10,
    random_bytes: 10,
    half_a_frame: 10,
    absurd_length: 10,
    connects_and_drops: 3,
    byte_by_byte: 1,
}
TLS_ACTS: dict[Callable[[SecuredPeer], None], int] = {
    half_a_hello: 10,
    damaged_hello: 30,
    hello_and_silence: 10,
    hello_and_noise: 20,
    noise_inside: 20,
    noise_outside: 10,
    requests_inside: 20,
}
SASL_ACTS: dict[Callable[[SecuredPeer], None], int] = {
    logs_in: 30,
    damaged_tokens: 60,
    damaged_login_requests: 60,
    half_a_login: 10,
}


def try_every_act(peer: SecuredPeer) -> None:
    """Each act once."""
    for act in peer.acts:
        act(peer)


def log_in_as_worker(listeners: SecuredListeners) -> None:
    """Asserts that the listener without TLS still serves."""
    with RawClient(listeners.addresses["SASL_PLAINTEXT"]) as client:
        assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        token = plain_token(WORKER, listeners.passwords[WORKER])
        assert client.ask(SaslAuthenticateRequest(auth_bytes=token), 2).error_code == 0
