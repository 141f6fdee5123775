"""Planted secrets are in no log, no described configuration, no dump, no metric and no error; files are for their owner.

Searched for: each secret as text and in base64, and the keys that SCRAM derives from a password.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas import Broker
from barnabas.embedded import MAIN, BrokerError
from protocol.errors import ErrorCode
from protocol.messages.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.quotas_scram import DescribeUserScramCredentialsRequest
from tests.support.certificates import PASSWORD as KEY_PASSWORD
from tests.support.certificates import Certificates
from tests.support.config_cases import SET, resource
from tests.support.kafka import free_port
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.sasl import (
    MECHANISMS,
    MODULE,
    SCRAM_USER,
    add_scram_user,
    handshake,
    listener_address,
    plain_token,
    sasl_node,
    scram_final,
    scram_first,
    send_token,
)

PLAIN, SCRAM, STORE = "plain-SeCrEt-1", "scram-SeCrEt-2", "store-SeCrEt-3"
BROKER, LOGGER = 4, 8
JAAS = f'{MODULE}.plain.PlainLoginModule required user_alice="{PLAIN}";'


def scram_keys() -> Iterator[bytes]:
    """Of the user that `add_scram_user` stores."""
    for mechanism, name in (("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")):
        salted = hashlib.pbkdf2_hmac(name, SCRAM.encode(), b"salt" + mechanism.encode(), 4096)
        client_key = hmac.digest(salted, b"Client Key", name)
        yield from (
            salted,
            client_key,
            hashlib.new(name, client_key).digest(),
            hmac.digest(salted, b"Server Key", name),
        )


def forms(keys: Iterable[bytes] = ()) -> dict[str, str]:
    """What must not be found, by its meaning."""
    found = {text: text for text in (PLAIN, SCRAM, STORE, KEY_PASSWORD)}
    found |= {f"{text} in base64": b64encode(text.encode()).decode().rstrip("=") for text in list(found)}
    found |= {f"SCRAM key {number}": b64encode(key).decode() for number, key in enumerate(keys)}
    return found


def assert_no_secret(where: str, text: str) -> None:
    assert text, f"{where} is empty"
    found = [name for name, form in forms(scram_keys()).items() if form in text]
    assert not found, f"{where} shows {found}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, dict[str, str], str]]:
    folder = tmp_path_factory.mktemp("secrets")
    certificates = Certificates(folder / "ca")
    settings, address = sasl_node(
        {
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "barnabas.metrics.listener": f"HTTP://127.0.0.1:{free_port()}",
            "sasl.oauthbearer.client.credentials.client.secret": STORE,
            "listener.name.unused.ssl.keystore.password": STORE,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.create("node", "/CN=node", password=KEY_PASSWORD)),
            "ssl.key.password": KEY_PASSWORD,
        }
    )
    listeners = settings["listeners"] + f",SSL://127.0.0.1:{free_port()}"
    protocols = settings["listener.security.protocol.map"] + ",SSL:SSL"
    settings |= {"listeners": listeners, "advertised.listeners": listeners, "listener.security.protocol.map": protocols}
    with Broker(folder / "data", settings=settings) as broker:
        plaintext = listener_address(settings, "PLAINTEXT")
        set_log_levels(plaintext)
        add_scram_user(plaintext, password=SCRAM)
        log_in_rightly_and_wrongly(address)
        yield broker, settings, plaintext


def set_log_levels(plaintext: str) -> None:
    with RawClient(plaintext) as client:
        change = IncrementalAlterConfigsRequest(resources=[resource(LOGGER, "1", ("root", SET, "DEBUG"))])
        (result,) = client.ask(change, 1).responses
        assert result.error_code == ErrorCode.NONE


def log_in_rightly_and_wrongly(address: str) -> None:
    for text in (PLAIN, SCRAM):
        for token in (plain_token("alice", text), plain_token(text, text), f"{text}\0\0\0\0{text}".encode()):
            with RawClient(address) as client:
                handshake(client, "PLAIN")
                assert send_token(client, token).error_message != PLAIN
        with RawClient(address) as client:
            assert handshake(client, text).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    for mechanism in MECHANISMS[1:]:
        for password in (SCRAM, PLAIN):
            with RawClient(address) as client:
                handshake(client, mechanism)
                first = scram_first(SCRAM_USER)
                challenge = send_token(client, first).auth_bytes
                send_token(client, scram_final(mechanism, first, challenge, password))


def ask(plaintext: str, request: Any, version: int) -> Any:
    with RawClient(plaintext) as client:
        return client.ask(request, version)


def test_the_log_at_debug_has_no_secret(node: tuple[Broker, dict[str, str], str]) -> None:
    log = node[0].log()
    assert "failed authentication" in log
    assert_no_secret("the log", log)


def test_described_configurations_have_no_secret(node: tuple[Broker, dict[str, str], str]) -> None:
    change = ("listener.name.sasl_plaintext.ssl.truststore.password", SET, STORE)
    broker = IncrementalAlterConfigsRequest(resources=[resource(BROKER, "1", change)])
    ask(node[2], broker, 1)
    query = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    described = ask(node[2], message(DescribeConfigsRequest, resources=[query], include_synonyms=True), 4)
    rows = {row.name: row for row in described.results[0].configs}
    assert rows["ssl.key.password"].is_sensitive
    assert_no_secret("DescribeConfigs", repr([(row.name, row.value, row.synonyms) for row in rows.values()]))
    users = ask(node[2], DescribeUserScramCredentialsRequest(users=None), 0)
    assert users.results[0].user == SCRAM_USER
    assert_no_secret("DescribeUserScramCredentials", repr(users.results[0].credential_infos) + repr(users))


def test_the_metrics_page_has_no_secret(node: tuple[Broker, dict[str, str], str]) -> None:
    address = node[1]["barnabas.metrics.listener"].removeprefix("HTTP://")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        assert_no_secret("the metrics page", page.read().decode())


@pytest.mark.parametrize("form", ["--json", "--print-data-log"])
def test_a_dump_of_the_metadata_log_has_no_secret(node: tuple[Broker, dict[str, str], str], form: str) -> None:
    folder = node[0].data_dir / "__cluster_metadata-0"
    files = [str(path) for path in sorted(folder.iterdir()) if path.suffix in (".log", ".checkpoint")]
    command = [sys.executable, "-P", str(MAIN), "dump-log", "--cluster-metadata-decoder", form, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert SCRAM_USER in done.stdout
    assert "[hidden]" in done.stdout
    assert_no_secret("dump-log", done.stdout + done.stderr)


BAD_SETTINGS = {
    "a JAAS text without its end": {"listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS[:-1]},
    "two JAAS modules": {"listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS + JAAS},
    "a JAAS text with an unquoted password": {
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS.replace('"', "").replace(PLAIN, "1" + PLAIN)
    },
    "a key that is no key": {"ssl.keystore.key": STORE, "ssl.keystore.certificate.chain": STORE},
    "a wrong key password": {"ssl.key.password": STORE},
    "a store password with PEM": {"ssl.keystore.password": STORE},
}


@pytest.mark.parametrize("change", BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_errors_at_startup_have_no_secret(node: tuple[Broker, dict[str, str], str], change: dict[str, str]) -> None:
    settings = node[1] | change
    if "ssl.keystore.key" in change:
        del settings["ssl.keystore.location"]
    broker = Broker(settings=settings)
    with pytest.raises(BrokerError, match="The broker did not start") as error:
        broker.start()
    assert_no_secret("the error", str(error.value))
    assert_no_secret("the log", broker.log())
    broker.close()


def test_an_unreadable_line_of_a_settings_file_is_not_shown(tmp_path: Path) -> None:
    """It may be a part of a key whose lines are not joined."""
    file = tmp_path / "server.properties"
    file.write_text(f"ssl.keystore.key=-----BEGIN PRIVATE KEY-----\n{STORE}\n")
    command = [sys.executable, "-P", str(MAIN), "serve", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "line 2 is not of the form name=value" in done.stderr
    assert STORE not in done.stderr


def test_files_are_for_their_owner_and_group_and_the_metadata_log_for_its_owner(
    node: tuple[Broker, dict[str, str], str],
) -> None:
    data = node[0].data_dir
    private = {data / "bootstrap.checkpoint", data / "__cluster_metadata-0"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600, 0o700}
    for folder, _, names in os.walk(data):
        for path in [Path(folder), *(Path(folder, name) for name in names)]:
            assert not stat.S_IMODE(path.stat().st_mode) & 0o027, f"others can use {path}"


def test_the_secrets_of_this_test_would_be_found() -> None:
    shown = json.dumps({"storedKey": b64encode(next(scram_keys())).decode()})
    with pytest.raises(AssertionError, match="SCRAM key 0"):
        assert_no_secret("a dump", shown)
