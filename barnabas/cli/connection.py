"""Which cluster a verb works with: the connection options that all verbs share.

RULES    1. --bootstrap overrides BARNABAS_BOOTSTRAP, which overrides 127.0.0.1:9092. A `bootstrap.servers` among the settings
            counts before BARNABAS_BOOTSTRAP.
         2. Settings have the names of the Java clients. -X overrides --command-config.
         3. A file may have all settings of Java's clients, so that it serves Kafka's tools too; those without effect here are
            ignored. -X refuses them: a misspelled name would connect otherwise than meant.
NOT HERE What the settings mean (`client/client_settings.py`), what is asked of the cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.number_options import whole_number

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092
_OTHER_SETTINGS = {"bootstrap.servers", "client.id"}


@dataclass(frozen=True)
class Connection:
    """The address of a cluster, and the settings of TLS and SASL."""

    bootstrap: str
    """HOST:PORT[,HOST:PORT...]."""
    settings: dict[str, str]
    """The settings by their Java names, without the address."""

    def addresses(self) -> list[tuple[str, int]]:
        """The host and port of each bootstrap node. Raises click.UsageError."""
        found = [_address(text.strip()) for text in self.bootstrap.split(",") if text.strip()]
        if not found:
            raise click.UsageError("--bootstrap names no node.")
        return found

    def check(self, timeout_s: float | None = None) -> str:
        """Returns the address of a node that answers. Raises ClientError: one sentence with the cause if none does."""
        from barnabas.client.client_settings import security_of
        from barnabas.client.first_contact import TIMEOUT_S, check_answers

        timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        return _text(check_answers(self.addresses(), security_of(self.settings), timeout_s))

    def cluster(self) -> Cluster:
        """The client for records. Raises ClientError as `check`."""
        from barnabas.client.cluster import Cluster

        self.check()
        return Cluster(self.addresses(), self.settings)

    def for_kafka_python(self) -> dict[str, Any]:
        """The keyword arguments of kafka-python's clients. Raises ClientError."""
        from barnabas.client.client_settings import for_kafka_python
        from barnabas.client.wire import CLIENT_ID

        bootstrap = [_text(address) for address in self.addresses()]
        client_id = self.settings.get("client.id", CLIENT_ID)
        return {"bootstrap_servers": bootstrap, "client_id": client_id, **for_kafka_python(self.settings)}


def connection_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a verb with -b, --command-config and -X; the verb gets a `Connection` as `connection`."""

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"Nodes of the cluster, separated by commas.  [default: $BARNABAS_BOOTSTRAP, else {DEFAULT_BOOTSTRAP}]",
    )
    @click.option(
        "--command-config", metavar="FILE", help="Settings of TLS and SASL, in a file as Kafka's tools take it."
    )
    @click.option("-X", "properties", metavar="NAME=VALUE", multiple=True, help="One such setting; may be repeated.")
    @wraps(verb)
    def with_connection(
        *args: Any, bootstrap: str | None, command_config: str | None, properties: tuple[str, ...], **kwargs: Any
    ) -> Any:
        return verb(*args, connection=connect_to(bootstrap, command_config, properties), **kwargs)

    return with_connection


def connect_to(bootstrap: str | None, command_config: str | None, properties: tuple[str, ...]) -> Connection:
    """Returns the connection of these options. Raises ClientError."""
    settings: dict[str, str] = {}
    if command_config is not None or properties:
        from barnabas.client.client_settings import is_security_setting, parse_pairs, read_properties

        from_file = {} if command_config is None else read_properties(Path(command_config))
        given = parse_pairs("-X", properties)
        for name in given:
            if name not in _OTHER_SETTINGS and not is_security_setting(name):
                raise click.UsageError(f"-X {name} has no effect: docs/cli.md lists the settings.")
        settings = {**from_file, **given}
    in_settings = settings.pop("bootstrap.servers", None)
    if bootstrap == "":
        raise click.UsageError("--bootstrap is empty.")
    found = bootstrap or in_settings or os.environ.get("BARNABAS_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    return Connection(found, settings)


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise click.UsageError(f"--bootstrap takes an IPv6 address in brackets, as [::1]:9092, and {text!r} has none.")
    if not host or not 0 < (whole_number(port) or 0) < 1 << 16:
        raise click.UsageError(f"--bootstrap takes HOST:PORT[,HOST:PORT...], not {text!r}.")
    return host.strip("[]"), int(port)
