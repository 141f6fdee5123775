"""Key and trust stores of the JDK's keytool and of OpenSSL serve TLS (broker/security/key_stores.py, jks.py, pkcs12.py)."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from broker.config.broker_config import ConfigError
from broker.config.ssl_configs import ssl_settings
from broker.security.key_stores import keystore_pem, truststore_pem
from broker.security.tls_context import ListenerTls
from tests.support.certificates import Certificates
from tests.unit.broker.security.test_tls_context import handshake

STORE, KEY = "store-password", "key-password"

pytestmark = pytest.mark.skipif(shutil.which("keytool") is None, reason="there is no JDK with keytool")


class Stores:
    """One key with its chain, and the authority's certificate, in each format."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = Certificates(folder)
        self.pem = self.certificates.create("node", "/CN=node")
        source = folder / "openssl.store"
        run("openssl", "pkcs12", "-export", "-in", self.pem, "-certfile", self.certificates.ca, "-name", "node",
            "-out", source, "-passout", f"pass:{STORE}")  # fmt: skip
        for kind in ("JKS", "PKCS12", "JCEKS"):
            run("keytool", "-importkeystore", "-srckeystore", source, "-srcstorepass", STORE, "-srcstoretype", "PKCS12",
                "-destkeystore", self.path(f"{kind}.store"), "-deststoretype", kind, "-deststorepass", STORE,
                "-destkeypass", STORE if kind == "PKCS12" else KEY)  # fmt: skip
        for kind in ("JKS", "PKCS12"):
            run("keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", self.certificates.ca, "-storetype", kind,
                "-keystore", self.path(f"{kind}.trust"), "-storepass", STORE)  # fmt: skip

    def path(self, name: str) -> Path:
        return self.folder / name

    def settings(self, keystore: str, truststore: str, declared: str = "JKS") -> dict[str, str]:
        return {
            "ssl.keystore.location": str(self.path(keystore)), "ssl.keystore.type": declared,
            "ssl.keystore.password": STORE, "ssl.key.password": KEY if keystore == "JKS.store" else "",
            "ssl.truststore.location": str(self.path(truststore)), "ssl.truststore.type": declared,
            "ssl.truststore.password": STORE, "ssl.client.auth": "required",
        }  # fmt: skip


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


def build(settings: dict[str, str]) -> ListenerTls:
    return ListenerTls("OUT", ssl_settings(settings, "OUT"))


@pytest.mark.parametrize("declared", ["JKS", "PKCS12"])
@pytest.mark.parametrize("truststore", ["JKS.trust", "PKCS12.trust"])
@pytest.mark.parametrize("keystore", ["JKS.store", "PKCS12.store", "openssl.store"])
def test_a_store_serves_whatever_type_is_declared(
    stores: Stores, keystore: str, truststore: str, declared: str
) -> None:
    tls = build(stores.settings(keystore, truststore, declared))
    client = ssl.create_default_context(cafile=stores.certificates.ca)
    client.load_cert_chain(stores.pem)
    certificate = handshake(tls.context, client, "localhost").getpeercert(binary_form=True)
    assert certificate is not None
    assert tls.principal(certificate) == "User:CN=node"
    assert [ssl.DER_cert_to_PEM_cert(each) for each in tls.stores.chain()] == [
        stores.path("node.crt").read_text(),
        stores.certificates.ca.read_text(),
    ]


@pytest.mark.parametrize("truststore", ["JKS.trust", "PKCS12.trust"])
def test_a_truststore_trusts_nobody_else(stores: Stores, truststore: str, tmp_path: Path) -> None:
    tls = build(stores.settings("JKS.store", truststore))
    client = ssl.create_default_context(cafile=stores.certificates.ca)
    client.load_cert_chain(Certificates(tmp_path).create("stranger", "/CN=node"))
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        handshake(tls.context, client, "localhost")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ssl.keystore.password": "hunter2"}, "JKS.store: the store was tampered with, or its password is wrong"),
        ({"ssl.key.password": "hunter2"}, "the password of its key is wrong"),
        ({"ssl.keystore.location": "PKCS12.store", "ssl.keystore.password": "hunter2"}, "Invalid password or PKCS12 data"),
        ({"ssl.keystore.location": "PKCS12.store", "ssl.key.password": "hunter2"}, "has the password of the store: remove"),
        ({"ssl.keystore.location": "JCEKS.store"}, "it is a JCEKS store: convert it with keytool -importkeystore"),
        ({"ssl.keystore.location": "JKS.trust"}, "it has 0 private keys instead of one"),
        ({"ssl.keystore.location": "PKCS12.trust", "ssl.key.password": ""}, "it has no private key with a certificate"),
        ({"ssl.keystore.location": "node.pem"}, "node.pem is in PEM, but ssl.keystore.type is JKS"),
        ({"ssl.keystore.type": "PEM"}, "JKS.store is not in PEM, but ssl.keystore.type is PEM"),
        ({"ssl.truststore.password": "hunter2"}, "or its password is wrong"),
        ({"ssl.truststore.location": "PKCS12.store"}, "it has a private key too: store the trusted certificates in a file of"),
    ],
)  # fmt: skip
def test_an_unusable_store_is_refused(stores: Stores, changed: dict[str, str], words: str) -> None:
    given = {name: str(stores.path(text)) if name.endswith("location") else text for name, text in changed.items()}
    with pytest.raises(ConfigError) as refusal:
        build(stores.settings("JKS.store", "JKS.trust") | given)
    assert words in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_jks_trusts_the_own_certificate_of_a_key_and_not_its_issuer(stores: Stores) -> None:
    own = truststore_pem(stores.path("JKS.store").read_bytes(), STORE)
    assert own == stores.path("node.crt").read_text()


def test_a_truststore_without_a_password_is_read_unchecked(stores: Stores) -> None:
    assert truststore_pem(stores.path("JKS.trust").read_bytes(), "") == stores.certificates.ca.read_text()


@pytest.mark.parametrize("name", ["JKS.store", "PKCS12.store"])
def test_a_damaged_store_is_refused(stores: Stores, name: str) -> None:
    data = stores.path(name).read_bytes()
    key = KEY if name == "JKS.store" else ""
    assert "PRIVATE KEY" in keystore_pem(data, STORE, key)
    for position in range(4, len(data), 23):
        changed = bytes([*data[:position], data[position] ^ 0x55, *data[position + 1 :]])
        for damaged in (data[:position], changed):
            with pytest.raises(ValueError):  # the sentence depends on the position
                keystore_pem(damaged, STORE, key)


def test_pkcs12_without_its_package_is_refused_in_a_sentence(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("broker.security.pkcs12", raising=False)
    monkeypatch.delitem(sys.modules, "broker.security.pkcs12", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization.pkcs12", None)
    with pytest.raises(ConfigError, match=r"pip install cryptography, or convert the file to PEM"):
        build(stores.settings("PKCS12.store", "JKS.trust"))
    build(stores.settings("JKS.store", "JKS.trust"))
