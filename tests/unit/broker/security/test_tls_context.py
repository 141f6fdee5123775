"""What a TLS listener builds from its settings (broker/security/tls_context.py)."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.config.broker_config import ConfigError
from broker.config.ssl_configs import ssl_settings
from broker.security.tls_context import ListenerTls
from tests.support.certificates import PASSWORD, Certificates

TLS_1_3 = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"
TLS_1_2 = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
PEM = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
PROTOCOLS, SUITES = "ssl.enabled.protocols", "ssl.cipher.suites"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def keystore(certificates: Certificates) -> dict[str, str]:
    return {"ssl.keystore.location": str(certificates.create("node", "/CN=node"))}


def build(settings: Mapping[str, str]) -> ListenerTls:
    return ListenerTls("OUT", ssl_settings({**PEM, **settings}, "OUT"))


def negotiated(server: ssl.SSLContext, ca: Path, version: ssl.TLSVersion) -> tuple[str, str]:
    """The protocol and the suite of a client with one protocol; raises ssl.SSLError."""
    client = ssl.create_default_context(cafile=ca)
    client.minimum_version = client.maximum_version = version
    suite = handshake(server, client, "localhost").cipher()
    assert suite is not None
    return suite[1], suite[0]


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """The server's end of a connection; raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = server.wrap_bio(to_server, to_client, server_side=True)
    far = client.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(4):
        for end in (far, near):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return near


@pytest.mark.parametrize(
    ("settings", "suite_1_2", "suite_1_3"),
    [
        ({}, "ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_AES_256_GCM_SHA384"),
        ({PROTOCOLS: "TLSv1.2"}, "ECDHE-ECDSA-AES256-GCM-SHA384", None),
        ({PROTOCOLS: "TLSv1.3"}, None, "TLS_AES_256_GCM_SHA384"),
        ({SUITES: TLS_1_2}, "ECDHE-ECDSA-AES128-GCM-SHA256", None),
        ({SUITES: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"}, "ECDHE-ECDSA-CHACHA20-POLY1305", None),
        ({SUITES: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384"}, "ECDHE-ECDSA-AES256-SHA384", None),
        ({SUITES: TLS_1_3}, None, "TLS_AES_256_GCM_SHA384"),
        ({SUITES: f"{TLS_1_3}, {TLS_1_2}"}, "ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_AES_256_GCM_SHA384"),
    ],
)
def test_only_the_protocols_and_suites_of_the_settings_are_served(
    keystore: dict[str, str], certificates: Certificates, settings: dict[str, str], suite_1_2: str, suite_1_3: str
) -> None:
    context = build({**keystore, **settings}).context
    for version, suite in ((ssl.TLSVersion.TLSv1_2, suite_1_2), (ssl.TLSVersion.TLSv1_3, suite_1_3)):
        if suite is None:
            with pytest.raises(ssl.SSLError):
                negotiated(context, certificates.ca, version)
        else:
            assert negotiated(context, certificates.ca, version)[1] == suite


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({SUITES: "TLS_AES_128_GCM_SHA256"}, "ssl.cipher.suites cannot exclude single suites of TLS 1.3"),
        ({SUITES: TLS_1_2, PROTOCOLS: "TLSv1.3"}, "no suite of ssl.cipher.suites belongs to ssl.enabled.protocols"),
        ({SUITES: "TLS_MADE_UP"}, "OpenSSL has no cipher suite TLS_MADE_UP"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "ssl.principal.mapping.rules: Invalid rule: RULE:x"),
        ({"ssl.keystore.location": "/missing"}, "ssl.keystore.location: cannot read /missing: No such file"),
        ({"ssl.keystore.location": __file__}, "ssl.keystore.location has no usable key and certificate"),
        (
            {"ssl.client.auth": "required", "ssl.truststore.location": "/missing"},
            "ssl.truststore.location: cannot read",
        ),
        (
            {"ssl.client.auth": "required", "ssl.truststore.certificates": "x"},
            "certificates has no certificates in PEM",
        ),
    ],
)
def test_unusable_settings_are_refused(keystore: dict[str, str], settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        build({**keystore, **settings})
    assert words in str(refusal.value)


def test_only_regular_files_of_bounded_size_are_read(keystore: dict[str, str], tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    for path, words in (
        (str(pipe), "pipe is not a regular file"),
        ("/dev/zero", "/dev/zero is not a regular file"),
        (str(tmp_path), "cannot read .*: Is a directory"),
        (str(large), "large has more than 16777216 bytes"),
    ):
        for setting in ("ssl.keystore.location", "ssl.truststore.location"):
            with pytest.raises(ConfigError, match=f"{setting}: .*{words}"):
                build({**keystore, setting: path})


def test_a_certificate_with_a_character_that_is_not_ascii_is_refused(
    certificates: Certificates, keystore: dict[str, str], tmp_path: Path
) -> None:
    text = certificates.ca.read_text()
    damaged = tmp_path / "ca.pem"
    damaged.write_text(text[:100] + "\u00a0" + text[100:], encoding="utf-8")  # as copied from a web page
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location has no usable certificates"):
        build({**keystore, "ssl.truststore.location": str(damaged)})


def test_an_encrypted_key_needs_its_password(certificates: Certificates) -> None:
    location = {"ssl.keystore.location": str(certificates.create("locked", "/CN=node", password=PASSWORD))}
    assert build({**location, "ssl.key.password": PASSWORD}).context
    for password in ("", "wrong"):
        with pytest.raises(ConfigError, match="no usable key"):
            build({**location, "ssl.key.password": password})


@pytest.mark.parametrize("separator", ["\n", "\\n", " "])
def test_a_key_in_the_settings_needs_no_file(certificates: Certificates, separator: str) -> None:
    certificate, key = certificates.create("inline", "/CN=node").read_text().split("-----BEGIN PRIVATE", 1)
    texts = {"ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": f"-----BEGIN PRIVATE{key}"}
    tls = build({name: text.replace("\n", separator) for name, text in texts.items()})
    assert negotiated(tls.context, certificates.ca, ssl.TLSVersion.TLSv1_3)[0] == "TLSv1.3"


@pytest.mark.parametrize(
    ("verification", "host", "is_refused"),
    [("https", "localhost", False), ("https", "other", True), ("", "other", False)],
)
def test_a_node_verifies_the_host_of_another_one(
    keystore: dict[str, str], certificates: Certificates, verification: str, host: str, *, is_refused: bool
) -> None:
    settings = {"ssl.truststore.location": str(certificates.ca), **keystore}
    client = build({**settings, "ssl.endpoint.identification.algorithm": verification}).client
    server = build({**settings, "ssl.client.auth": "required"}).context
    if is_refused:
        with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
            handshake(server, client, host)
    else:
        certificate = handshake(server, client, host).getpeercert()
        assert certificate is not None
        assert certificate["subject"] == ((("commonName", "node"),),)


def test_a_client_without_a_certificate_is_anonymous(keystore: dict[str, str]) -> None:
    assert build(keystore).principal(None) == "User:ANONYMOUS"
