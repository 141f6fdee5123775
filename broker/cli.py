"""The daemon's verbs on the command line (design section 4).

RULES    1. What goes wrong before the broker serves is one sentence on standard error and exit status 1.
         2. Standard output carries the ready line and nothing else; logs go to standard error.
NOT HERE Verbs that need no daemon (`barnabas/`), what a broker is made of (`server.py`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

import click

from broker.config.broker_config import BrokerConfig, ConfigError, load_config
from broker.node.format_options import founding

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Verbs(click.Group):
    """The verbs; those of the tools are imported when wanted, so that the daemon's start does not pay for them."""

    _TOOLS = ("doctor", "dump-log")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return sorted([*super().list_commands(ctx), *self._TOOLS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them."""
        if cmd_name not in self._TOOLS:
            return super().get_command(ctx, cmd_name)
        from broker.tools import commands  # noqa: PLC0415

        return {"doctor": commands.doctor, "dump-log": commands.dump_log}[cmd_name]


_FOUNDING: Final = (
    click.option("-t", "--cluster-id", metavar="ID", help="The cluster that empty directories are formatted for."),
    click.option("-s", "--standalone", is_flag=True, help="Begin the quorum with this controller alone."),
    click.option(
        "-I",
        "--initial-controllers",
        metavar="ID@HOST:PORT:DIRECTORY,...",
        help="Begin the quorum with these controllers; all nodes need the same list.",
    ),
    click.option("-N", "--no-initial-controllers", is_flag=True, help="The quorum begins on other nodes."),
    click.option("-r", "--release-version", "release", metavar="VERSION", help="The levels of a release of Kafka."),
    click.option(
        "-f", "--feature", "features", metavar="FEATURE=LEVEL", multiple=True, help="A level; may be repeated."
    ),
)


def _founding_options(command: _Command) -> _Command:
    """How empty directories are formatted, in the words of kafka-storage format."""
    for option in reversed(_FOUNDING):
        command = option(command)
    return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
def daemon() -> None:
    """The daemon of Barnabas, a Kafka-protocol broker."""


@daemon.command()
@click.option("--config", "config_file", metavar="FILE", help="Settings file with Kafka's names.")
@click.option("--data-dir", metavar="DIR", help="Where the logs are kept [default: ./barnabas-data].")
@click.option(
    "--listen", metavar="HOST:PORT", help="Where clients connect [default: 127.0.0.1:9092]; port 0 picks one."
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="One more setting; may be repeated.")
@click.option("--environment", "is_contained", is_flag=True, help="Settings from KAFKA_... too, as in a container.")
@_founding_options
def serve(
    config_file: str | None,
    data_dir: str | None,
    listen: str | None,
    settings: tuple[str, ...],
    *,
    is_contained: bool,
    **options: Any,
) -> None:
    """Run one node until SIGTERM or SIGINT. Empty directories are formatted first."""
    from broker.server import StartError, run  # noqa: PLC0415  # `--help` need not load the daemon

    _log_to_standard_error()
    try:
        if is_contained:
            config, options["cluster_id"] = _contained(config_file, data_dir, settings, listen, options["cluster_id"])
        else:
            config = load_config(config_file, _overrides(config_file, data_dir, settings), listen)
        run(config, founding(**options))
    except (ConfigError, StartError) as error:
        click.echo(f"barnabas: {error}", err=True)
        sys.exit(1)


@daemon.command("format")
@click.option("-c", "--config", "config_file", metavar="FILE", help="Settings file with Kafka's names.")
@click.option("--data-dir", metavar="DIR", help="Where the logs are kept [default: ./barnabas-data].")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="One more setting; may be repeated.")
@_founding_options
@click.option("-g", "--ignore-formatted", is_flag=True, help="Leave formatted directories alone.")
def format_(
    config_file: str | None, data_dir: str | None, settings: tuple[str, ...], *, ignore_formatted: bool, **options: Any
) -> None:
    """Make the directories of a node ready, as kafka-storage does. `serve` does the same by itself."""
    from broker.tools.formatting import format_node  # noqa: PLC0415
    from replication.metadata_log.formatting import UnusableDirectory  # noqa: PLC0415
    from storage.io.disk import StorageError  # noqa: PLC0415

    try:
        config = load_config(config_file, _overrides(config_file, data_dir, settings))
        for sentence in format_node(config, founding(**options), ignore_formatted=ignore_formatted):
            click.echo(sentence)
    except (ConfigError, UnusableDirectory, StorageError) as error:
        click.echo(f"barnabas: {error}", err=True)
        sys.exit(1)


def _contained(
    config_file: str | None, data_dir: str | None, settings: tuple[str, ...], listen: str | None, cluster_id: str | None
) -> tuple[BrokerConfig, str]:
    """The settings of a node in a container, the command line's over the environment's, and its cluster."""
    from broker.config.env_config import from_environment  # noqa: PLC0415  # nobody else needs it

    found = from_environment(os.environ)
    file = config_file or found.file
    given = {**found.settings, **_given(data_dir, settings)}
    return load_config(file, given, listen, is_bare=not found.is_quick), cluster_id or found.cluster_id


def _overrides(config_file: str | None, data_dir: str | None, settings: tuple[str, ...]) -> dict[str, str]:
    overrides = _given(data_dir, settings)
    if config_file is None and not {"log.dir", "log.dirs"} & overrides.keys():
        overrides["log.dirs"] = "barnabas-data"
    if config_file is None and "listeners" not in overrides:
        overrides["listeners"] = "PLAINTEXT://127.0.0.1:9092"
    return overrides


def _given(data_dir: str | None, settings: tuple[str, ...]) -> dict[str, str]:
    """What the command line sets."""
    given = {}
    for text in settings:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--set {text}: give it as name=value")
        given[name.strip()] = value.strip()
    if data_dir is not None:
        given["log.dirs"] = data_dir
    return given


class _OneLine(logging.Formatter):
    """A record's sentence is one line, whatever a peer calls itself or its groups; a trace keeps its lines."""

    _SHOWN: ClassVar = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, control characters shown instead of written."""
        return super().formatMessage(record).translate(self._SHOWN)


def _log_to_standard_error() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def main(arguments: list[str]) -> int:
    """Run one verb; the process's exit status."""
    try:
        daemon.main(arguments, prog_name="barnabas", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.Abort:
        return 1
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    return 0
