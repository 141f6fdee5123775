"""`barnabas man [VERB]`: man pages from the click commands, one for each verb.

FORMAT   roff with the macros of man(7).
RULES    1. Options that all commands of a verb have are listed once, at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from inspect import cleandoc
from pathlib import Path

import click

from barnabas.cli.verb import run_verb

_EXIT_CODES = (
    ("0", "done"),
    ("1", "something failed; one sentence on standard error says what to do"),
    ("2", "the arguments are wrong"),
    ("130, 143", "ended by SIGINT, by SIGTERM"),
)
_CONNECTION = {"bootstrap", "command_config", "properties"}
_SHARED = {*_CONNECTION, "timeout_s", "as_json"}
"""Parameters of the connection and of the output, which most commands have."""


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(man, "man", arguments)


@click.command()
@click.argument("verb", required=False)
@click.option("--all", "folder", metavar="DIR", help="Write the pages of all verbs into DIR.")
def man(verb: str | None, folder: str | None) -> None:
    """Print a verb's man page. `barnabas man topics | man -l -` shows it."""
    from barnabas.cli.shell.all_verbs import command_of, root

    verbs = root.list_commands(click.Context(root))
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name in verbs:
            Path(folder, f"barnabas-{name}.1").write_text(page(name, command_of(name)))
        Path(folder, "barnabas.1").write_text(overview({name: command_of(name) for name in verbs}))
    elif verb is None:
        click.echo(overview({name: command_of(name) for name in verbs}), nl=False)
    elif verb in verbs:
        click.echo(page(verb, command_of(verb)), nl=False)
    else:
        raise click.UsageError(f"There is no verb {verb}; barnabas --help lists them.")


def page(verb: str, command: click.Command) -> str:
    """Returns the man page of a verb."""
    name = f"barnabas-{verb}"
    lines = [_title(name), ".SH NAME", f"{_text(name)} \\- {_text(_summary(command))}", ".SH SYNOPSIS"]
    commands = dict(_commands(command))
    lines += [line for words, subcommand in commands.items() for line in (".br", *_synopsis(verb, words, subcommand))][
        1:
    ]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help)]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
    else:
        lines.append(".SH OPTIONS")
    shared: dict[str, click.Parameter] = {}
    for words, subcommand in commands.items():
        if words:
            lines += [f".SS {_text(' '.join(words))}", *_paragraphs(subcommand.help)]
        for parameter in subcommand.params:
            if parameter.name in _SHARED and isinstance(command, click.Group):
                shared[str(parameter.name)] = parameter
            else:
                lines += _option(parameter)
    if shared:
        lines += [".SH COMMON OPTIONS", *(line for parameter in shared.values() for line in _option(parameter))]
    if command.epilog:
        lines += [".SH NOTES", *_paragraphs(command.epilog)]
    has_own = "Exit status:" in (command.help or "")
    names = {parameter.name for subcommand in commands.values() for parameter in subcommand.params}
    return "\n".join([*lines, *_end(() if has_own else _EXIT_CODES, is_connected=names >= _CONNECTION)]) + "\n"


def overview(commands: dict[str, click.Command]) -> str:
    """Returns the man page of the command `barnabas`."""
    lines = [_title("barnabas"), ".SH NAME", "barnabas \\- a message broker that implements Kafka's protocol"]
    lines += [".SH SYNOPSIS", ".B barnabas", "VERB [OPTION]...", ".SH VERBS"]
    for verb, command in commands.items():
        lines += [".TP", f".BR barnabas\\-{_text(verb)} (1)", _text(_summary(command))]
    return "\n".join([*lines, *_end(_EXIT_CODES, is_connected=True)]) + "\n"


def _title(name: str) -> str:
    return f'.TH {_text(name.upper())} 1 "" Barnabas "Barnabas"\n.nh\n.ad l'


def _end(exit_codes: Sequence[tuple[str, str]], *, is_connected: bool) -> Iterator[str]:
    """The last sections; without exit codes, if the description has other ones.

    `is_connected`: the verb has the options of `cli/connection.py`, which read the variable.
    """
    if exit_codes:
        yield ".SH EXIT STATUS"
    for code, meaning in exit_codes:
        yield from (".TP", f".B {code}", _text(meaning))
    if is_connected:
        yield from (
            ".SH ENVIRONMENT",
            ".TP",
            ".B BARNABAS_BOOTSTRAP",
            "HOST:PORT of a cluster, where \\-\\-bootstrap is not given.",
        )
    yield from (".SH SEE ALSO", ".BR barnabas (1)")


def _commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The command, or all commands of a group, each with its words."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        subcommand = command.get_command(context, name)
        if subcommand is not None and not subcommand.hidden:
            yield from _commands(subcommand, (*words, name))


def _summary(command: click.Command) -> str:
    return re.split(r"(?<=[.:])\s|\n\n", " ".join((command.help or "").split()) or "no description", maxsplit=1)[
        0
    ].rstrip(".")


def _synopsis(verb: str, words: Iterable[str], command: click.Command) -> Iterator[str]:
    yield f".B barnabas {_text(' '.join((verb, *words)))}"
    pieces = ["[OPTION]..."] if any(isinstance(parameter, click.Option) for parameter in command.params) else []
    context = click.Context(command)
    pieces += [parameter.make_metavar(context) for parameter in command.params if isinstance(parameter, click.Argument)]
    yield _text(" ".join(pieces))


def _option(parameter: click.Parameter) -> Iterator[str]:
    """The lines of an option; arguments are in the synopsis."""
    if not isinstance(parameter, click.Option) or parameter.hidden:
        return
    found = parameter.get_help_record(click.Context(click.Command("barnabas")))
    if found is not None:
        yield from (".TP", f".B {_text(found[0])}", _text(found[1]) or "\\&")


def _paragraphs(text: str | None) -> Iterator[str]:
    """Paragraphs; the first one follows a heading. After click's mark, lines are printed as they are."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", cleandoc(text or ""))):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield from (".nf", *map(_escaped, paragraph.splitlines()[1:]), ".fi")
        else:
            yield _text(paragraph)


def _text(text: str) -> str:
    """Text in roff: backslashes and hyphens are escaped, no line is a request, and choices may be broken."""
    return _escaped(" ".join(text.split())).replace("|", "|\\:")


def _escaped(line: str) -> str:
    escaped = line.replace("\\", "\\\\").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
