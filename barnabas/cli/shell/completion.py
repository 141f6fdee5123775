"""`barnabas completion SHELL`: the script that makes a shell complete verbs, options and their values.

RULES    1. The script calls `barnabas` with COMPLETE_VARIABLE set; `__main__` passes such calls to `complete`.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class, shell_complete

from barnabas.cli.verb import run_verb

COMPLETE_VARIABLE = "_BARNABAS_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(completion, "completion", arguments)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a shell's completion script.

    bash reads it from ~/.local/share/bash-completion/completions/barnabas, zsh from _barnabas in a folder of $fpath, fish from
    ~/.config/fish/completions/barnabas.fish.
    """
    from barnabas.cli.shell.all_verbs import root

    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(root, {}, "barnabas", COMPLETE_VARIABLE).source())


def complete(instruction: str) -> int:
    """Answers a shell's script, as `bash_complete`; the words are in the environment (rule 1). Returns the exit code."""
    from barnabas.cli.shell.all_verbs import root

    return shell_complete(root, {}, "barnabas", COMPLETE_VARIABLE, instruction)
