"""The order of messages before authentication (broker/security/sasl/authenticator.py)."""

from __future__ import annotations

import pytest

from broker.security.sasl.authenticator import SaslServerAuthenticator
from broker.security.sasl.mechanism import InvalidCredentials
from broker.security.sasl.plain import PlainServer
from protocol.errors import ErrorCode

RIGHT, WRONG = b"\0alice\0secret", b"\0alice\0no"


class TwoSteps:
    """A mechanism whose tokens are b"1" and b"2"."""

    user: str | None = None

    def evaluate(self, token: bytes) -> bytes:
        if token not in (b"1", b"2"):
            raise InvalidCredentials
        if token == b"2":
            self.user = "bob"
        return b"answer to " + token


@pytest.fixture
def authenticator() -> SaslServerAuthenticator:
    return SaslServerAuthenticator({"TWO": TwoSteps, "PLAIN": lambda: PlainServer({"alice": "secret"})})


def test_the_user_is_known_after_the_last_token(authenticator: SaslServerAuthenticator) -> None:
    assert authenticator.handshake(1, "TWO").mechanisms == ["TWO", "PLAIN"]
    answers = []
    for token in (b"1", b"2"):
        assert authenticator.user is None
        answers.append(authenticator.authenticate(token))
    assert [(one.error_code, one.error_message, one.auth_bytes) for one in answers] == [
        (0, "", b"answer to 1"),
        (0, "", b"answer to 2"),
    ]
    assert (authenticator.user, authenticator.failure) == ("bob", None)


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
    assert authenticator.authenticate(RIGHT) is None
    assert authenticator.failure == "Unexpected Kafka request of type SASL_AUTHENTICATE during SASL handshake."
    assert authenticator.user is None


@pytest.mark.parametrize(
    ("mechanism", "token", "message"),
    [
        ("PLAIN", WRONG, "Authentication failed: Invalid username or password"),
        ("TWO", b"3", "Authentication failed during authentication due to invalid credentials with SASL mechanism TWO"),
    ],
)
def test_wrong_credentials(authenticator: SaslServerAuthenticator, mechanism: str, token: bytes, message: str) -> None:
    authenticator.handshake(1, mechanism)
    response = authenticator.authenticate(token)
    assert (response.error_code, response.error_message, response.auth_bytes) == (58, message, b"")
    assert (authenticator.failure, authenticator.user) == (message, None)


def test_nothing_authenticates_after_a_failure(authenticator: SaslServerAuthenticator) -> None:
    authenticator.handshake(1, "PLAIN")
    authenticator.authenticate(WRONG)
    assert authenticator.authenticate(RIGHT) is None
    assert authenticator.handshake(1, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert authenticator.user is None


def test_raw_tokens_after_the_first_version_of_the_handshake(authenticator: SaslServerAuthenticator) -> None:
    assert not authenticator.expects_raw_token
    authenticator.handshake(0, "TWO")
    assert authenticator.expects_raw_token
    assert authenticator.authenticate_raw(b"1") == b"answer to 1"
    assert authenticator.authenticate_raw(b"2") == b"answer to 2"
    assert (authenticator.user, authenticator.expects_raw_token) == ("bob", False)


def test_a_wrong_raw_token_has_no_answer(authenticator: SaslServerAuthenticator) -> None:
    authenticator.handshake(0, "PLAIN")
    assert authenticator.authenticate_raw(WRONG) is None
    assert authenticator.failure is not None
