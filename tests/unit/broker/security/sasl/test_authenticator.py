"""The order of messages before authentication (broker/security/sasl/authenticator.py)."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from broker.security.sasl.authenticator import SaslServerAuthenticator, Session
from broker.security.sasl.mechanism import InvalidCredentials, SaslServer
from broker.security.sasl.plain import PlainServer
from protocol.errors import ErrorCode

NOW_MS = 1_000_000
RIGHT, WRONG = b"\0alice\0secret", b"\0alice\0no"


class TwoSteps(SaslServer):
    """A mechanism whose tokens are b"1" and b"2"."""

    def evaluate(self, token: bytes) -> bytes:
        if token not in (b"1", b"2"):
            raise InvalidCredentials
        if token == b"2":
            self.user = "bob"
        return b"answer to " + token


@pytest.fixture
def authenticator() -> SaslServerAuthenticator:
    return SaslServerAuthenticator({"TWO": TwoSteps, "PLAIN": lambda: PlainServer({"alice": "secret"})})


def authenticate(authenticator: SaslServerAuthenticator, token: bytes) -> Any:
    """The answer to a token, which exists at once."""
    answer = authenticator.authenticate(token, lambda: NOW_MS)
    return None if answer is None else answer.result()


def user_of(authenticator: SaslServerAuthenticator) -> str | None:
    return None if authenticator.session is None else authenticator.session.user


def test_the_user_is_known_after_the_last_token(authenticator: SaslServerAuthenticator) -> None:
    assert authenticator.handshake(1, "TWO").mechanisms == ["TWO", "PLAIN"]
    answers = []
    for token in (b"1", b"2"):
        assert authenticator.session is None
        answers.append(authenticate(authenticator, token))
    assert [(one.error_code, one.error_message, one.auth_bytes) for one in answers] == [
        (0, "", b"answer to 1"),
        (0, "", b"answer to 2"),
    ]
    assert (user_of(authenticator), authenticator.failure) == ("bob", None)


def test_versions_may_be_asked_until_they_are_accepted(authenticator: SaslServerAuthenticator) -> None:
    authenticator.on_api_versions(is_accepted=False)
    assert authenticator.may_ask_versions
    authenticator.on_api_versions(is_accepted=True)
    assert not authenticator.may_ask_versions
    assert authenticator.handshake(1, "PLAIN").error_code == ErrorCode.NONE


def test_another_mechanism_is_refused_with_the_enabled_ones(authenticator: SaslServerAuthenticator) -> None:
    response = authenticator.handshake(1, "GSSAPI")
    assert (response.error_code, response.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["TWO", "PLAIN"])
    assert authenticator.failure == "Unsupported SASL mechanism"


def test_a_second_handshake_fails(authenticator: SaslServerAuthenticator) -> None:
    authenticator.handshake(1, "PLAIN")
    response = authenticator.handshake(1, "PLAIN")
    assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert authenticator.failure == "Unexpected Kafka request of type SASL_HANDSHAKE during SASL authentication."


def test_a_token_before_the_handshake_fails_without_an_answer(authenticator: SaslServerAuthenticator) -> None:
    assert authenticate(authenticator, RIGHT) is None
    assert authenticator.failure == "Unexpected Kafka request of type SASL_AUTHENTICATE during SASL handshake."
    assert authenticator.session is None


@pytest.mark.parametrize(
    ("mechanism", "token", "message"),
    [
        ("PLAIN", WRONG, "Authentication failed: Invalid username or password"),
        ("TWO", b"3", "Authentication failed during authentication due to invalid credentials with SASL mechanism TWO"),
    ],
)
def test_wrong_credentials_are_refused_with_kafkas_message(
    authenticator: SaslServerAuthenticator, mechanism: str, token: bytes, message: str
) -> None:
    authenticator.handshake(1, mechanism)
    response = authenticate(authenticator, token)
    assert (response.error_code, response.error_message, response.auth_bytes) == (58, message, b"")
    assert (authenticator.failure, user_of(authenticator)) == (message, None)


def test_nothing_authenticates_after_a_failure(authenticator: SaslServerAuthenticator) -> None:
    authenticator.handshake(1, "PLAIN")
    authenticate(authenticator, WRONG)
    assert authenticate(authenticator, RIGHT) is None
    assert authenticator.handshake(1, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert authenticator.session is None


def test_version_0_of_the_handshake_is_followed_by_raw_tokens(authenticator: SaslServerAuthenticator) -> None:
    assert not authenticator.expects_raw_token
    authenticator.handshake(0, "TWO")
    assert authenticator.expects_raw_token
    assert authenticator.authenticate_raw(b"1", lambda: NOW_MS).result() == b"answer to 1"
    assert authenticator.authenticate_raw(b"2", lambda: NOW_MS).result() == b"answer to 2"
    assert (user_of(authenticator), authenticator.expects_raw_token) == ("bob", False)


def test_a_wrong_raw_token_has_no_answer(authenticator: SaslServerAuthenticator) -> None:
    authenticator.handshake(0, "PLAIN")
    assert authenticator.authenticate_raw(WRONG, lambda: NOW_MS).result() is None
    assert authenticator.failure is not None


class Expiring(TwoSteps):
    """A mechanism whose credentials expire in two seconds."""

    expires_wall_ms = NOW_MS + 2000


class Endless(TwoSteps):
    """A credential whose expiry is beyond 64 bits of milliseconds, as a callback returns with sys.maxsize."""

    expires_wall_ms = sys.maxsize * 1000


def repeated(mechanism: str = "TWO", user: str = "bob") -> SaslServerAuthenticator:
    """A client of a session authenticates again."""
    servers = {"TWO": TwoSteps, "PLAIN": lambda: PlainServer({"alice": "secret"})}
    return SaslServerAuthenticator(servers, {}, Session(user, mechanism, is_token=False, lifetime_ms=1000))


@pytest.mark.parametrize(
    ("server", "limits_ms", "lifetime_ms"),
    [
        (TwoSteps, {}, None),
        (TwoSteps, {"TWO": 0, "PLAIN": 9}, None),
        (TwoSteps, {"TWO": 1500}, 1500),
        (Expiring, {}, 2000),
        (Expiring, {"TWO": 1500}, 1500),
        (Expiring, {"TWO": 2500}, 2000),
        (Endless, {}, None),
        (Endless, {"TWO": 1500}, 1500),
    ],
)
def test_a_session_lasts_until_the_earlier_limit(
    server: type[SaslServer], limits_ms: dict[str, int], lifetime_ms: int | None
) -> None:
    authenticator = SaslServerAuthenticator({"TWO": server}, limits_ms)
    authenticator.handshake(1, "TWO")
    response = authenticate(authenticator, b"2")
    assert response is not None
    assert response.session_lifetime_ms == (lifetime_ms or 0)
    assert authenticator.session == Session("bob", "TWO", is_token=False, lifetime_ms=lifetime_ms)


def test_a_client_authenticates_again_without_asking_for_versions() -> None:
    authenticator = repeated()
    assert not authenticator.may_ask_versions
    authenticator.handshake(1, "TWO")
    authenticate(authenticator, b"2")
    assert user_of(authenticator) == "bob"


def test_another_user_is_refused() -> None:
    authenticator = repeated("PLAIN")
    authenticator.handshake(1, "PLAIN")
    response = authenticate(authenticator, RIGHT)
    assert response is not None
    message = "Cannot change principals during re-authentication from User.bob: User.alice"
    assert (response.error_code, response.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, message)
    assert authenticator.session is None


def test_another_mechanism_is_accepted_and_nothing_after_it() -> None:
    authenticator = repeated()
    assert authenticator.handshake(1, "PLAIN").error_code == ErrorCode.NONE
    assert authenticator.expects_nothing
    assert authenticate(authenticator, RIGHT) is None
    assert authenticator.failure is not None


def test_the_general_message_names_the_repetition() -> None:
    authenticator = repeated()
    authenticator.handshake(1, "TWO")
    authenticate(authenticator, b"3")
    assert authenticator.failure is not None
    assert authenticator.failure.startswith("Authentication failed during re-authentication due to")
