"""`barnabas certs`: what its files are good for, and what a second run changes."""

from __future__ import annotations

import errno
import ssl
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any
from unittest.mock import patch

import pytest

from barnabas.certificates import CertificateAuthority, CertificateError, _build_authority
from barnabas.certs_command import main

NODE = ("--node", "node1=localhost,127.0.0.1,::1")


def run(folder: Path, *arguments: str) -> int:
    return main(["--dir", str(folder), *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def handshake(server_file: Path, client_file: Path, ca: Path, host: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a handshake in memory, where each verifies the other."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.verify_mode = ssl.CERT_REQUIRED
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context, file in ((server_context, server_file), (client_context, client_file)):
        context.load_cert_chain(file)
        context.load_verify_locations(ca)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    unfinished = [client, server]
    while unfinished:
        for end in list(unfinished):
            try:
                end.do_handshake()
                unfinished.remove(end)
            except ssl.SSLWantReadError:
                pass
    return server, client


def subject_of(peer: ssl.SSLObject) -> dict[str, str]:
    """The subject of the certificate that the other side has shown."""
    certificate: Any = peer.getpeercert()
    return dict(part[0] for part in certificate["subject"])


def test_two_commands_at_once_have_one_authority(tmp_path: Path) -> None:
    """Each made its own, and the certificates of one of them were worth nothing."""
    both_create = Barrier(2, timeout=0.5)

    def build(key: Any) -> Any:
        with suppress(BrokenBarrierError):  # with the lock the other one waits
            both_create.wait()
        return _build_authority(key)

    with patch("barnabas.certificates._build_authority", build), ThreadPoolExecutor(2) as threads:
        found = list(threads.map(CertificateAuthority.open_or_create, [tmp_path] * 2))
    assert sorted(authority.is_new for authority in found) == [False, True]
    for name, authority in zip("ab", found, strict=True):
        authority.issue_client(name)
    assert run(tmp_path, "--client", "a", "--client", "b") == 0


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_nodes_and_clients_verify_each_other(tmp_path: Path, host: str) -> None:
    assert run(tmp_path, *NODE, "--client", "app") == 0
    server, client = handshake(tmp_path / "node1.pem", tmp_path / "app.pem", tmp_path / "ca.pem", host)
    assert subject_of(server) == {"commonName": "app"}
    assert subject_of(client) == {"commonName": "node1"}


@pytest.mark.parametrize(
    ("server", "client", "host"),
    [
        pytest.param("app", "app", "localhost", id="a client as server"),
        pytest.param("node1", "app", "example.com", id="another host"),
        pytest.param("node1", "foreign/app", "localhost", id="another authority"),
    ],
)
def test_a_certificate_is_good_for_nothing_else(tmp_path: Path, server: str, client: str, host: str) -> None:
    run(tmp_path, *NODE, "--client", "app")
    run(tmp_path / "foreign", "--client", "app")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / f"{server}.pem", tmp_path / f"{client}.pem", tmp_path / "ca.pem", host)


def test_only_the_owner_can_read_keys(tmp_path: Path) -> None:
    run(tmp_path / "certs", *NODE, "--client", "app")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "certs").iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "node1.pem": 0o600, "app.pem": 0o600}
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700


def test_the_same_command_again_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, *NODE, "--client", "app", "--days", "2")
    before = contents(tmp_path)
    assert capsys.readouterr().out.count(", new\n") == 3
    run(tmp_path, *NODE, "--client", "app")
    assert contents(tmp_path) == before
    assert capsys.readouterr().out.count(", kept\n") == 3


@pytest.mark.parametrize(
    ("error", "exit_code", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1, "barnabas: standard output: No space left on device\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_what_ends_the_command_early_is_no_stack_trace(
    error: BaseException, exit_code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch("barnabas.certs_command._report", side_effect=error):
        assert run(tmp_path, "--client", "app") == exit_code
    assert capsys.readouterr().err == sentence


def test_other_hosts_replace_only_the_node(tmp_path: Path) -> None:
    run(tmp_path, *NODE, "--client", "app")
    before = contents(tmp_path)
    run(tmp_path, "--node", "node1=localhost", "--client", "app")
    after = contents(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"node1.pem"}
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "node1.pem", tmp_path / "app.pem", tmp_path / "ca.pem", "127.0.0.1")


def test_a_certificate_that_expires_soon_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("barnabas.certificates._CLOCK_SKEW", timedelta(days=3))
        CertificateAuthority.open_or_create(tmp_path).issue_client("app", days=1)
    authority = CertificateAuthority.open_or_create(tmp_path)
    assert authority.issue_client("app").is_new
    assert not authority.issue_client("app").is_new


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--node", "node1"), "node node1 has no host"),
        (("--node", "node1=a b"), "'a b' is no DNS name"),
        (("--node", "node1=fe80::1%eth0"), "'fe80::1%eth0' is no DNS name"),
        (("--node", f"node1={'a' * 64}.example"), f"'{'a' * 64}.example' is no DNS name"),
        (("--client", "ca"), "'ca' cannot be a name"),
        (("--client", "../app"), "'../app' cannot be a name"),
        (("--client", "node1", *NODE), "two files would have the same name"),
    ],
)
def test_wrong_names_are_refused_before_a_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    assert run(tmp_path / "certs", "--client", "app", *arguments) == 1
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "certs").exists()


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    run(tmp_path / "other", "--client", "app")
    authority = CertificateAuthority.open_or_create(tmp_path)
    (tmp_path / "app.pem").write_bytes((tmp_path / "other" / "app.pem").read_bytes())
    with pytest.raises(CertificateError, match="issued by another authority"):
        authority.issue_client("app")
    (tmp_path / "ca.key").unlink()
    with pytest.raises(CertificateError, match=r"ca\.key is missing"):
        CertificateAuthority.open_or_create(tmp_path)
    (tmp_path / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(CertificateError, match="is not the key of"):
        CertificateAuthority.open_or_create(tmp_path)


def test_without_cryptography_the_command_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "barnabas.certificates")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert run(tmp_path) == 1
    assert "pip install cryptography" in capsys.readouterr().err
