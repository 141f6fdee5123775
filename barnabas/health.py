"""`barnabas health [HOST:PORT]`: whether a node answers; for containers' health checks.

RULES    1. A node that answers ApiVersions is well: brokers do when they are active, controllers when they listen.
         2. Without an address it is the first listener that KAFKA_LISTENERS names, or clients are told of, else 127.0.0.1:9092.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping

_API_VERSIONS = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"  # version 0, correlation id 1, no client id
_TIMEOUT_S = 4.0


def main(arguments: list[str]) -> int:
    """Run the command; 0 when the node is well."""
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        sys.stderr.write("usage: barnabas health [HOST:PORT]\n")
        return 2
    host, port = address(arguments, os.environ)
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
            connection.sendall(len(_API_VERSIONS).to_bytes(4, "big") + _API_VERSIONS)
            answer = connection.recv(10, socket.MSG_WAITALL)
    except OSError as error:
        sys.stderr.write(f"barnabas: no answer from {host}:{port}: {error}\n")
        return 1
    if answer[4:10] != b"\x00\x00\x00\x01\x00\x00":
        sys.stderr.write(f"barnabas: {host}:{port} does not answer as a broker does\n")
        return 1
    return 0


def address(arguments: list[str], variables: Mapping[str, str]) -> tuple[str, int]:
    """Rule 2."""
    text = arguments[0] if arguments else ""
    if not text:
        listeners = variables.get("KAFKA_LISTENERS") or variables.get("KAFKA_ADVERTISED_LISTENERS") or ""
        found = re.match(r"\s*\w+://([^,]*)", listeners)
        text = found[1] if found is not None else ""
        if "KAFKA_LISTENERS" not in variables:
            text = text[text.rfind(":") :]
    host, _, port = (text or ":9092").rpartition(":")
    host = host.strip("[]")
    return ("127.0.0.1" if host in {"", "0.0.0.0"} else "::1" if host == "::" else host), int(port)  # noqa: S104
