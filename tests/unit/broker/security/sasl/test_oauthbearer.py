"""OAUTHBEARER: its messages, unsecured and signed tokens (broker/security/sasl/)."""

from __future__ import annotations

import json
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from broker.config.oauth_configs import JwksValidation, UnsecuredValidation
from broker.security.sasl.jwt_validator import JwtValidator, parse_keys
from broker.security.sasl.mechanism import InvalidCredentials
from broker.security.sasl.oauthbearer import InvalidToken, OAuthBearerServer, ValidToken
from broker.security.sasl.unsecured_jwt import UnsecuredValidator
from replication.completion import Completion, completed
from tests.support.waiting import until

NOW_S = 1_800_000_000
FAR_S = 4_000_000_000
INVALID = b'{"status":"invalid_token"}'


def first(token: str, authorization_id: str = "", extensions: str = "") -> bytes:
    return f"n,{authorization_id},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def validate(token: str) -> ValidToken:
    if token != "right":
        raise InvalidToken("wrong", "[kafka]" if token == "small" else None)
    return ValidToken("alice", 5000)


def test_a_valid_token_authenticates_its_user() -> None:
    for message in (first("right"), first("right", "a=alice"), first("right", extensions="traceId=1\x01"),
                    first("right").replace(b"Bearer ", b"bearer   ")):  # fmt: skip
        server = OAuthBearerServer(validate)
        assert server.evaluate(message) == b""
        assert (server.user, server.expires_wall_ms) == ("alice", 5000)


@pytest.mark.parametrize(
    ("token", "answer"),
    [("wrong", INVALID), ("small", b'{"status":"insufficient_scope", "scope":"[kafka]"}')],
)
def test_a_refusal_is_confirmed_by_the_client(token: str, answer: bytes) -> None:
    server = OAuthBearerServer(validate)
    assert server.evaluate(first(token)) == answer
    with pytest.raises(InvalidCredentials, match=answer.decode().replace("[", r"\[")):
        server.evaluate(b"\x01")
    assert server.user is None


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\x01", b"n,,", b"n,,\x01\x01", b"y,,\x01auth=Bearer right\x01\x01", b"n,,\x01auth=Basic right\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01", b"n,,\x01auth=Bearer r,t\x01\x01", first("right", "a=bob"), first("right") + b"x",
    ],
)  # fmt: skip
def test_malformed_messages_are_refused(message: bytes) -> None:
    server = OAuthBearerServer(validate)
    with pytest.raises(InvalidCredentials):
        server.evaluate(message)
    assert server.user is None


@pytest.mark.parametrize("is_late", [False, True])
def test_a_user_that_cannot_be_encoded_is_refused(is_late: bool) -> None:
    half = ValidToken("a\ud800b", 5000)  # as JSON names it
    server = OAuthBearerServer(lambda _: completed(half) if is_late else half)
    answer = server.evaluate(first("right"))
    assert (answer.result() if isinstance(answer, Completion) else answer) == INVALID
    assert server.user is None


# ------------------------------------------------------------ unsecured tokens
def encoded(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def unsecured(claims: Any, header: Any = None) -> str:
    return f"{encoded({'alg': 'none'} if header is None else header)}.{encoded(claims)}."


RIGHT = {"sub": "bob", "exp": NOW_S + 60, "iat": NOW_S}


def check_unsecured(token: str, **settings: Any) -> ValidToken:
    return UnsecuredValidator(UnsecuredValidation(**settings), lambda: NOW_S * 1000)(token)


def test_an_unsecured_token_names_the_user() -> None:
    assert check_unsecured(unsecured(RIGHT)) == ValidToken("bob", (NOW_S + 60) * 1000)
    assert check_unsecured(unsecured({"name": "x", "exp": NOW_S + 0.5}), principal_claim="name").user == "x"
    scopes = {"required_scopes": ("a", "b"), "scope_claim": "scp"}
    assert check_unsecured(unsecured(RIGHT | {"scp": ["b", "a", "c"]}), **scopes).user == "bob"
    with pytest.raises(InvalidToken) as refusal:
        check_unsecured(unsecured(RIGHT | {"scp": "a b"}), **scopes)
    assert refusal.value.scope == "[a, b]"


@pytest.mark.parametrize(
    "token",
    [
        "", "a.b", "a.b.", "..", unsecured(RIGHT) + "signature", unsecured(RIGHT, {"alg": "RS256"}), unsecured([1]),
        unsecured(RIGHT, ["none"]), unsecured({"exp": NOW_S + 60}), unsecured({"sub": "a"}), unsecured(RIGHT | {"sub": 1}),
        unsecured(RIGHT | {"exp": NOW_S}), unsecured(RIGHT | {"exp": "9"}), unsecured(RIGHT | {"iat": NOW_S + 1}),
        unsecured(RIGHT | {"exp": True}), unsecured({"sub": "a", "exp": float("inf")}), encoded("[" * 9000) + ".e30.",
    ],
)  # fmt: skip
def test_other_unsecured_tokens_are_refused(token: str) -> None:
    with pytest.raises(InvalidToken):
        check_unsecured(token)


# ------------------------------------------------------------ signed tokens
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE_KEY = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"sub": "carol", "exp": FAR_S, "iat": NOW_S - 10_000_000, "iss": "https://issuer", "aud": ["kafka", "other"]}


def jwks(*keys: Any) -> dict[str, Any]:
    entries = []
    for number, key in enumerate(keys):
        algorithm = ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else RSAAlgorithm
        entries.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": str(number), "use": "sig"})
    return {"keys": entries}


@pytest.fixture
def validator(tmp_path: Path) -> JwtValidator:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(jwks(KEY, CURVE_KEY)))
    return JwtValidator(JwksValidation(path.as_uri(), "https://issuer", ("kafka",)))


def signed(claims: Any = None, key: Any = KEY, algorithm: str = "RS256", **header: Any) -> str:
    return jwt.encode(CLAIMS if claims is None else claims, key, algorithm, headers={"kid": "0", **header})


def test_a_signed_token_names_the_user(validator: JwtValidator) -> None:
    assert validator(signed()) == ValidToken("carol", FAR_S * 1000)
    assert validator(signed(algorithm="PS384")).user == "carol"
    assert validator(signed(key=CURVE_KEY, algorithm="ES256", kid="1")).user == "carol"
    assert validator(jwt.encode(CLAIMS, KEY, "RS256")).user == "carol"


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in CLAIMS.items() if key != name}


NO_KEY: Any = None


@pytest.mark.parametrize(
    "token",
    [
        *(signed(without(name)) for name in CLAIMS),
        signed(CLAIMS | {"exp": 1}), signed(CLAIMS | {"iss": "https://other"}), signed(CLAIMS | {"aud": "x"}),
        signed(CLAIMS | {"sub": " "}), signed(CLAIMS | {"nbf": FAR_S - 1}), signed(key=OTHER_KEY), signed(kid="7"),
        signed(kid="1"), signed()[:-3], "x", "a.b.c",
        jwt.encode(CLAIMS, NO_KEY, "none"), unsecured(CLAIMS, {"alg": "none", "kid": "0"}),
        jwt.encode(CLAIMS, "a shared secret of more than 32 bytes", "HS256", headers={"kid": "0"}),
    ],
)  # fmt: skip
def test_other_signed_tokens_are_refused(validator: JwtValidator, token: str) -> None:
    with pytest.raises(InvalidToken):
        validator(token)


def test_a_jwks_without_keys_for_signatures_is_an_error() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256", "kid": "0"}
    encrypting = jwks(KEY)["keys"][0] | {"use": "enc"}
    documents: list[dict[str, Any]] = [{}, {"keys": []}, {"keys": [secret]}, {"keys": [encrypting]}]
    for document in documents:
        with pytest.raises(ValueError, match="contains no key"):
            parse_keys(document)


class KeyServer(BaseHTTPRequestHandler):
    """Serves the keys that a test chooses, or an error, or other bytes than HTTP."""

    document: ClassVar[dict[str, Any] | None] = None
    raw: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        if self.raw:
            self.wfile.write(self.raw)
            return
        body = json.dumps(self.document).encode()
        self.send_response(503 if self.document is None else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), KeyServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    server.server_close()
    thread.join()


def is_valid(validator: JwtValidator, token: str) -> bool:
    try:
        return validator(token).user == "carol"
    except InvalidToken:
        return False


def test_keys_of_a_server_are_retried_and_refreshed(url: str) -> None:
    KeyServer.document = None
    validator = JwtValidator(JwksValidation(url, "https://issuer", ("kafka",), refresh_ms=50, backoff_ms=10))
    assert not is_valid(validator, signed())
    KeyServer.document = jwks(KEY)
    until(lambda: is_valid(validator, signed()), "the keys are read")
    KeyServer.document = jwks(OTHER_KEY)
    until(lambda: is_valid(validator, signed(key=OTHER_KEY)), "the keys are read again")
    assert not is_valid(validator, signed())


@pytest.mark.parametrize(
    ("raw", "document"),
    [
        (b"garbage\r\n\r\n", None),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{}", None),
        (b"", {"keys": 5}),
        (b"", {"keys": [{"kty": "RSA", "n": 1, "e": []}]}),
    ],
)
def test_a_server_that_sends_nonsense_does_not_end_the_refreshes(url: str, raw: bytes, document: Any) -> None:
    KeyServer.raw, KeyServer.document = raw, document
    validator = JwtValidator(JwksValidation(url, "https://issuer", ("kafka",), refresh_ms=50, backoff_ms=10))
    KeyServer.raw, KeyServer.document = b"", jwks(KEY)
    until(lambda: is_valid(validator, signed()), "the keys are read", within_s=10)


def test_the_refreshes_end_with_the_validator(url: str) -> None:
    KeyServer.raw, KeyServer.document = b"", jwks(KEY)
    validator = JwtValidator(JwksValidation(url, "https://issuer", ("kafka",)))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "jwks"]
    del validator
    thread.join(10)
    assert not thread.is_alive()


def test_an_unknown_key_is_looked_up_at_once(url: str) -> None:
    KeyServer.document = jwks(KEY)
    validator = JwtValidator(JwksValidation(url, "https://issuer", ("kafka",)))
    KeyServer.document = jwks(KEY, OTHER_KEY)
    until(lambda: is_valid(validator, signed(key=OTHER_KEY, kid="1")), "the keys are read again")
