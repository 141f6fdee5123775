"""Commands that the pages for users show: the verb, the command below it and every option exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from barnabas.cli.shell.all_verbs import root

ROOT = Path(__file__).parents[4]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "docs" / "examples" / "README.md"]
SHOWN = re.compile(
    r"(?:^ *|\| |`|; do |-- )barnabas (?P<arguments>(?!ready )[a-z][^`\n]*(?:\\\n[^`\n]*)*)", re.MULTILINE
)
END = re.compile(r"\s#.*| [|;&>]+ .*| < .*| >.*|[)&;]+$")


def shown(page: Path) -> Iterator[list[str]]:
    """The words after `barnabas` of each command of a page; a synopsis without its brackets."""
    for found in SHOWN.finditer(page.read_text()):
        text = re.sub(r"\\\n *", "", found["arguments"])
        text = re.sub(r"\[[^\]]*\]", lambda optional: optional[0].replace(" | ", " "), text)
        yield shlex.split(re.sub(r"[\[\]\\]|\.\.\.", " ", END.sub("", text)))


def unknown(words: list[str], command: click.Command = root) -> str | None:
    """The first word that is neither a command nor an option; None if all are known."""
    rest = iter(words)
    for word in rest:
        if isinstance(command, click.Group):
            names = word.split("|")
            if not all(name in command.list_commands(click.Context(command)) for name in names):
                return None if word.isupper() or word.startswith("-") else word
            command = command.get_command(click.Context(command), names[0]) or command
        elif word.startswith("-") and word != "-":
            name, has_value, _ = word.partition("=")
            options = {
                text: one
                for one in command.params
                if isinstance(one, click.Option)
                for text in (*one.opts, *one.secondary_opts)
            }
            if name not in options and name not in ("-h", "--help"):
                return word
            option = options.get(name)
            if option is not None and not option.is_flag and not has_value:
                next(rest, None)
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_command_and_option_of_a_page_exists(page: Path) -> None:
    wrong = {" ".join(words): word for words in shown(page) if (word := unknown(words)) is not None}
    assert not wrong


def test_commands_are_found_and_mistakes_in_them() -> None:
    assert sum(len(list(shown(page))) for page in PAGES) > 100
    assert unknown(["configs", "alter", "--topic", "orders"]) == "alter"
    assert unknown(["topics", "create", "orders", "--parts", "3"]) == "--parts"
    assert unknown(["consume", "orders", "-o", "-10", "--quiet"]) is None
