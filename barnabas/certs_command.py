"""`barnabas certs`: a certificate authority, and certificates of nodes and clients, as PEM files.

RULES    1. One line on standard output for each file: what was created, and what was kept.
         2. All names are checked before the first file is written.
         3. Without the package `cryptography` it prints how to install it, and the exit status is 1.
NOT HERE Certificates and files (`certificates.py`).
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from barnabas.certificates import Issued

_HINT = "certificates need the package cryptography: pip install cryptography"


def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    try:
        exit_code: int = certs.main(arguments, "barnabas certs", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 128 + signal.SIGINT
    return exit_code


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dir", "folder", metavar="DIR", default="certs", show_default=True, help="Folder of the files.")
@click.option(
    "--node",
    "nodes",
    metavar="NAME=HOST[,HOST]...",
    multiple=True,
    help="A node, with its DNS names and addresses; may be repeated.",
)
@click.option("--client", "clients", metavar="NAME", multiple=True, help="A client; may be repeated.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Validity of new files.")
def certs(*, folder: str, nodes: tuple[str, ...], clients: tuple[str, ...], days: int) -> int:
    """Make a certificate authority in DIR (ca.pem, ca.key), and one file NAME.pem with key and certificate per name.

    Files that are valid for 30 days more are kept: the same command renews the others.
    """
    try:
        from barnabas.certificates import CertificateAuthority, CertificateError, check_client, check_node
    except ImportError:
        return _fail(_HINT)
    hosts_of = dict(map(_node, nodes))
    names = [*hosts_of, *clients]
    if len(set(names)) < len(nodes) + len(clients):
        return _fail("two files would have the same name: name each node and client once")
    try:
        for name, hosts in hosts_of.items():
            check_node(name, hosts)
        for client in clients:
            check_client(client)
        authority = CertificateAuthority.open_or_create(Path(folder))
        click.echo(f"{authority.certificate_path}: authority, {'new' if authority.is_new else 'kept'}")
        for name, hosts in hosts_of.items():
            _report(authority.issue_node(name, hosts, days))
        for client in clients:
            _report(authority.issue_client(client, days))
    except CertificateError as error:
        return _fail(str(error))
    except FileExistsError as error:
        return _fail(f"{error.filename} is a file, not a folder: choose another one with --dir")
    except OSError as error:
        return _fail(f"{error.filename or 'standard output'}: {error.strerror}")
    return 0


def _node(text: str) -> tuple[str, list[str]]:
    name, _, hosts = text.partition("=")
    return name.strip(), [host.strip() for host in hosts.split(",") if host.strip()]


def _report(issued: Issued) -> None:
    about = f"node at {', '.join(issued.hosts)}" if issued.hosts else "client"
    click.echo(
        f"{issued.path}: {about}, User:{issued.subject}, until {issued.expires}, {'new' if issued.is_new else 'kept'}"
    )


def _fail(reason: str) -> int:
    sys.stderr.write(f"barnabas: {reason}\n")
    return 1
