"""`barnabas cluster`: several nodes on this machine, until SIGINT, SIGTERM or SIGHUP.

RULES    1. One line on standard output when all nodes are ready: the bootstrap servers. All else goes to standard error.
         2. A node that dies is reported, and not restarted: the reason is in its log. If none is left the command ends.
            Other children, such as those of the shell that became this command, are only reaped.
         3. The exit status is 0 if all nodes were stopped by the signal, 2 for an option that click refuses, otherwise 1.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NoReturn

import click

from barnabas.cluster import PLAN, Cluster
from barnabas.embedded import BrokerError

_PORT = 9092
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    try:
        exit_code: int = cluster.main(arguments, "barnabas cluster", standalone_mode=False)
    except BrokerError as error:
        click.echo(f"barnabas: {error}", err=True)
        return 1
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:  # a signal before the first node
        return 0
    return exit_code


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", type=int, default=3, show_default=True, help="Number of brokers.")
@click.option(
    "--controllers", type=int, default=0, help="Number of controller-only nodes [0: all nodes have both roles]."
)
@click.option(
    "--data-dir", metavar="DIR", default="barnabas-cluster", show_default=True, help="Directory of data and logs."
)
@click.option("--host", metavar="HOST", help="Address to listen on [127.0.0.1, or as before].")
@click.option("--port", type=int, help=f"Port of the first broker; 0: free ports [{_PORT}, or as before].")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of all nodes; may be repeated.")
def cluster(
    *, nodes: int, controllers: int, data_dir: str, host: str | None, port: int | None, settings: tuple[str, ...]
) -> int:
    """Run several nodes on this machine until SIGINT, SIGTERM or SIGHUP.

    Exit status: 0 stopped by a signal, 1 the start or a node failed, also because of a wrong value, 2 the arguments
    are wrong.
    """
    started = time.monotonic()
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores it
            signal.signal(number, _interrupt)
    if port is None:
        port = 0 if (Path(data_dir) / PLAN).exists() else _PORT
    given = dict(map(_setting, settings))
    found = Cluster(nodes, controllers, data_dir=data_dir, port=port, host=host, settings=given)
    try:
        found.start()
        _report_ready(found, time.monotonic() - started)
        died = _watch(found)
    except KeyboardInterrupt:
        died = any(node.exit_code for node in found.nodes.values())
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    found.stop()
    return 1 if died else 0


def _report_ready(found: Cluster, seconds: float) -> None:
    try:
        click.echo(f"barnabas cluster ready on {found.bootstrap} ({len(found.nodes)} nodes, {seconds:.2f} s)")
    except OSError as error:
        found.stop()
        raise BrokerError(f"standard output: {error.strerror}") from None


def _watch(found: Cluster) -> bool:
    """Reports nodes that die, until none is left (rule 2)."""
    alive = {node.pid: number for number, node in found.nodes.items()}
    while alive:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "there is a child process"
        number = alive.pop(ended.si_pid, None)
        if number is None:
            os.waitpid(ended.si_pid, 0)
            continue
        node = found.nodes[number]
        click.echo(f"barnabas: node {number} ended with {node.exit_code}; {node.log_path} may say why", err=True)
    click.echo("barnabas: no node is left", err=True)
    return True


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise BrokerError(f"--set {text}: give it as name=value")
    return name.strip(), value.strip()
