"""What a verb says of a cluster that it cannot talk to: the cause, within seconds."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

import barnabas
from barnabas.admin.client import Client
from barnabas.client.cluster import NeverReached
from tests.cli.running import Verbs
from tests.support.loading import create
from tests.support.raw_client import RawClient


def test_a_missing_listener_and_a_missing_host_are_named() -> None:
    assert "refused" in Verbs("127.0.0.1:1").refused("topics list")
    assert "No broker answers at no.invalid:9092" in Verbs("no.invalid").refused("topics list")


def test_a_listener_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        sentence = Verbs(address, "--timeout", "0.5").refused("topics list")
    assert sentence == f"No broker answers at {address}: timed out; start it, or name another one with --bootstrap."


def test_a_node_of_several_that_is_silent_is_not_waited_for(one_broker: Verbs) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        patch("barnabas.admin.client.Client", wraps=Client) as client,
    ):
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert Verbs(f"{one_broker.bootstrap},{address}").run("topics list").code == 0
        assert client.call_args[0][0]["bootstrap_servers"] == [one_broker.bootstrap]


def test_a_listener_that_is_silent_in_the_handshake_of_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        sentence = Verbs(address, "--timeout", "0.5", "-X", "security.protocol=SSL").refused("topics list")
    assert (sentence, time.monotonic() - started < 10) == (f"The broker at {address} does not answer: timed out.", True)


def test_one_address_of_several_is_enough() -> None:
    with barnabas.Broker() as broker:
        assert Verbs(f"127.0.0.1:1,{broker.bootstrap}").rows("topics list") == []
        assert "failed" in Verbs(broker.bootstrap, "-X", "security.protocol=SSL").refused("topics list")


@pytest.mark.parametrize(
    ("security", "missing"),
    [
        (barnabas.Security(), "does not speak Kafka's protocol in plaintext: if it has TLS, set security.protocol="),
        (barnabas.Security(protocol="SASL_PLAINTEXT"), "wants a login: set security.protocol=SASL_PLAINTEXT"),
    ],
)
def test_settings_of_security_that_are_missing(security: barnabas.Security, missing: str) -> None:
    with barnabas.Broker(security=security) as broker:
        for line in ("topics list", "consume t", "produce t -i /dev/null"):
            assert missing in Verbs(broker.bootstrap).refused(line)


def test_a_certificate_of_an_unknown_authority_is_refused() -> None:
    with (
        barnabas.Broker(security=barnabas.Security()) as broker,
        barnabas.Broker(security=barnabas.Security()) as other,
    ):
        config = str(other.write_client_properties())
        assert "CERTIFICATE_VERIFY_FAILED" in Verbs(broker.bootstrap, "--command-config", config).refused("topics list")


def test_a_certificate_of_the_client_that_is_missing(tmp_path: Path) -> None:
    """With TLS 1.3 the handshake of the client succeeds."""
    with barnabas.Broker(security=barnabas.Security(protocol="SSL")) as broker:
        config = without(broker, tmp_path, "ssl.keystore.")
        for line in ("topics list", "consume t", "produce t -i /dev/null"):
            sentence = Verbs(broker.bootstrap, "--command-config", config).refused(line)
            assert sentence.startswith(f"The TLS connection to {broker.bootstrap} failed ("), sentence
            assert sentence.endswith("and does it want a certificate of the client?"), sentence


def test_a_login_that_is_missing_on_a_listener_with_tls(tmp_path: Path) -> None:
    with barnabas.Broker(security=barnabas.Security()) as broker:
        config = without(broker, tmp_path, "sasl.")
        for line in ("topics list", "consume t", "produce t -i /dev/null"):
            sentence = Verbs(broker.bootstrap, "--command-config", config, "-X", "security.protocol=SSL").refused(line)
            assert "wants a login: set security.protocol=SASL_SSL" in sentence


def without(broker: barnabas.Broker, folder: Path, prefix: str) -> str:
    """A file with the settings of the broker's clients, without some."""
    lines = broker.write_client_properties().read_text().splitlines()
    path = folder / "client.properties"
    path.write_text("\n".join(line for line in lines if not line.startswith(prefix)))
    return str(path)


def test_an_advertised_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(NeverReached, "patience_s", 0.5)
    (tmp_path / "lines").write_text("hello\n")
    with barnabas.Broker(settings={"advertised.listeners": "PLAINTEXT://127.0.0.1:9"}) as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "t")
        for line in (
            "topics list",
            "consume t",
            "consume t -F",
            "consume t -g g",
            f"produce t -l -i {tmp_path}/lines",
            f"produce t -l -i {tmp_path}/lines --transactional-id x",
        ):
            sentence = Verbs(broker.bootstrap).refused(line)
            assert sentence.splitlines()[-1].startswith("Node 1 does not answer at 127.0.0.1:9 ("), sentence
            assert sentence.endswith("if that address is wrong from here, change its advertised.listeners."), sentence


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("topics create x -p 99999999999", "A value does not fit its field in CreateTopics"),
        ("nodes dirs --broker 77", "The cluster has no broker 77 now."),
        ("configs describe broker 77", "The cluster has no broker 77 now."),
        ("topics trim there:0-99999999999 --all", "Topic there has no partition 99999999999: it has 1."),
        ("partitions reassign --file /nope", "/nope cannot be used: No such file or directory."),
    ],
)
def test_values_that_no_cluster_takes(line: str, sentence: str, one_broker: Verbs) -> None:
    assert sentence in one_broker.refused(line)


@pytest.fixture(scope="module")
def one_broker() -> Iterator[Verbs]:
    with barnabas.Broker() as broker:
        verbs = Verbs(broker.bootstrap)
        verbs.rows("topics create there -p 1")
        yield verbs
