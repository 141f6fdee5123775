"""The daemon's command line.

RULES    1. An error before the broker accepts requests is one sentence on standard error and exit status 1.
         2. Standard output gets only the ready line; logs go to standard error.
         3. No other user can read the files of a node. Operators may share them with its group, except the metadata log.
NOT HERE Verbs without the daemon (`barnabas/`), the parts of a broker (`server.py`).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from broker.config.broker_config import MAX_PORT, BrokerConfig, ConfigError, is_address
from broker.config.config_loader import load_config
from broker.node.format_options import parse_format_options, random_uuid
from broker.process.log_format import TEXT, log_to_standard_error

_INTERRUPTED: Final = 128 + signal.SIGINT
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Verbs(click.Group):
    """The verbs; those of the tools are imported on demand, so that the daemon starts faster."""

    _TOOLS = ("convert", "doctor", "dump-log")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs' names."""
        return sorted([*super().list_commands(ctx), *self._TOOLS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A verb."""
        if cmd_name not in self._TOOLS:
            return super().get_command(ctx, cmd_name)
        from broker.tools import commands  # noqa: PLC0415

        return {"convert": commands.convert, "doctor": commands.doctor, "dump-log": commands.dump_log}[cmd_name]


_FORMAT_OPTIONS: Final = (
    click.option("-t", "--cluster-id", metavar="ID", help="The cluster id for formatting empty directories."),
    click.option("-s", "--standalone", is_flag=True, help="Start the quorum with this controller alone."),
    click.option(
        "-I",
        "--initial-controllers",
        metavar="ID@HOST:PORT:DIRECTORY,...",
        help="Start the quorum with these controllers; all nodes need the same list.",
    ),
    click.option("-N", "--no-initial-controllers", is_flag=True, help="The quorum starts on other nodes."),
    click.option(
        "-r", "--release-version", "release", metavar="VERSION", help="The feature levels of a Kafka release."
    ),
    click.option(
        "-f", "--feature", "features", metavar="FEATURE=LEVEL", multiple=True, help="A feature level; may be repeated."
    ),
    click.option(
        "-S",
        "--add-scram",
        metavar="MECHANISM=[name=...,password=...]|@FILE",
        multiple=True,
        help="A SCRAM user of the new cluster, or a file with one per line; may be repeated.",
    ),
)


def _format_options(command: _Command) -> _Command:
    """Add the options for formatting, with the names of kafka-storage format."""
    for option in reversed(_FORMAT_OPTIONS):
        command = option(command)
    return command


def _print_random_uuid(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:  # noqa: FBT001 - click's callback
    if is_given:
        click.echo(random_uuid())
        ctx.exit()


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
def daemon() -> None:
    """The daemon of Barnabas, a Kafka-protocol broker."""
    _hide_files()


@daemon.command()
@click.option("--config", "config_file", metavar="FILE", help="Settings file with Kafka's names.")
@click.option(
    "--data-dir", metavar="DIR", help="Directory of the logs [default: that of FILE; without FILE ./barnabas-data]."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address for clients [default: that of FILE; without FILE 127.0.0.1:9092]; port 0 takes a free one.",
)
@click.option("--metrics", metavar="HOST:PORT", help="Address for Prometheus and probes; port 0 takes a free one.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting; may be repeated.")
@click.option(
    "--environment", "from_env", is_flag=True, help="Read settings from KAFKA_... variables too, as in a container."
)
@_format_options
def serve(
    config_file: str | None,
    data_dir: str | None,
    listen: str | None,
    metrics: str | None,
    settings: tuple[str, ...],
    *,
    from_env: bool,
    **options: Any,
) -> None:
    """Run one node until SIGTERM, SIGINT or SIGHUP. Empty directories are formatted first.

    Exit status: 0 stopped by a signal, 1 the start or the node failed, also because of a wrong value, 2 the arguments
    are wrong.
    """
    from broker.server import StartError, run  # noqa: PLC0415  # `--help` need not load the daemon

    log_lines = log_to_standard_error()
    try:
        _check_address("--listen", listen)
        _check_address("--metrics", metrics)
        if metrics is not None:
            settings = (*settings, f"barnabas.metrics.listener=HTTP://{metrics}")
        if from_env:
            config, options["cluster_id"] = _container_config(
                config_file, data_dir, settings, listen, options["cluster_id"]
            )
        else:
            config = load_config(config_file, _overrides(config_file, data_dir, settings), listen)
        log_lines.begin(str(config.value("barnabas.log.format")))
        run(config, parse_format_options(**options))
    except (ConfigError, StartError) as error:
        log_lines.begin(TEXT)
        click.echo(f"barnabas: {error}", err=True)
        sys.exit(1)


@daemon.command("format")
@click.option("-c", "--config", "config_file", metavar="FILE", help="Settings file with Kafka's names.")
@click.option(
    "--data-dir", metavar="DIR", help="Directory of the logs [default: that of FILE; without FILE ./barnabas-data]."
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting; may be repeated.")
@_format_options
@click.option("-g", "--ignore-formatted", is_flag=True, help="Skip formatted directories.")
@click.option(
    "--random-uuid",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_random_uuid,
    help="Print a new id for a cluster or a directory, and format nothing.",
)
def format_(
    config_file: str | None, data_dir: str | None, settings: tuple[str, ...], *, ignore_formatted: bool, **options: Any
) -> None:
    """Format the directories of a node, like kafka-storage. `serve` does the same for empty directories."""
    from broker.tools.formatting import format_node  # noqa: PLC0415
    from replication.metadata_log.node_identity import UnusableDirectory  # noqa: PLC0415
    from storage.io.disk import StorageError  # noqa: PLC0415

    try:
        config = load_config(config_file, _overrides(config_file, data_dir, settings))
        for sentence in format_node(config, parse_format_options(**options), ignore_formatted=ignore_formatted):
            click.echo(sentence)
    except (ConfigError, UnusableDirectory, StorageError) as error:
        click.echo(f"barnabas: {error}", err=True)
        sys.exit(1)


def _container_config(
    config_file: str | None, data_dir: str | None, settings: tuple[str, ...], listen: str | None, cluster_id: str | None
) -> tuple[BrokerConfig, str]:
    """The config of a node in a container, and its cluster id; the command line overrides the environment."""
    from broker.config.env_config import read_env_config  # noqa: PLC0415  # only in containers

    env = read_env_config(os.environ)
    config = load_config(
        config_file or env.file,
        _parse_settings(data_dir, settings),
        listen,
        env_settings=env.settings,
        use_kafka_defaults=not env.is_quick_start,
    )
    return config, cluster_id or env.cluster_id


def _overrides(config_file: str | None, data_dir: str | None, settings: tuple[str, ...]) -> dict[str, str]:
    overrides = _parse_settings(data_dir, settings)
    if config_file is None and not {"log.dir", "log.dirs"} & overrides.keys():
        overrides["log.dirs"] = "barnabas-data"
    if config_file is None and "listeners" not in overrides:
        overrides["listeners"] = "PLAINTEXT://127.0.0.1:9092"
    return overrides


def _parse_settings(data_dir: str | None, settings: tuple[str, ...]) -> dict[str, str]:
    """The settings of the command line."""
    given = {}
    for text in settings:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--set {text}: give it as name=value")
        given[name.strip()] = value.strip()
    if data_dir is not None:
        if "log.dirs" in given:
            raise ConfigError("--data-dir and --set log.dirs name the same setting: give one of them")
        given["log.dirs"] = data_dir
    return given


def _check_address(option: str, text: str | None) -> None:
    if text is not None and not is_address(text):
        raise ConfigError(
            f"{option} {text}: give it as HOST:PORT, such as 127.0.0.1:9092, with a port up to {MAX_PORT}"
        )


def _hide_files() -> None:
    """New files can be read by their owner and group only: records are the clients', and their secrets too."""
    os.umask(os.umask(0) | 0o027)


def main(arguments: list[str]) -> int:
    """Run one verb; returns the exit status."""
    try:
        daemon.main(arguments, prog_name="barnabas", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:  # SIGINT, before or after the daemon handles it
        return _INTERRUPTED
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    return 0
