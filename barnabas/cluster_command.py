"""`barnabas cluster`: several nodes on this machine, until SIGINT or SIGTERM.

RULES    1. One line on standard output when all nodes are ready: the bootstrap servers. All else goes to standard error.
         2. A node that dies is reported, and not restarted: the reason is in its log. If none is left the command ends.
         3. The exit status is 0 if all nodes were stopped by the signal, otherwise 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from barnabas.cluster import PLAN, Cluster
from barnabas.embedded import BrokerError

_PORT = 9092
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    started = time.monotonic()
    options = _parser().parse_args(arguments)
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        settings = dict(_setting(text) for text in options.settings)
        is_new = not (Path(options.data_dir) / PLAN).exists()
        cluster = Cluster(
            options.nodes,
            options.controllers,
            data_dir=options.data_dir,
            port=_PORT if options.port is None and is_new else options.port or 0,
            host=options.host,
            settings=settings,
        )
        try:
            cluster.start()
            count = len(cluster.nodes)
            sys.stdout.write(
                f"barnabas cluster ready on {cluster.bootstrap} ({count} nodes, {time.monotonic() - started:.2f} s)\n"
            )
            sys.stdout.flush()
            died = _watch(cluster)
        except KeyboardInterrupt:
            died = any(node.exit_code for node in cluster.nodes.values())
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        cluster.stop()
    except BrokerError as error:
        sys.stderr.write(f"barnabas: {error}\n")
        return 1
    return 1 if died else 0


def _watch(cluster: Cluster) -> bool:
    """Reports nodes that die, until none is left (rule 2)."""
    alive = {node.pid: number for number, node in cluster.nodes.items()}
    while alive:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "there is a child process"
        number = alive.pop(ended.si_pid)
        node = cluster.nodes[number]
        code = node.exit_code
        sys.stderr.write(f"barnabas: node {number} ended with {code}; {node.log_path} may say why\n")
    sys.stderr.write("barnabas: no node is left\n")
    return True


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise BrokerError(f"--set {text}: give it as name=value")
    return name.strip(), value.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="barnabas cluster", description="Run several nodes on this machine until SIGINT or SIGTERM."
    )
    add = parser.add_argument
    add("--nodes", type=int, default=3, metavar="N", help="number of brokers [3]")
    add(
        "--controllers",
        type=int,
        default=0,
        metavar="N",
        help="number of additional controller-only nodes [0: all nodes have both roles]",
    )
    add(
        "--data-dir",
        default="barnabas-cluster",
        metavar="DIR",
        help="directory of data and logs [./barnabas-cluster]",
    )
    add("--host", metavar="HOST", help="address to listen on [127.0.0.1, or as before]")
    add("--port", type=int, metavar="PORT", help=f"the first broker's; 0: free ones [{_PORT}, or as before]")
    add(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of all nodes; may be repeated",
    )
    return parser
