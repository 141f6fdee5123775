"""A job's settings: one dataclass, filled from a file, from the command line, or in a notebook.

    [archive]                        # a TOML file; values above the first table apply to every job that has the setting
    topic = ["flights", "weather"]
    into = "/data/archive"

RULES    1. Each name is defined once: the field `max_offsets_per_trigger` is the option --max-offsets-per-trigger and the key
            max-offsets-per-trigger (or max_offsets_per_trigger) of the file.
         2. The command line overrides the job's table, which overrides the values above the tables.
         3. An unknown name or a value of the wrong type raises JobError with the file's name.
         4. A repeated option is a list in the file and a tuple in the dataclass.
         5. A path may be given as text, in a notebook as in a file.
NOT HERE The settings of each job (`jobs/`), of the session (`session.py`).
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from barnabas.client.client_settings import parse_pairs, read_properties
from barnabas.pipeline.errors import JobError

T = TypeVar("T")
_TOML_TYPES: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,), Path: (str,)}
_TYPE_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_SERVERS = "bootstrap.servers"


def setting(
    help_text: str, default: Any = dataclasses.MISSING, *, metavar: str | None = None, short: str | None = None
) -> Any:
    """Returns a dataclass field with its help text; `short` is a second, short option, such as -b."""
    return dataclasses.field(default=default, metadata={"help": help_text, "metavar": metavar, "short": short})


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """Settings of every job that connects to brokers."""

    bootstrap: str = setting(
        "The brokers, HOST:PORT[,HOST:PORT...].  "
        f"[default: bootstrap.servers of the clients' settings, else {DEFAULT_BOOTSTRAP}]",
        None,
        metavar="HOST:PORT",
        short="-b",
    )
    kafka: tuple[str, ...] = setting(
        "A setting of all Kafka clients, in the driver and in Spark, with its Java name; may be repeated.",
        (),
        metavar="NAME=VALUE",
    )
    command_config: Path | None = setting("A file with such settings, as Kafka's tools take it.", None, metavar="FILE")

    def __post_init__(self) -> None:
        """Converts texts to paths (rule 5), and finds the brokers if they are not given."""
        for field, hint in _fields(type(self)):
            value = getattr(self, field.name)
            if hint is Path and isinstance(value, str):
                object.__setattr__(self, field.name, Path(value))
        if self.bootstrap is None:
            found = self._given_settings().get(_SERVERS) or DEFAULT_BOOTSTRAP
            object.__setattr__(self, "bootstrap", found)

    @property
    def needs_broker(self) -> bool:
        """Whether the job connects to a broker."""
        return True

    def client_settings(self) -> dict[str, str]:
        """Returns the settings of Kafka's clients by their Java names, without the brokers. Raises JobError."""
        return {name: value for name, value in self._given_settings().items() if name != _SERVERS}

    def _given_settings(self) -> dict[str, str]:
        from_file = {} if self.command_config is None else read_properties(self.command_config)
        return {**from_file, **parse_pairs("kafka", self.kafka)}


def as_tuple(found: tuple[str, ...] | str) -> tuple[str, ...]:
    """Returns the values of a repeatable option; a single text is one value."""
    return (found,) if isinstance(found, str) else tuple(found)


def click_options(*kinds: type) -> list[click.Option]:
    """Returns the command line options of these dataclasses. The default None or () means: not given."""
    return [_option(field, hint) for kind in kinds for field, hint in _fields(kind)]


def read_settings(path: Path, job: str, kinds: Mapping[str, Iterable[type]]) -> dict[str, Any]:
    """Reads a job's settings from a file. `kinds` maps each job to its settings dataclasses. Raises JobError."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as failure:
        raise JobError(f"The settings file {path} cannot be read: {failure.strerror}.") from failure
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise JobError(f"The settings file {path} is not TOML: {failure}.") from failure
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    for name in tables:
        if name not in kinds:
            raise JobError(f"{path} has a table [{name}], which is not a job: {', '.join(sorted(kinds))}.")
    common = {name: value for name, value in document.items() if name not in tables}
    known = {name: {field.name: hint for kind in kinds[name] for field, hint in _fields(kind)} for name in kinds}
    found: dict[str, Any] = {}
    for where, values in (("", common), (f" in [{job}]", tables.get(job, {}))):
        for key, value in values.items():
            name = key.replace("-", "_")
            jobs = [job] if where or name in known[job] else known
            hints = [known[candidate][name] for candidate in jobs if name in known[candidate]]
            if not hints:
                raise JobError(
                    f"{path} sets {key}{where}, which is not a setting: `barnabas pipeline {job} --help` lists them."
                )
            if not any(_fits(hint, value) for hint in hints):
                raise JobError(f"{path} sets {key}{where} to {value!r}, which is not {_type_name(hints[0])}.")
            if name in known[job]:
                found[name] = as_tuple(value) if _is_repeated(hints[0]) else value
    return found


def build_settings(job: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """Builds the dataclass. Raises JobError if a required setting is missing."""
    taken = {}
    for field, hint in _fields(kind):
        value = values.get(field.name)
        if value is None or value == ():
            if field.default is dataclasses.MISSING:
                raise JobError(f"{job} needs --{_option_name(field.name)}: {field.metadata['help']}")
            continue
        if hint is Path and not str(value):
            raise JobError(f"--{_option_name(field.name)} of {job} is empty: give a path.")
        taken[field.name] = Path(value) if hint is Path else value
    return kind(**taken)


# --- one field --------------------------------------------------------------------------------------------------------


def _fields(kind: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return [(field, _without_none(hints[field.name])) for field in dataclasses.fields(typing.cast("Any", kind))]


def _without_none(hint: Any) -> Any:
    """`str` of `str | None`."""
    types = [part for part in typing.get_args(hint) if part is not type(None)]
    return types[0] if type(None) in typing.get_args(hint) else hint


def _option(field: dataclasses.Field[Any], hint: Any) -> click.Option:
    is_repeated = _is_repeated(hint)
    name = _option_name(field.name)
    help_text = field.metadata["help"]
    if field.default not in (dataclasses.MISSING, None, (), False):
        help_text += f"  [default: {str(field.default).lower() if hint is bool else field.default}]"
    if hint is bool:
        return click.Option([f"--{name}/--no-{name}", field.name], default=None, help=help_text)
    return click.Option(
        [*filter(None, [field.metadata["short"]]), f"--{name}", field.name],
        type=click.Path(readable=False) if hint is Path else (str if is_repeated else hint),
        multiple=is_repeated,
        default=None,
        metavar=field.metadata["metavar"],
        help=help_text,
    )


def _is_repeated(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _fits(hint: Any, value: Any) -> bool:
    if _is_repeated(hint):
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(line, str) for line in value))
    return isinstance(value, _TOML_TYPES[hint]) and (hint is bool or not isinstance(value, bool))


def _type_name(hint: Any) -> str:
    return "a list of texts" if _is_repeated(hint) else _TYPE_NAMES[hint]


def _option_name(name: str) -> str:
    return name.replace("_", "-")
