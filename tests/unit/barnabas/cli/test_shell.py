"""Completion and man pages of all verbs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from barnabas.__main__ import DAEMON_VERBS, USAGE, USER_VERBS
from barnabas.cli.shell.all_verbs import command_of
from barnabas.cli.shell.man import _commands as all_commands
from barnabas.cli.shell.man import overview, page
from barnabas.cli.verb import run_verb

VERBS = sorted([*DAEMON_VERBS, *USER_VERBS])
ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_a_man_page_that_groff_accepts(verb: str) -> None:
    text = page(verb, command_of(verb))
    assert f".TH BARNABAS\\-{verb.upper().replace('-', chr(92) + '-')} 1" in text
    assert "no description" not in text
    if shutil.which("groff") is None:
        pytest.skip("no groff on the path")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-wall", "-z"], input=text, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


@pytest.mark.parametrize("verb", VERBS)
def test_each_option_has_a_help_text(verb: str) -> None:
    def options(command: click.Command) -> list[str]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            found = [command.get_command(context, name) for name in command.list_commands(context)]
            return [name for one in found if one is not None for name in options(one)]
        mute = [one for one in command.params if isinstance(one, click.Option) and not one.help and not one.hidden]
        return [f"{command.name} {one.opts[0]}" for one in mute]

    silent = options(command_of(verb))
    assert not silent


@pytest.mark.parametrize("verb", VERBS)
def test_an_argument_that_may_be_missing_is_in_brackets(verb: str) -> None:
    for _, command in all_commands(command_of(verb)):
        for argument in command.params:
            if isinstance(argument, click.Argument):
                written = argument.make_metavar(click.Context(command))
                assert written.startswith("[") != argument.required, written


def test_usage_and_overview_name_each_verb() -> None:
    text = overview({verb: command_of(verb) for verb in VERBS})
    for verb in VERBS:
        assert verb in USAGE
        assert f"barnabas\\-{verb.replace('-', chr(92) + '-')}" in text


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_gives_each_exit_code_one_meaning(verb: str) -> None:
    """2 is a wrong argument, but of doctor and convert, which say so: nothing was done."""
    text = page(verb, command_of(verb))
    assert text.lower().count("exit status") == 1
    assert ("the arguments are wrong" in text) == (verb not in {"convert", "doctor"})


def test_pages_say_how_audits_and_nodes_end() -> None:
    """A signal ends a node with 0, other verbs with 130 or 143."""
    assert "3 the audit found differences" in page("pipeline", command_of("pipeline"))
    for verb in ("serve", "cluster"):
        text = page(verb, command_of(verb))
        assert "0 stopped by a signal" in text
        assert "130" not in text


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_names_the_variable_of_the_cluster_only_if_the_verb_reads_it(verb: str) -> None:
    without = {*DAEMON_VERBS, "certs", "cluster", "completion", "health", "man", "pipeline"}
    assert ("BARNABAS_BOOTSTRAP" in page(verb, command_of(verb))) == (verb not in without)


def test_examples_keep_their_lines() -> None:
    text = page("consume", command_of("consume"))
    assert ".nf\nbarnabas consume orders \\-o \\-10               the last ten of each partition\nbarnabas" in text
    assert "\b" not in text


def completed(*words: str, shell: str = "bash") -> list[str]:
    """What the command answers to a shell's script."""
    done = subprocess.run(
        [sys.executable, "-m", "barnabas"],
        env={
            **os.environ,
            "_BARNABAS_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return [line.split(",", 1)[1] for line in done.stdout.splitlines() if line]


def test_verbs_and_options_are_completed() -> None:
    assert completed("barnabas", "top") == [verb for verb in VERBS if verb.startswith("top")]
    assert completed("barnabas", "topics", "cr") == ["create"]
    assert completed("barnabas", "topics", "create", "--rep") == ["--replicas"]
    assert completed("barnabas", "serve", "--li") == ["--listen"]
    assert completed("barnabas", "topics", "describe", "-b", "127.0.0.1:1", "x") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    from barnabas.cli.shell.completion import completion

    assert run_verb(completion, "completion", [shell]) == 0
    script = capsys.readouterr().out
    assert "_BARNABAS_COMPLETE" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
