"""`barnabas health [--advertised | --safe-to-stop] [HOST:PORT]`: whether a node answers, for health checks of containers.

RULES    1. A node that answers ApiVersions is healthy: a broker does when it is active, a controller when it listens.
         2. The default address is the first listener in KAFKA_LISTENERS, in the mounted settings file or in
            KAFKA_ADVERTISED_LISTENERS, else 127.0.0.1:9092.
         3. A malformed address is exit status 2.
         4. A node that does not answer in plaintext is asked through TLS, its certificate is not verified. One that wants a
            certificate of the client answers with an alert, and is healthy. TLS is first if the environment's listener has it,
            since a plaintext question costs a node with TLS a log line.
         5. With --advertised, a node is healthy if this machine also reaches the brokers that its metadata name.
NOT HERE --safe-to-stop (safe_to_stop.py).
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path

from barnabas.client.errors import ClientError
from barnabas.client.plain_requests import API_VERSIONS, ask
from barnabas.mounted_settings import mounted_setting

_USAGE = """\
usage: barnabas health [--advertised] [HOST:PORT]
       barnabas health --safe-to-stop [--wait SECONDS] [HOST:PORT]

  HOST:PORT       a listener for clients, by default this node's; with --safe-to-stop the metrics listener
  --advertised    check too that this machine reaches the addresses that the node gives to its clients
  --safe-to-stop  check that no partition needs the node
  --wait SECONDS  repeat the check for at most SECONDS, until it passes

Exit status 0: the check passed. 1: it failed; the reason is on standard error. 2: the arguments are wrong.
"""
_NO_ERROR = b"\x00\x00"
_TIMEOUT_S = 2.0
"""Of each of two attempts."""
MOUNTED = Path("/mnt/shared/config/server.properties")


def main(arguments: list[str]) -> int:
    """Runs the command; returns 0 if the node is healthy."""
    if arguments[:1] in (["-h"], ["--help"]) or arguments[1:2] in (["-h"], ["--help"]):
        sys.stdout.write(_USAGE)
        return 0
    if arguments[:1] == ["--safe-to-stop"]:
        from barnabas import safe_to_stop

        return safe_to_stop.main(arguments[1:], os.environ, MOUNTED)
    asks_addresses = arguments[:1] == ["--advertised"]
    arguments = arguments[1:] if asks_addresses else arguments
    if len(arguments) > 1:
        sys.stderr.write(_USAGE)
        return 2
    try:
        host, port = address(arguments, os.environ)
    except ValueError as error:
        sys.stderr.write(f"barnabas: {error}\n")
        return 2
    is_tls_first = not arguments and _has_tls(os.environ)
    reason = _find_fault(host, port, is_tls=is_tls_first)
    is_tls = is_tls_first
    if reason is not None:
        is_tls = not is_tls_first
        if _find_fault(host, port, is_tls=is_tls) is not None:
            sys.stderr.write(f"barnabas: {reason}\n")
            return 1
    return _check_advertised(host, port, is_tls=is_tls) if asks_addresses else 0


def _check_advertised(host: str, port: int, *, is_tls: bool) -> int:
    """Rule 5; returns the exit status."""
    from barnabas.advertised import find_unreachable

    try:
        with _connect(host, port, is_tls=is_tls) as connection:
            unreachable = find_unreachable(connection)
    except (OSError, UnicodeError, ClientError) as error:
        unreachable = [f"{host}:{port}: {getattr(error, 'strerror', None) or error}"]
    sys.stderr.writelines(f"barnabas: {sentence}\n" for sentence in unreachable)
    return 1 if unreachable else 0


def _find_fault(host: str, port: int, *, is_tls: bool) -> str | None:
    """Why the node is not healthy; None: it answered."""
    try:
        with _connect(host, port, is_tls=is_tls) as connection:
            answer = ask(connection, API_VERSIONS)
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            return None
        return f"no answer from {host}:{port}: {error}"
    except (OSError, UnicodeError) as error:  # a name that no host can have is a UnicodeError
        return f"no answer from {host}:{port}: {getattr(error, 'strerror', None) or error}"
    return None if answer.startswith(_NO_ERROR) else f"{host}:{port} does not speak Kafka's protocol"


def _connect(host: str, port: int, *, is_tls: bool) -> socket.socket:
    bare = socket.create_connection((host, port), _TIMEOUT_S)
    if not is_tls:
        return bare
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(bare)
    except OSError:
        bare.close()
        raise


def _has_tls(variables: Mapping[str, str]) -> bool:
    """Whether the first listener of the environment is one with TLS, by its name."""
    text = (
        variables.get("KAFKA_LISTENERS")
        or mounted_setting("listeners", MOUNTED)
        or variables.get("KAFKA_ADVERTISED_LISTENERS", "")
    )
    return text.strip().upper().startswith(("SSL://", "SASL_SSL://"))


def address(arguments: list[str], variables: Mapping[str, str], mounted: Path = MOUNTED) -> tuple[str, int]:
    """The address to check (rule 2).

    Raises:
        ValueError: the address is malformed.
    """
    text = arguments[0] if arguments else ""
    if not text:
        listeners = variables.get("KAFKA_LISTENERS") or mounted_setting("listeners", mounted)
        advertised = variables.get("KAFKA_ADVERTISED_LISTENERS", "")
        found = re.match(r"\s*[^\s:/,]+://([^,\s]*)", listeners or advertised)
        text = found[1] if found is not None else ""
        if not listeners:
            text = text[text.rfind(":") :]
    host, _, port = (text or ":9092").rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text} is not of the form HOST:PORT, such as 127.0.0.1:9092")
    host = host.strip("[]")
    return ("127.0.0.1" if host in {"", "0.0.0.0"} else "::1" if host == "::" else host), int(port)  # noqa: S104
