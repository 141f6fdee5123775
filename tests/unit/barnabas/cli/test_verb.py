"""How a verb ends: exit codes, sentences, closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from barnabas.cli.connection import Connection, connect_to, connection_options
from barnabas.cli.output import note, table
from barnabas.cli.verb import run_verb
from barnabas.client.errors import ArgumentError, ClientError


@click.command()
@click.argument("what")
@connection_options
def sample(what: str, connection: Connection) -> int:
    """Does what it is asked."""
    if what == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    if what == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if what == "fail":
        raise ClientError("There is no topic x: create it.")
    if what == "escape":
        raise ClientError("There is no topic \x1b[2J.")
    if what == "argument":
        raise ArgumentError("--offset x is not a range.")
    if what == "unicode":
        sys.stdout.write("\N{SNOWMAN}\ud800")
    if what == "bug":
        raise ZeroDivisionError
    if what == "write":
        for number in range(100_000):
            sys.stdout.write(f"{number}\n")
    if what == "address":
        connection.addresses()
    return 1 if what == "differs" else 0


@pytest.mark.parametrize(
    ("what", "exit_code"),
    [("nothing", 0), ("differs", 1), ("fail", 1), ("interrupt", 130), ("terminate", 143), ("--unknown", 2)],
)
def test_an_exit_code_says_how_a_verb_ended(what: str, exit_code: int) -> None:
    assert run_verb(sample, "sample", [what]) == exit_code


def test_a_failure_is_one_sentence_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    run_verb(sample, "sample", ["fail"])
    assert capsys.readouterr() == ("", "barnabas: There is no topic x: create it.\n")


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_verb(sample, "sample", ["bug"])


def test_a_closed_pipe_ends_silently() -> None:
    script = (
        "import sys; from tests.unit.barnabas.cli.test_verb import *; sys.exit(run_verb(sample, 'sample', ['write']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[4]
    ) as verb:
        assert verb.stdout is not None
        assert verb.stderr is not None
        assert verb.stdout.readline() == b"0\n"
        verb.stdout.close()
        assert (verb.stderr.read(), verb.wait()) == (b"", 0)


def test_the_address_is_of_the_option_then_the_settings_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "client.properties"
    config.write_text("bootstrap.servers=in-file:1\nsecurity.protocol=SSL\n")
    monkeypatch.delenv("BARNABAS_BOOTSTRAP", raising=False)
    assert connect_to(None, None, ()).addresses() == [("127.0.0.1", 9092)]
    monkeypatch.setenv("BARNABAS_BOOTSTRAP", "b,[::1]:5")
    assert connect_to(None, None, ()).addresses() == [("b", 9092), ("::1", 5)]
    found = connect_to(None, str(config), ("security.protocol=PLAINTEXT", "client.id=me"))
    assert found == Connection("in-file:1", {"security.protocol": "PLAINTEXT", "client.id": "me"})
    assert connect_to("a:2", str(config), ()).addresses() == [("a", 2)]


@pytest.mark.parametrize("bootstrap", ["a:", ":1", "a:70000", "a:b"])
def test_a_wrong_address_is_a_wrong_argument(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(sample, "sample", ["address", "-b", bootstrap]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


def test_wrong_arguments_are_exit_code_2_also_as_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(sample, "sample", ["argument"]) == 2
    assert capsys.readouterr() == ("", "barnabas: --offset x is not a range.\n")


def test_output_is_utf_8_whatever_the_locale_is() -> None:
    script = "import sys; from tests.unit.barnabas.cli.test_verb import *; run_verb(sample, 'sample', ['unicode'])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=True, cwd=Path(__file__).parents[4],
    )  # fmt: skip
    assert done.stdout == "\N{SNOWMAN}\\ud800".encode()


def test_control_characters_of_names_do_not_reach_a_terminal() -> None:
    assert table(("group",), [("a\x1b[2J\u202e\N{SNOWMAN}",)]) == "GROUP\na\\x1b[2J\\u202e\N{SNOWMAN}\n"


def test_control_characters_of_notes_and_failures_do_not_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    note("group a\x1b[2J\u202e\N{SNOWMAN}")
    run_verb(sample, "sample", ["escape"])
    assert capsys.readouterr().err == "group a\\x1b[2J\\u202e\N{SNOWMAN}\nbarnabas: There is no topic \\x1b[2J.\n"


def test_a_table_has_one_word_in_each_cell_of_its_heading() -> None:
    assert table(("topic", "partitions"), [("a", 3), ("longer", None)]) == (
        "TOPIC   PARTITIONS\na                3\nlonger           -\n"
    )
