"""`barnabas health [HOST:PORT]`: whether a node answers, for health checks of containers.

RULES    1. A node that answers ApiVersions is healthy: a broker does when it is active, a controller when it listens.
         2. The default address is the first listener in KAFKA_LISTENERS, in the mounted settings file or in
            KAFKA_ADVERTISED_LISTENERS, else 127.0.0.1:9092.
         3. A malformed address is exit status 2.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

_API_VERSIONS = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"  # version 0, correlation id 1, no client id
_TIMEOUT_S = 4.0
MOUNTED = Path("/mnt/shared/config/server.properties")


def main(arguments: list[str]) -> int:
    """Runs the command; returns 0 if the node is healthy."""
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        sys.stderr.write("usage: barnabas health [HOST:PORT]\n")
        return 2
    try:
        host, port = address(arguments, os.environ)
    except ValueError as error:
        sys.stderr.write(f"barnabas: {error}\n")
        return 2
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
            connection.sendall(len(_API_VERSIONS).to_bytes(4, "big") + _API_VERSIONS)
            answer = connection.recv(10, socket.MSG_WAITALL)
    except OSError as error:
        sys.stderr.write(f"barnabas: no answer from {host}:{port}: {error}\n")
        return 1
    if answer[4:10] != b"\x00\x00\x00\x01\x00\x00":
        sys.stderr.write(f"barnabas: {host}:{port} does not speak Kafka's protocol\n")
        return 1
    return 0


def address(arguments: list[str], variables: Mapping[str, str], mounted: Path = MOUNTED) -> tuple[str, int]:
    """The address to check (rule 2).

    Raises:
        ValueError: the address is malformed.
    """
    text = arguments[0] if arguments else ""
    if not text:
        listeners = variables.get("KAFKA_LISTENERS") or _listeners(mounted)
        advertised = variables.get("KAFKA_ADVERTISED_LISTENERS", "")
        found = re.match(r"\s*\w+://([^,\s]*)", listeners or advertised)
        text = found[1] if found is not None else ""
        if not listeners:
            text = text[text.rfind(":") :]
    host, _, port = (text or ":9092").rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text} is not of the form HOST:PORT, such as 127.0.0.1:9092")
    host = host.strip("[]")
    return ("127.0.0.1" if host in {"", "0.0.0.0"} else "::1" if host == "::" else host), int(port)  # noqa: S104


def _listeners(file: Path) -> str:
    if not file.exists():
        return ""
    found = re.search(r"^\s*listeners\s*[=:]\s*(.*)", file.read_text(), re.MULTILINE)
    return "" if found is None else found[1]
