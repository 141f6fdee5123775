"""Certificates replaced at run time: answers, and the certificate that clients get then, are those of Apache Kafka.

RULES    1. A case prepares files, alters configs of the broker, and notes the answer, and whether the listener has another
            certificate afterwards. The cases follow each other on one node.
         2. Paths and Java's class names are left out of messages.
         3. A thread applies a change after the response to it. A certificate that Barnabas must replace is awaited for
            long, one that it must keep for a moment.
"""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from barnabas import Broker
from barnabas.cluster import free_ports
from protocol.messages.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from tests.conformance.brokers import KAFKA, RECORDED
from tests.support.certificates import NAMES, Certificates
from tests.support.goldens import as_json, check_golden, golden
from tests.support.kafka import ApacheKafka
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

PREFIX = "listener.name.tls."
KEYSTORE = f"{PREFIX}ssl.keystore.location"
SET, DELETE = 0, 1
BROKER = 4
DIFFERENCES = ["another name, allowed"]
"""Apache Kafka compares with the settings of the certificate that is replaced."""


class Node:
    """A node of either kind with a plaintext and a TLS listener, whose keystore is one file in PEM."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self._is_kafka = kind == KAFKA
        self.certificates = Certificates(folder)
        self.keystore = folder / "keystore.pem"
        self.put("/O=Example/CN=node")
        plain, tls, controller = free_ports(3)
        self.plaintext, self.tls = f"127.0.0.1:{plain}", ("127.0.0.1", tls)
        settings = {
            "listeners": f"PLAINTEXT://{self.plaintext},TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.plaintext},TLS://127.0.0.1:{tls}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT",
            f"{PREFIX}ssl.keystore.type": "PEM",
            KEYSTORE: str(self.keystore),
        }
        if kind == KAFKA:
            settings["num.network.threads"] = "1"  # each has its own certificate
            kafka = ApacheKafka(settings, address=("127.0.0.1", plain))
            kafka.controller_port = controller
            self.broker: Any = kafka
        else:
            self.broker = Broker(settings=settings)

    def put(self, subject: str, names: str = NAMES, path: Path | None = None) -> None:
        """Puts a new certificate at a path."""
        created = self.certificates.create("fresh", subject, names=names)
        shutil.copy(created, path or self.keystore)

    def alter(self, configs: Mapping[str, str | None], name: str = "1") -> Any:
        rows = [
            {"name": key, "config_operation": DELETE if value is None else SET, "value": value}
            for key, value in configs.items()
        ]
        resources = [{"resource_type": BROKER, "resource_name": name, "configs": rows}]
        with RawClient(self.plaintext) as client:
            (answer,) = client.ask(message(IncrementalAlterConfigsRequest, resources=resources), 1).responses
        return [answer.error_code, self.normalised(answer.error_message)]

    def normalised(self, text: str | None) -> str | None:
        """Without the order of alternative names, and without the reason why a file cannot be loaded."""
        text = None if text is None else re.sub(r"SAN=\[.*?\]\]", "SAN=", re.sub(r"(/\w[\w.-]*){2,}", "PATH", text))
        is_about_file = text is not None and "failed" in text and not re.search(r"Exception: (Keystore|Cannot)", text)
        return text.partition("SSLFactory failed")[0] if text is not None and is_about_file else text

    def describe(self) -> Any:
        query = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
        with RawClient(self.plaintext) as client:
            (result,) = client.ask(message(DescribeConfigsRequest, resources=[query], include_synonyms=True), 4).results
        return {
            row.name: [self.normalised(row.value), row.is_sensitive, row.config_source, row.read_only]
            for row in result.configs if row.name.startswith("listener.name.")
        }  # fmt: skip

    def served_later(self, before: bytes, *, is_replaced: bool) -> bytes:
        """The certificate that follows `before`, or that one (rule 3)."""
        patience_s = 2.0 if self._is_kafka else 30.0 if is_replaced else 0.2
        end = time.monotonic() + patience_s

        def replaced_or_late() -> bytes | None:
            now = self.served()
            return now if now != before or time.monotonic() > end else None

        return until(replaced_or_late, "a certificate")

    def served(self) -> bytes:
        """The certificate that a new connection gets."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(self.tls, timeout=10) as sock, context.wrap_socket(sock) as tls:
            certificate = tls.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


def cases(node: Node) -> dict[str, Callable[[], Any]]:
    """In this order."""
    same = {KEYSTORE: str(node.keystore)}
    other, third = node.folder / "other.pem", node.folder / "third.pem"

    def after(*actions: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: [action() for action in actions][-1]

    def put(subject: str, **kwargs: Any) -> Callable[[], Any]:
        return lambda: node.put(subject, **kwargs)

    def alter(configs: Mapping[str, str | None], name: str = "1") -> Callable[[], Any]:
        return lambda: node.alter(configs, name)

    node_name = "/O=Example/CN=node"
    return {
        "the same path, the file unchanged": alter(same),
        "the same path, a new certificate": after(put(node_name), alter(same)),
        "another name": after(put("/O=Example/CN=other"), alter(same)),
        "fewer alternative names": after(put(node_name, names="DNS:localhost"), alter(same)),
        "more alternative names": after(put(node_name, names=f"{NAMES},DNS:more"), alter(same)),
        "a damaged file": after(lambda: node.keystore.write_text("damaged"), alter(same)),
        "no file": after(node.keystore.unlink, alter(same)),
        "another path": after(
            put(node_name, names=f"{NAMES},DNS:more", path=other), alter({KEYSTORE: str(other)})
        ),
        "another path, another name": after(
            put("/O=Example/CN=other", path=third), alter({KEYSTORE: str(third)})
        ),
        "another path, fewer alternative names": after(
            put(node_name, names="DNS:localhost", path=third), alter({KEYSTORE: str(third)})
        ),
        "another path, no file": alter({KEYSTORE: str(node.folder / "missing.pem")}),
        "another path, a certificate only": alter({KEYSTORE: str(node.certificates.ca)}),
        "a truststore where there was none": alter(
            {f"{PREFIX}ssl.truststore.type": "PEM", f"{PREFIX}ssl.truststore.location": str(node.certificates.ca)}
        ),
        "a password for PEM": alter({f"{PREFIX}ssl.keystore.password": "x"}),
        "an empty path": alter({KEYSTORE: ""}),
        "without the prefix": alter({"ssl.keystore.location": str(other)}),
        "for all brokers": alter({KEYSTORE: str(other)}, ""),
        "for all brokers without the prefix": alter({"ssl.keystore.location": str(other)}, ""),
        "an unknown listener": alter({"listener.name.nowhere.ssl.keystore.location": str(other)}),
        "the setting is deleted": after(put(node_name, names=f"{NAMES},DNS:more"), alter({KEYSTORE: None})),
        "names may change": alter({f"{PREFIX}ssl.allow.dn.changes": "true", f"{PREFIX}ssl.allow.san.changes": "true"}),
        "what is described": node.describe,
        "another name, allowed": after(
            put("/O=Example/CN=other", names="DNS:other", path=third), alter({KEYSTORE: str(third)})
        ),
    }  # fmt: skip


@pytest.mark.parametrize("kind", RECORDED)
def test_certificates_are_replaced_as_recorded(kind: str, tmp_path: Path) -> None:
    node = Node(tmp_path, kind)
    answers, recorded = {}, golden("tls_reload")
    with node.broker:
        before = node.served()
        for name, case in cases(node).items():
            is_replaced = name in DIFFERENCES or recorded.get(name, [])[1:] == ["replaced"]
            answer, now = case(), node.served_later(before, is_replaced=is_replaced)
            answers[name] = [answer, "replaced" if now != before else "kept"]
            before = now
    if kind == KAFKA:
        check_golden("tls_reload", answers)
    else:
        ours = as_json(answers)
        found = {name: (ours[name], recorded[name]) for name in ours if ours[name] != recorded[name]}
        assert list(found) == DIFFERENCES, found
