"""A certificate authority in a folder: certificates for the nodes and clients of a closed cluster, as PEM files.

FORMAT   ca.pem        the authority's certificate: the truststore of nodes and clients
         ca.key        its private key: needed to issue certificates, on no node
         NAME.pem      private key (PKCS#8, not encrypted) and certificate of a node or client: its keystore
RULES    1. The subject of a certificate is CN=NAME. Nodes are servers and clients, a client is only a client.
         2. An issued certificate is kept if it has the wanted names and does not expire soon; otherwise it is replaced, with
            a new key. So the same call twice changes nothing. A file of another authority is never replaced.
         3. Files with a key have mode 0600 from the first byte on, and appear complete or not at all.
         4. Of several processes that need an authority in one folder, one creates it, on file systems that have locks.
NOT HERE The command line (`certs_command.py`). Why other modules do not import the package `cryptography`:
         docs/decisions/0073.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import ipaddress
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

RENEWAL_DAYS = 30
CA_DAYS = 3650
_CLOCK_SKEW = dt.timedelta(hours=1)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_PRIVATE, _PUBLIC = 0o600, 0o644


class CertificateError(ValueError):
    """A name, a host or a file of the authority is unusable."""


class Issued(NamedTuple):
    """A node's or client's file."""

    path: Path
    subject: str
    """As the broker prints it: the name of the principal."""
    hosts: tuple[str, ...]
    """DNS names and addresses of a node."""
    expires: dt.date
    is_new: bool
    """False: the file had a certificate with these names, and was kept."""


def check_node(name: str, hosts: Sequence[str]) -> None:
    """Check what `CertificateAuthority.issue_node` would get.

    Raises:
        CertificateError: the name or a host is malformed, or there is no host.
    """
    check_client(name)
    if not hosts:
        raise CertificateError(f"node {name} has no host: name its DNS names and addresses")
    for host in hosts:
        _general_name(host)


def check_client(name: str) -> None:
    """Check what `CertificateAuthority.issue_client` would get.

    Raises:
        CertificateError: the name is malformed.
    """
    if _NAME.fullmatch(name) is None or name == "ca":
        raise CertificateError(f"{name!r} cannot be a name: use letters, digits, '.', '_' and '-', not 'ca'")


class CertificateAuthority:
    """The authority of a folder."""

    def __init__(
        self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, *, is_new: bool
    ) -> None:
        self.folder = folder
        self.certificate_path = folder / "ca.pem"
        self.is_new = is_new
        """Whether this object created it."""
        self._certificate = certificate
        self._key = key

    @classmethod
    def open_or_create(cls, folder: Path) -> Self:
        """The authority of the folder; creates both if they do not exist.

        Raises:
            CertificateError: only one of its files exists, or they do not belong together.
            OSError: the folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(folder):
            return cls._open_or_create(folder)

    @classmethod
    def _open_or_create(cls, folder: Path) -> Self:
        certificate_path, key_path = folder / "ca.pem", folder / "ca.key"
        if certificate_path.exists() != key_path.exists():
            missing = key_path if certificate_path.exists() else certificate_path
            raise CertificateError(f"{missing} is missing: restore it, or use another folder for a new authority")
        if certificate_path.exists():
            certificate, key = _read(certificate_path, key_path)
            return cls(folder, certificate, key, is_new=False)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _build_authority(key)
        _write(key_path, _key_pem(key), _PRIVATE)
        _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), _PUBLIC)
        return cls(folder, certificate, key, is_new=True)

    def issue_node(self, name: str, hosts: Sequence[str], days: int = 365) -> Issued:
        """The file of a node that is reachable by these DNS names and addresses.

        Raises:
            CertificateError: the name or a host is malformed, or the existing file is unreadable.
        """
        check_node(name, hosts)
        return self._issue(name, hosts, days)

    def issue_client(self, name: str, days: int = 365) -> Issued:
        """The file of a client.

        Raises:
            CertificateError: the name is malformed, or the existing file is unreadable.
        """
        check_client(name)
        return self._issue(name, (), days)

    def _issue(self, name: str, hosts: Sequence[str], days: int) -> Issued:
        names = [_general_name(host) for host in dict.fromkeys(hosts)]
        path = self.folder / f"{name}.pem"
        certificate = self._find(path, names)
        is_new = certificate is None
        if certificate is None:
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = self._build(name, names, key, days)
            _write(path, _key_pem(key) + certificate.public_bytes(serialization.Encoding.PEM), _PRIVATE)
        return Issued(path, f"CN={name}", tuple(hosts), certificate.not_valid_after_utc.date(), is_new)

    def _find(self, path: Path, names: Sequence[x509.GeneralName]) -> x509.Certificate | None:
        """The certificate of an existing file, if it can be kept (rule 2)."""
        if not path.exists():
            return None
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError:
            raise CertificateError(f"{path} has no certificate: delete the file, or choose another name") from None
        if not self._has_issued(certificate):
            raise CertificateError(f"{path} was issued by another authority: delete the file, or choose another name")
        return certificate if _alternative_names(certificate) == set(names) and not _expires_soon(certificate) else None

    def _has_issued(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, InvalidSignature):
            return False
        return True

    def _build(
        self, name: str, names: Sequence[x509.GeneralName], key: ec.EllipticCurvePrivateKey, days: int
    ) -> x509.Certificate:
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH] + [ExtendedKeyUsageOID.SERVER_AUTH] * bool(names)
        builder = (
            _builder(_common_name(name), self._certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder for a `with` block (rule 4)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build_authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    # Two authorities have different names, so that a certificate of another one is reported as "unknown issuer".
    subject = _common_name(f"Barnabas CA {secrets.token_hex(4)}")
    return (
        _builder(subject, subject, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        if not getattr(address, "scope_id", None):  # a certificate has no zone
            return x509.IPAddress(address)
    except ValueError:
        pass
    if _HOST.fullmatch(host) is None:
        raise CertificateError(f"{host!r} is no DNS name and no address")
    return x509.DNSName(host)


def _expires_soon(certificate: x509.Certificate) -> bool:
    """Whether fewer than RENEWAL_DAYS are left, or less than a third of a short validity."""
    end = certificate.not_valid_after_utc
    period = min(dt.timedelta(days=RENEWAL_DAYS), (end - certificate.not_valid_before_utc) / 3)
    return dt.datetime.now(dt.UTC) > end - period


def _alternative_names(certificate: x509.Certificate) -> set[x509.GeneralName]:
    try:
        return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return set()


def _read(certificate_path: Path, key_path: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"{certificate_path} or {key_path} is unreadable: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise CertificateError(f"{key_path} is not the key of {certificate_path}, or not one that this command made")
    return certificate, key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replaces a file (rule 3)."""
    new = path.with_suffix(f".{secrets.token_hex(4)}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
