"""`barnabas health --safe-to-stop [--wait SECONDS] [HOST:PORT]`: whether the cluster can do without a node.

RULES    1. The node's metrics listener is asked (docs/metrics.md). The default address is the one in
            KAFKA_BARNABAS_METRICS_LISTENER or in the mounted settings file, else 127.0.0.1:9464.
         2. Exit status 0: no partition needs the node. 1: some do, or there is no answer; the reason is on standard error.
         3. Only a node's own answer counts: another server may answer every path with 200.
         4. With --wait, the node is asked once a second until it is safe, or until the time is over.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from barnabas.mounted_settings import mounted_setting

OPTION = "--safe-to-stop"
WAIT = "--wait"
USAGE = f"usage: barnabas health {OPTION} [{WAIT} SECONDS] [HOST:PORT]\n"
_DEFAULT = "127.0.0.1:9464"
_SETTING = "barnabas.metrics.listener"
_TIMEOUT_S = 5.0
_PAUSE_S = 1.0
_SHOWN = 3
"""How many partitions the reason names."""


def main(arguments: list[str], variables: Mapping[str, str], mounted: Path) -> int:
    """Runs the command; returns its exit status."""
    wait_s = 0.0
    if arguments[:1] == [WAIT]:
        if len(arguments) < 2 or not re.fullmatch("[0-9]{1,9}", arguments[1]):
            sys.stderr.write(USAGE)
            return 2
        wait_s, arguments = float(arguments[1]), arguments[2:]
    found = re.fullmatch(r"(.*):([0-9]{1,5})", arguments[0] if arguments else _own_address(variables, mounted))
    if len(arguments) > 1 or found is None or not 0 < int(found[2]) < 1 << 16:
        sys.stderr.write(USAGE)
        return 2
    host = found[1].strip("[]")
    host = "127.0.0.1" if host in {"", "0.0.0.0"} else "::1" if host == "::" else host  # noqa: S104
    deadline = time.monotonic() + wait_s
    while (reason := find_reason(host, int(found[2]))) is not None:
        if time.monotonic() >= deadline:
            sys.stderr.write(f"barnabas: {reason}\n")
            return 1
        time.sleep(_PAUSE_S)
    return 0


def find_reason(host: str, port: int) -> str | None:
    """Why the node with this metrics listener should not be stopped; None: it is safe."""
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", "/safe-to-stop")
            response = connection.getresponse()
            status, body = response.status, response.read()
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return f"no answer from the metrics listener {host}:{port}: {error} ({_SETTING})"
    if status not in {200, 503}:
        return f"{host}:{port} is not the metrics listener of a node ({_SETTING})"
    try:
        answer = json.loads(body)
        if (status, answer["status"]) == (200, "safe"):
            return None
        count = int(answer["count"])
        names = [f"{partition['topic']}-{partition['partition']}" for partition in answer["partitions"][:_SHOWN]]
    except (ValueError, TypeError, KeyError):
        return f"{host}:{port} answers {status} without the reason of a node: is it a proxy? ({_SETTING})"
    names += ["…"] if count > _SHOWN else []
    return (
        f"{count} {'partition' if count == 1 else 'partitions'} would have fewer in-sync replicas than min.insync.replicas "
        f"without this node, or none: {', '.join(names)}"
    )


def _own_address(variables: Mapping[str, str], mounted: Path) -> str:
    """The address of the metrics listener in the settings (rule 1)."""
    text = variables.get("KAFKA_BARNABAS_METRICS_LISTENER", "")
    if not text:
        words = mounted_setting(_SETTING, mounted).split()
        text = words[0] if words else ""
    return text.rpartition("//")[2] or _DEFAULT
