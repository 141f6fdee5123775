"""SCRAM (broker/security/sasl/scram.py): the examples of the RFCs, and what is refused."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Any

import pytest

from broker.security.sasl.mechanism import InvalidCredentials
from broker.security.sasl.scram import ScramCredential, ScramServer
from tests.support.sasl import scram_final

EXAMPLES = {
    "RFC 5802": (
        "sha1",
        b"QSXCR+Q6sek8bf92",
        "3rfcNHYJY1ZVvWVs7j",
        b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    "RFC 7677": (
        "sha256",
        b"W22ZaJ0SNY7soEsUEjb6gQ==",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}
MECHANISM = "SCRAM-SHA-512"
USERS = ("user", "a,b=c")


def credential(hash_name: str, salt: bytes, password: bytes = b"pencil", iterations: int = 4096) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", hash_name), iterations)


KNOWN = credential("sha512", b"salt")


def server(nonce: str = "server") -> ScramServer:
    return ScramServer("sha512", lambda user: KNOWN if user in USERS else None, nonce)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_messages_are_those_of_the_rfcs_examples(example: str) -> None:
    hash_name, salt, nonce, *messages = EXAMPLES[example]
    known = credential(hash_name, b64decode(salt))
    scram = ScramServer(hash_name, lambda user: known if user == "user" else None, nonce)
    assert scram.evaluate(messages[0]) == messages[1]
    assert scram.user is None
    assert scram.evaluate(messages[2]) == messages[3]
    assert scram.user == "user"


def test_a_name_with_comma_and_equals_sign_is_decoded() -> None:
    scram = server()
    first = b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=x,ext=1"
    binding = b64encode(b"n,a=a=2Cb=3Dc,")
    scram.evaluate(scram_final(MECHANISM, first, scram.evaluate(first), "pencil", binding))
    assert scram.user == "a,b=c"


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,n=user",
        b"n,,n=nobody,r=x",
        b"y,,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"n,,m=must,n=user,r=x",
        b"n,,n=us=er,r=x",
        b"n,,n=user,r=",
        b"n,,n=us\xc3\xa9r,r=x",
        b"n,,n=user,r=x,tokenauth=true",
        b"n,,n=user,r=x\n",
    ],
)
def test_a_first_message_is_refused_without_a_reason(first: bytes) -> None:
    with pytest.raises(InvalidCredentials) as refusal:
        server().evaluate(first)
    assert str(refusal.value) == ""


def test_another_authorization_id_is_refused() -> None:
    with pytest.raises(InvalidCredentials, match="authorization id that is different from username"):
        server().evaluate(b"n,a=other,n=user,r=x")


def test_a_credential_with_few_iterations_is_refused() -> None:
    weak = credential("sha512", b"salt", iterations=4095)
    with pytest.raises(InvalidCredentials):
        ScramServer("sha512", lambda _: weak, "server").evaluate(b"n,,n=user,r=x")


@pytest.mark.parametrize(
    "change",
    [
        {"password": "pencils"},
        {"binding": b"eSws"},
        {"binding": b""},
        {"nonce": b"server"},
        {"nonce": b"xserve"},
        {"nonce": b"server-and-more"},
    ],
)
def test_a_last_message_is_refused(change: dict[str, object]) -> None:
    scram, first = server(), b"n,,n=user,r=x"
    options: dict[str, Any] = {"password": "pencil", **change}
    final = scram_final(MECHANISM, first, scram.evaluate(first), **options)
    with pytest.raises(InvalidCredentials) as refusal:
        scram.evaluate(final)
    assert (str(refusal.value), scram.user) == ("", None)


@pytest.mark.parametrize("proof", [b"", b"AAAA", b"A" * 88, b"!"])
def test_a_malformed_proof_is_refused(proof: bytes) -> None:
    scram = server()
    scram.evaluate(b"n,,n=user,r=x")
    with pytest.raises(InvalidCredentials):
        scram.evaluate(b"c=biws,r=xserver,p=" + proof)
    assert scram.user is None
