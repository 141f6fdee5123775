"""The jobs as commands: what a user can mend is one sentence, before Spark is started."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline.command import main


def said(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """The exit code, and the one line on standard error."""
    code = main(list(args))
    heard = capsys.readouterr()
    assert not heard.out
    assert heard.err.count("\n") == 1, heard.err
    return code, heard.err


def test_what_is_missing_or_unknown_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """command.py rule 1, running.py rules 1 and 2."""
    folder = str(tmp_path / "a")
    file = tmp_path / "job.toml"
    file.write_text('[archive]\ninto = "x"\nmax-offset-per-trigger = 5\n')
    for args, words in (
        (("archive", "--topic", "t"), "archive needs --into"),
        (
            ("archive", "--settings", str(file)),
            "sets max-offset-per-trigger in [archive], and there is no such setting",
        ),
        (("archive", "--settings", str(tmp_path / "no.toml")), "cannot be read"),
        (
            ("archive", "--into", folder, "--topic", "t", "--bootstrap", "127.0.0.1:1"),
            "No broker answers at 127.0.0.1:1",
        ),
        (("audit", "--archive", folder, "--bootstrap", "nowhere"), "No broker answers at nowhere"),
    ):
        code, line = said(capsys, *args)
        assert code == 1, line
        assert words in line
    assert not (tmp_path / "a").exists(), "nothing was begun"


def test_no_java_is_one_sentence(
    capsys: pytest.CaptureFixture[str], kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """running.py rule 1; the process is as it was afterwards."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    args = ("archive", "--into", str(tmp_path / "a"), "--topic", "t", "--bootstrap", kafka_broker.bootstrap)
    code, line = said(capsys, *args)
    assert (code, line.startswith("Error: Spark needs Java and there is none")) == (1, True), line
    assert signal.getsignal(signal.SIGTERM) is before


def test_every_job_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """running.py: the options are the settings' fields, with their defaults."""
    assert main(["archive", "--help"]) == 0
    heard = capsys.readouterr().out
    for name in ("--into FOLDER", "--max-offsets-per-trigger", "1000000", "--settings FILE", "--json", "--master URL"):
        assert name in heard
    assert main(["--help"]) == 0
    assert {"archive", "audit", "replay", "demo"} <= set(capsys.readouterr().out.split())


def test_an_interruption_is_told_without_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    """running.py: py4j logs one, with its trace, by the root logger; what others say there stays."""
    from barnabas.pipeline.running import _py4j_is_quiet

    def say(path: str) -> None:
        logging.root.handle(logging.LogRecord("root", logging.ERROR, path, 1, "said in %s", (path,), None))

    with _py4j_is_quiet():
        say("py4j/java_gateway.py")
        say("others.py")
    say("py4j/java_gateway.py")
    assert [record.args for record in caplog.records] == [("others.py",), ("py4j/java_gateway.py",)]
