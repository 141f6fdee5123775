"""A job's settings: one dataclass, filled from a file, from the command line, or by hand in a notebook.

    [archive]                        # a TOML file; values above the first table are for every job that knows them
    topic = ["flights", "weather"]
    into = "/data/archive"

RULES    1. A name is said once: the field `max_offsets_per_trigger` is the option --max-offsets-per-trigger and the line
            max-offsets-per-trigger (or max_offsets_per_trigger) of the file.
         2. The command line wins over the job's table, the table over what stands above the tables.
         3. A name that no job knows, or a value of the wrong kind, is refused in one sentence that names the file.
         4. A repeated option is a list in the file, and a tuple in the dataclass.
         5. In a notebook a text may stand for a path, as it does in a file.
NOT HERE What each job is told (`jobs/`), the session's settings (`session.py`).
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from barnabas.pipeline.errors import JobError

T = TypeVar("T")
_KINDS: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,), Path: (str,)}
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


def setting(words: str, default: Any = dataclasses.MISSING, *, metavar: str | None = None) -> Any:
    """A field of a settings dataclass, with what --help says of it."""
    return dataclasses.field(default=default, metadata={"help": words, "metavar": metavar})


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """What every job that asks a broker is told."""

    bootstrap: str = setting("The brokers, HOST:PORT[,HOST:PORT...].", "127.0.0.1:9092", metavar="HOST:PORT")
    kafka: tuple[str, ...] = setting(
        "A setting of Kafka's clients, for the brokers and for Spark; may be repeated.", (), metavar="NAME=VALUE"
    )

    def __post_init__(self) -> None:
        """Make paths of texts (rule 5)."""
        for field, hint in _fields(type(self)):
            value = getattr(self, field.name)
            if hint is Path and isinstance(value, str):
                object.__setattr__(self, field.name, Path(value))

    @property
    def asks_broker(self) -> bool:
        """Whether a broker has to be there at all."""
        return True

    def client_settings(self) -> dict[str, str]:
        """The clients' settings by name."""
        return pairs("kafka", self.kafka)


def pairs(name: str, lines: Iterable[str]) -> dict[str, str]:
    """Lines of NAME=VALUE as a table."""
    table = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise JobError(f"{name} takes NAME=VALUE, and {line!r} is none.")
        table[key.strip()] = value.strip()
    return table


def texts(said: tuple[str, ...] | str) -> tuple[str, ...]:
    """The values of an option that may be repeated; one text may stand for itself, in a notebook."""
    return (said,) if isinstance(said, str) else tuple(said)


def options_of(*kinds: type) -> list[click.Option]:
    """The options of the command line for these dataclasses; None, or (), is an option that was not given."""
    return [_option(field, hint) for kind in kinds for field, hint in _fields(kind)]


def read_settings(path: Path, job: str, kinds: Mapping[str, Iterable[type]]) -> dict[str, Any]:
    """What a file says to a job. `kinds` are the dataclasses of every job by its name."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as failure:
        raise JobError(f"The settings file {path} cannot be read: {failure.strerror}.") from failure
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise JobError(f"The settings file {path} is not TOML: {failure}.") from failure
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    for name in tables:
        if name not in kinds:
            raise JobError(f"{path} has a table [{name}], and there is no such job: {', '.join(sorted(kinds))}.")
    common = {name: value for name, value in document.items() if name not in tables}
    known = {kind: dict(_hints(kinds[kind])) for kind in kinds}
    said: dict[str, Any] = {}
    for where, values in (("", common), (f" in [{job}]", tables.get(job, {}))):
        for written, value in values.items():
            name = written.replace("-", "_")
            jobs = [job] if where or name in known[job] else known
            hints = [known[one][name] for one in jobs if name in known[one]]
            if not hints:
                raise JobError(f"{path} sets {written}{where}, and there is no such setting.")
            if not any(_fits(hint, value) for hint in hints):
                raise JobError(f"{path} sets {written}{where} to {value!r}, and that is not {_words_of(hints[0])}.")
            if name in known[job]:
                said[name] = texts(value) if _is_many(hints[0]) else value
    return said


def filled(job: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass with these values; what it must have and has not is said."""
    taken = {}
    for field, hint in _fields(kind):
        value = values.get(field.name)
        if value is None or value == ():
            if field.default is dataclasses.MISSING:
                raise JobError(f"{job} needs --{_dashed(field.name)}: {field.metadata['help']}")
            continue
        if hint is Path and not str(value):
            raise JobError(f"--{_dashed(field.name)} of {job} is an empty text, and that is no path.")
        taken[field.name] = Path(value) if hint is Path else value
    return kind(**taken)


# --- one field --------------------------------------------------------------------------------------------------------


def _fields(kind: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return [(field, _plain(hints[field.name])) for field in dataclasses.fields(typing.cast("Any", kind))]


def _hints(kinds: Iterable[type]) -> Iterable[tuple[str, Any]]:
    return [(field.name, hint) for kind in kinds for field, hint in _fields(kind)]


def _plain(hint: Any) -> Any:
    """`str | None` is a text that may be missing."""
    some = [part for part in typing.get_args(hint) if part is not type(None)]
    return some[0] if type(None) in typing.get_args(hint) else hint


def _option(field: dataclasses.Field[Any], hint: Any) -> click.Option:
    is_many = _is_many(hint)
    name = _dashed(field.name)
    words = field.metadata["help"]
    if field.default not in (dataclasses.MISSING, None, (), False):
        words += f"  [default: {str(field.default).lower() if hint is bool else field.default}]"
    if hint is bool:
        return click.Option([f"--{name}/--no-{name}", field.name], default=None, help=words)
    return click.Option(
        [f"--{name}", field.name],
        type=click.Path(readable=False) if hint is Path else (str if is_many else hint),
        multiple=is_many,
        default=None,
        metavar=field.metadata["metavar"],
        help=words,
    )


def _is_many(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _fits(hint: Any, value: Any) -> bool:
    if _is_many(hint):
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(line, str) for line in value))
    return isinstance(value, _KINDS[hint]) and (hint is bool or not isinstance(value, bool))


def _words_of(hint: Any) -> str:
    return "a list of texts" if _is_many(hint) else _WORDS[hint]


def _dashed(name: str) -> str:
    return name.replace("_", "-")
