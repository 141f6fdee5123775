"""Functions of an installed package authenticate clients; a slow one holds up its own connection only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from barnabas import Broker
from barnabas.embedded import BrokerError
from protocol.errors import ErrorCode
from protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from protocol.messages.sasl import SaslAuthenticateRequest
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import MODULE, handshake, plain_token, sasl_node, send_token

PREFIX = "listener.name.sasl_plaintext"
PACKAGE = """
import time

def check(user, password):
    if password == "slow":
        time.sleep(2)
    if password == "crash":
        raise RuntimeError("the directory is gone")
    return user == "dora" and password in ("right", "slow")

def validate(token):
    if token == "odd":
        return None
    if token != "good":
        raise ValueError("no")
    return "oscar", time.time() + 60
"""
ENTRY_POINTS = "[barnabas.sasl_callbacks]\ndirectory = company_login:check\nissuer = company_login:validate\n"


class Node(NamedTuple):
    """A node with both callbacks."""

    address: str
    broker: Broker


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with the callbacks, on the path of new processes."""
    (folder / "company_login.py").write_text(PACKAGE)
    described = folder / "company_login-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: company-login\nVersion: 1\n")
    (described / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def settings_with(plain: str) -> tuple[dict[str, str], str]:
    return sasl_node(
        {
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            f"{PREFIX}.oauthbearer.sasl.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;",
            f"{PREFIX}.plain.sasl.server.callback.handler.class": plain,
            f"{PREFIX}.oauthbearer.sasl.server.callback.handler.class": "issuer",
        }
    )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    install(tmp_path, monkeypatch)
    settings, address = settings_with("directory")
    with Broker(settings=settings) as broker:
        yield Node(address, broker)


def log_in(node: Node, password: str) -> tuple[int, str]:
    with RawClient(node.address) as client:
        handshake(client, "PLAIN")
        answer = send_token(client, plain_token("dora", password))
        if answer.error_code == ErrorCode.NONE:
            assert client.ask(message(MetadataRequest, topics=[]), 12).brokers
        return answer.error_code, answer.error_message


def test_a_callback_checks_passwords(node: Node) -> None:
    refused = ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed: Invalid username or password"
    assert log_in(node, "right") == (ErrorCode.NONE, "")
    assert log_in(node, "wrong") == refused
    assert log_in(node, "crash") == refused
    assert "the directory is gone" in node.broker.log()


def test_a_slow_callback_holds_up_its_own_connection_only(node: Node) -> None:
    with RawClient(node.address) as slow:
        handshake(slow, "PLAIN")
        request = SaslAuthenticateRequest(auth_bytes=plain_token("dora", "slow"))
        slow.send(request, 2)
        started = time.monotonic()
        assert log_in(node, "right") == (ErrorCode.NONE, "")
        assert time.monotonic() - started < 1
        assert slow.receive(request, 2).error_code == ErrorCode.NONE
        assert slow.ask(ApiVersionsRequest(), 0).api_keys


def test_a_callback_validates_tokens(node: Node) -> None:
    for token, code in (("good", ErrorCode.NONE), ("bad", None), ("odd", None)):
        with RawClient(node.address) as client:
            handshake(client, "OAUTHBEARER")
            answer = send_token(client, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
            if code is None:
                assert answer.auth_bytes == b'{"status":"invalid_token"}'
                answer = send_token(client, b"\x01")
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            else:
                assert 0 < answer.session_lifetime_ms <= 60_000


def test_raw_tokens_wait_for_the_callback_too(node: Node) -> None:
    with RawClient(node.address) as client:
        handshake(client, "PLAIN", version=0)
        client.send_frame(plain_token("dora", "right"))
        assert client.receive_frame() == b""
        assert client.ask(message(MetadataRequest, topics=[]), 12).brokers


def test_an_unknown_callback_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    settings, _ = settings_with("missing")
    with pytest.raises(BrokerError, match=r"plain\.sasl\.server\.callback\.handler\.class is not enforced"):
        Broker(settings=settings).start()
