"""The commands that the documentation shows exist: verbs, subcommands and options of `barnabas`.

RULES    1. A command is a line of a code block, or a text in backticks, that begins with `barnabas` and a space; the next
            line belongs to it if the line ends with a backslash. A command with `A|B` is checked twice, with A and with B.
         2. Words after the subcommand that are no options are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import click
import pytest

from barnabas.cli.shell.all_verbs import Root
from tests.house.sources import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs" / "examples" / "README.md",
    *sorted((ROOT / "config").glob("*.properties")),
    *sorted((ROOT / "docker").glob("*.yml")),
    *sorted((ROOT / "docker").glob("*Dockerfile")),
]
BLOCK = re.compile(r"^[#\s]*(?:.*[|&] |\$ |sudo )?((?:\S*/)?barnabas [a-z](?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
INLINE = re.compile(r"`(barnabas [a-z][^`]*)`")
OUTPUT = re.compile(r"(?:cluster )?ready on ")
BEHIND = re.compile(r"\s#.*|\s\| (?![^\[]*\]).*|'[^']*'|\"[^\"]*\"")
PLAIN_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
OF_ALL = {"--help", "--version"}


def commands_in(text: str) -> Iterator[str]:
    """The commands of a page, without quoted arguments, and comments and pipes behind them."""
    for found in [*INLINE.findall(text), *BLOCK.findall(text)]:
        one_line = found.replace("\\\n", " ").partition("barnabas ")[2]
        if not OUTPUT.match(one_line):
            yield BEHIND.sub(" ", one_line)


def resolved(command: str) -> Iterator[tuple[click.Command, list[str]]]:
    """The click commands of a text, one for each combination of alternatives, and its options."""
    words = [word for word in re.split(r"[\s\[\]]+", command) if word]
    options = OPTION.findall(command)
    names = []
    for word in words:
        alternatives = word.split("|")
        if not all(PLAIN_WORD.fullmatch(one) for one in alternatives):
            break
        names.append(alternatives)
    for path in product(*names):
        current: click.Command = Root("barnabas")
        accepted = set(OF_ALL)
        for name in path:
            if not isinstance(current, click.Group):
                break
            found = current.get_command(click.Context(current), name)
            if found is None:
                raise LookupError(f"{name} is no command of {current.name}")
            current = found
            accepted |= {text for one in current.params for text in (*one.opts, *one.secondary_opts)}
        yield current, [option for option in options if option not in accepted]


def unknown_in(text: str) -> list[str]:
    """The options of a text's commands that do not exist."""
    return [option for command in commands_in(text) for _, unknown in resolved(command) for option in unknown]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    assert not unknown_in(page.read_text())


def test_a_command_that_does_not_exist_is_found() -> None:
    assert unknown_in("```\nbarnabas topics create t --partition-count 3 -p 1 # --why\n```") == ["--partition-count"]
    assert unknown_in("`barnabas consume|produce t --grep x | barnabas top --no`") == ["--grep", "--no"]
    with pytest.raises(LookupError, match="make is no command of topics"):
        unknown_in("    sudo barnabas topics make t")


def test_most_pages_with_commands_are_read() -> None:
    assert sum(bool(list(commands_in(page.read_text()))) for page in PAGES) > 15
