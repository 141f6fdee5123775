"""Consume, produce and groups on every security profile, and what they say without rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas import Broker
from broker.config.oauth_configs import UNSECURED_HANDLER
from tests.cli.running import barnabas
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.sasl import MODULE, sasl_node
from tests.support.security_profiles import PROFILES, Login, SecuredNode

DAILY = {"SSL", "SASL_SSL/SCRAM-SHA-512"}
PREFIX = "listener.name.sasl_plaintext.oauthbearer"
TOKENS = "org.apache.kafka.common.security.oauthbearer"


@pytest.fixture(
    scope="module",
    params=[name if name in DAILY else pytest.param(name, marks=pytest.mark.long) for name in PROFILES],
)
def node(request: pytest.FixtureRequest) -> Iterator[SecuredNode]:
    with SecuredNode(PROFILES[request.param]) as made:
        with RawClient(made.inside) as client:
            create(client, "private")
        made.allow("alice", "write read describe", "topic", "private")
        made.allow("alice", "read", "group", "readers")
        yield made


def config(folder: Path, bootstrap: str, login: Login) -> str:
    """A file as Kafka's tools take it."""
    path = folder / "client.properties"
    lines = {"bootstrap.servers": bootstrap, **login.java()}
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return str(path)


def test_a_user_with_rights_reads_and_writes(node: SecuredNode, tmp_path: Path) -> None:
    settings = ["--command-config", config(tmp_path, node.bootstrap, node.login("alice"))]
    done = barnabas("produce", *settings, "private", "-l", stdin=b"hello\n")
    assert done.returncode == 0, done.stderr
    for arguments in ([], ["-g", "readers"]):
        done = barnabas("consume", *settings, "private", *arguments)
        assert [json.loads(line)["value"] for line in done.stdout.splitlines()][-1:] == ["hello"], done.stderr


def test_a_user_with_rights_searches(node: SecuredNode, tmp_path: Path) -> None:
    settings = ["--command-config", config(tmp_path, node.bootstrap, node.login("alice"))]
    done = barnabas("search", *settings, "-t", "private", "-k", "1", "--bounds")
    assert b"Topic private has no index of key" in done.stderr, "the node was asked, and looked"


@pytest.mark.parametrize(
    "verb", [["consume", "private"], ["produce", "private", "-l"], ["search", "-t", "private", "-k", "1"]]
)
def test_a_user_without_rights_reads_which_are_missing(node: SecuredNode, tmp_path: Path, verb: list[str]) -> None:
    settings = ["--command-config", config(tmp_path, node.bootstrap, node.login("bob"))]
    done = barnabas(verb[0], *settings, *verb[1:], stdin=b"hello\n")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"grant the right on it with barnabas acls" in done.stderr


def test_a_wrong_login_is_one_sentence(node: SecuredNode, tmp_path: Path) -> None:
    login = node.login("alice", trusts_node=False) if node.profile.has_tls else node.login("alice", "wrong")
    done = barnabas("consume", "--command-config", config(tmp_path, node.bootstrap, login), "private")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert b"CERTIFICATE_VERIFY_FAILED" in done.stderr or b"refused the login" in done.stderr


@pytest.mark.long
def test_tokens_are_taken_from_the_jaas_text_or_a_file(tmp_path: Path) -> None:
    settings, address = sasl_node(
        {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{PREFIX}.sasl.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;",
            f"{PREFIX}.sasl.server.callback.handler.class": UNSECURED_HANDLER,
        }
    )
    jaas = f'{TOKENS}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice";'
    options = ["-b", address, "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=OAUTHBEARER"]
    with Broker(settings=settings):
        created = ["produce", *options, "-X", f"sasl.jaas.config={jaas}", "t", "-l", "--allow-auto-topic-creation"]
        done = barnabas(*created, stdin=b"hello\n")
        assert done.returncode == 0, done.stderr
        done = barnabas("consume", *options, "-X", f"sasl.jaas.config={jaas}", "t", "-g", "g", "-f", "%v")
        assert done.stdout == b"hello", done.stderr
        (tmp_path / "token").write_text("not.a.token")
        url = f"sasl.oauthbearer.token.endpoint.url=file://{tmp_path}/token"
        done = barnabas("consume", *options, "-X", url, "t")
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"The broker refused the" in done.stderr
