"""A certificate authority for tests, made with the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path

PASSWORD = "key-password"
NAMES = "IP:127.0.0.1,DNS:localhost"


class Certificates:
    """A CA and the certificates that it signed, as PEM files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / "ca.pem"
        self._ca_key = folder / "ca.key"
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"),
            *("-subj", "/CN=Test CA", "-keyout", self._ca_key, "-out", self.ca),
        )

    def create(self, name: str, subject: str, *, password: str = "", names: str = NAMES) -> Path:
        """One file with the certificate and its key in PKCS#8; valid for `names`."""
        key, request, certificate = (self._folder / f"{name}.{ending}" for ending in ("key", "csr", "crt"))
        protection = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        self._openssl(
            *("req", "-utf8", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *protection),
            *("-subj", subject, "-keyout", key, "-out", request),
        )
        extensions = self._folder / "extensions"
        extensions.write_text(f"subjectAltName={names}\n")
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._ca_key, "-days", "30"),
            *("-extfile", extensions, "-out", certificate),
        )
        both = self._folder / f"{name}.pem"
        both.write_text(certificate.read_text() + key.read_text())
        return both

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(
            ["openssl", *map(str, arguments)],
            check=True,
            capture_output=True,
            cwd=self._folder,
            timeout=30,
        )
