"""The jobs as commands: what a user can mend is one sentence, before Spark is started."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline import session
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
        (
            ("audit", "--archive", folder, "--bootstrap", "nowhere"),
            "No broker answers at nowhere: 'nowhere' is not HOST:PORT.",
        ),
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


def test_a_master_that_is_not_there_is_one_sentence_before_spark_is_started(
    capsys: pytest.CaptureFixture[str], kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """running.py rule 1: Spark itself would try for a minute and say that its context is stopped."""
    monkeypatch.setattr(session, "java_version", lambda: 17)
    monkeypatch.setattr(session, "MASTER_COMES_S", 0.0)
    monkeypatch.setattr(session, "find_connector", lambda _: pytest.fail("Spark was about to be started"))
    where = ("--bootstrap", kafka_broker.bootstrap, "--master", "spark://127.0.0.1:1,127.0.0.1:2")
    code, line = said(capsys, "archive", "--into", str(tmp_path / "a"), "--topic", "t", *where)
    assert (code, "No Spark master answers at spark://127.0.0.1:1,127.0.0.1:2: " in line) == (1, True), line


def test_every_job_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """running.py: the options are the settings' fields, with their defaults."""
    assert main(["archive", "--help"]) == 0
    heard = capsys.readouterr().out
    for name in ("--into FOLDER", "--max-offsets-per-trigger", "1000000", "--settings FILE", "--json", "--master URL"):
        assert name in heard
    assert main(["--help"]) == 0
    assert {"archive", "audit", "replay", "demo"} <= set(capsys.readouterr().out.split())


def test_py4j_does_not_say_what_a_job_says(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """running.py rule 4: py4j logs an interruption by the root logger, too; what others say there stays."""
    from barnabas.pipeline.job_runner import _hush_py4j

    monkeypatch.setattr(logging.root, "filters", [])
    caplog.set_level(logging.NOTSET, "py4j")
    _hush_py4j()
    for path in ("py4j/java_gateway.py", "others.py"):
        logging.root.handle(logging.LogRecord("root", logging.ERROR, path, 1, "said in %s", (path,), None))
    logging.getLogger("py4j.clientserver").error("the JVM is gone")
    assert [record.args for record in caplog.records] == [("others.py",)]
