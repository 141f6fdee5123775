"""The client side of SASL (broker/security/sasl/client.py), against the server side."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.config.oauth_configs import UnsecuredValidation
from broker.config.oauth_login_configs import TokenFile, UnsecuredLogin
from broker.config.sasl_configs import ClientCredentials
from broker.security.sasl.client import InvalidServer, SaslClient, sasl_client
from broker.security.sasl.mechanism import InvalidCredentials, SaslServer
from broker.security.sasl.oauth_login import NoToken
from broker.security.sasl.oauthbearer import InvalidToken, OAuthBearerServer, ValidToken
from broker.security.sasl.plain import PlainServer
from broker.security.sasl.scram import HASHES, ScramServer
from broker.security.sasl.unsecured_jwt import UnsecuredValidator
from tests.unit.broker.security.sasl.test_scram import credential

USER, PASSWORD = "a,b=c", "pencil"


def server(mechanism: str) -> SaslServer:
    if mechanism == "PLAIN":
        return PlainServer({USER: PASSWORD})
    known = credential(HASHES[mechanism], b"salt", PASSWORD.encode())
    return ScramServer(HASHES[mechanism], lambda user: known if user == USER else None, "server")


def client(mechanism: str, password: str = PASSWORD) -> SaslClient:
    return sasl_client(ClientCredentials(mechanism, USER, password), "client")


def log_in(ours: SaslClient, theirs: SaslServer) -> None:
    token: bytes | None = ours.first()
    while token is not None:
        answer = theirs.evaluate(token)
        assert isinstance(answer, bytes)
        token = ours.answer(answer)


@pytest.mark.parametrize("mechanism", ["PLAIN", *HASHES])
def test_client_and_server_authenticate_each_other(mechanism: str) -> None:
    theirs = server(mechanism)
    log_in(client(mechanism), theirs)
    assert theirs.user == USER


@pytest.mark.parametrize("mechanism", ["PLAIN", *HASHES])
def test_a_wrong_password_is_refused(mechanism: str) -> None:
    with pytest.raises(InvalidCredentials):
        log_in(client(mechanism, "x"), server(mechanism))


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=clientserver,s=c2FsdA==,i=4095",
        b"r=clientserver,s=c2FsdA==,i=16385",
        b"r=clientserver,s=c2FsdA==,i=x",
        b"r=clientserver,s=!,i=4096",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=clientserver",
        b"",
    ],
)
def test_a_challenge_is_refused(challenge: bytes) -> None:
    with pytest.raises(InvalidServer):
        client("SCRAM-SHA-256").answer(challenge)


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    ours = client("SCRAM-SHA-256")
    assert ours.answer(b"r=clientserver,s=c2FsdA==,i=4096") is not None
    with pytest.raises(InvalidServer, match="does not know the password"):
        ours.answer(b"v=AAAA")


def test_credentials_show_no_password() -> None:
    assert PASSWORD not in repr(ClientCredentials("PLAIN", USER, PASSWORD))


def test_an_oauth_client_sends_its_token_and_confirms_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("right.token\n")
    known = sasl_client(ClientCredentials("OAUTHBEARER", oauth=TokenFile(str(path))), "")

    def validate(token: str) -> ValidToken:
        if token != "right.token":
            raise InvalidToken("wrong")
        return ValidToken("node", 5000)

    theirs = OAuthBearerServer(validate)
    log_in(known, theirs)
    assert theirs.user == "node"
    path.write_text("other.token")  # a login reads the file again
    with pytest.raises(InvalidCredentials, match="invalid_token"):
        log_in(
            sasl_client(ClientCredentials("OAUTHBEARER", oauth=TokenFile(str(path))), ""), OAuthBearerServer(validate)
        )


def test_an_unsecured_token_has_the_claims_of_the_settings() -> None:
    login = UnsecuredLogin({"sub": "node", "scope": ["kafka"]}, 60)
    theirs = OAuthBearerServer(
        UnsecuredValidator(UnsecuredValidation(required_scopes=("kafka",)), lambda: time.time_ns() // 1_000_000)
    )
    log_in(sasl_client(ClientCredentials("OAUTHBEARER", oauth=login), ""), theirs)
    assert theirs.user == "node"


@pytest.mark.parametrize("name", ["missing", "empty", "."])
def test_a_node_without_a_token_does_not_log_in(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(NoToken):
        sasl_client(ClientCredentials("OAUTHBEARER", oauth=TokenFile(str(tmp_path / name))), "")
