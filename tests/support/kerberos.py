"""A Kerberos realm on this machine: a KDC of MIT Kerberos, principals and their key files.

RULES    1. Programs of the realm get `environment`: the library finds the KDC by KRB5_CONFIG.
         2. A test that needs it is skipped with the reason if the KDC or the package gssapi is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from tests.support.kafka import free_port
from tests.support.waiting import until

REALM: Final = "BARNABAS.TEST"
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local")
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"


def why_no_realm() -> str | None:
    """Why there can be no realm here; None if there can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"no {missing[0]}: install MIT Kerberos (Debian: krb5-kdc, krb5-admin-server)"
    return None if find_spec("gssapi") is not None else "no package gssapi: install barnabas[kerberos]"


class Realm:
    """The KDC, during a `with` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config = folder / "krb5.conf"
        self.environment = {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder / 'tickets'}",
            "KRB5RCACHEDIR": str(folder),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        port = free_port()
        self.config.write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_canonicalize_hostname = false\nrdns = false\n"
            f"udp_preference_limit = 1\n[realms]\n{REALM} = {{\nkdc = 127.0.0.1:{port}\n}}\n"
        )
        (self._folder / "kdc.conf").write_text(
            f"[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n[realms]\n{REALM} = {{\n"
            f"database_name = {self._folder / 'principal'}\nkey_stash_file = {self._folder / 'stash'}\n"
            f"acl_file = {self._folder / 'acl'}\n}}\n[logging]\nkdc = FILE:{self._folder / 'kdc.log'}\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master-password")
        self._process = subprocess.Popen(
            [self._program("krb5kdc"), "-n", "-r", REALM], env=self._environment(), stderr=subprocess.DEVNULL
        )
        until(lambda: "commencing operation" in self._log(), "the KDC listens")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(10)

    def key(self, principal: str) -> Path:
        """A new principal; the file with its key."""
        path = self._folder / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}@{REALM}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}@{REALM}")
        return path

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._program(program), *arguments], env=self._environment(), check=True, capture_output=True, timeout=30
        )

    @staticmethod
    def _program(name: str) -> str:
        return str(shutil.which(name, path=_PATH))

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def _log(self) -> str:
        path = self._folder / "kdc.log"
        return path.read_text() if path.exists() else ""
