"""Errors of the commands: one sentence, before Spark starts."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline import session
from barnabas.pipeline.command import main


def run_command(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Returns the exit code and the single line on standard error."""
    code = main(list(args))
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.count("\n") == 1, captured.err
    return code, captured.err


def test_missing_or_unknown_settings_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(tmp_path / "a")
    file = tmp_path / "job.toml"
    file.write_text('[archive]\ninto = "x"\nmax-offset-per-trigger = 5\n')
    for args, message in (
        (("archive", "--topic", "t"), "archive needs --into"),
        (
            ("archive", "--settings", str(file)),
            "sets max-offset-per-trigger in [archive], which is not a setting",
        ),
        (("archive", "--settings", str(tmp_path / "no.toml")), "cannot be read"),
        (
            ("archive", "--into", folder, "--topic", "t", "--bootstrap", "127.0.0.1:1"),
            "No broker answers at 127.0.0.1:1",
        ),
        (
            ("audit", "--archive", folder, "-b", "nowhere"),
            "No broker answers at nowhere: 'nowhere' is not HOST:PORT.",
        ),
        (("search", "--topic", "t", "--key", "\udcff"), "The command takes UTF-8, not '\\udcff'."),
    ):
        code, line = run_command(capsys, *args)
        assert code == 1, line
        assert message in line
    assert not (tmp_path / "a").exists(), "nothing was begun"


def test_no_java_is_one_sentence(
    capsys: pytest.CaptureFixture[str], kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    args = ("archive", "--into", str(tmp_path / "a"), "--topic", "t", "--bootstrap", kafka_broker.bootstrap)
    code, line = run_command(capsys, *args)
    assert (code, line.startswith("barnabas: Spark needs Java, which is not")) == (1, True), line
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_unreachable_master_is_one_sentence(
    capsys: pytest.CaptureFixture[str], kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself would retry for a minute."""
    monkeypatch.setattr(session, "check_java", lambda: None)
    monkeypatch.setattr(session, "MASTER_WAIT_S", 0.0)
    monkeypatch.setattr(session, "find_connector", lambda _: pytest.fail("Spark was about to be started"))
    where = ("--bootstrap", kafka_broker.bootstrap, "--master", "spark://127.0.0.1:1,127.0.0.1:2")
    code, line = run_command(capsys, "archive", "--into", str(tmp_path / "a"), "--topic", "t", *where)
    assert (code, "No Spark master answers at spark://127.0.0.1:1,127.0.0.1:2: " in line) == (1, True), line


def test_help_shows_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archive", "--help"]) == 0
    captured = capsys.readouterr().out
    for name in ("--into FOLDER", "--max-offsets-per-trigger", "1000000", "--settings FILE", "--json", "--master URL"):
        assert name in captured
    assert main(["--help"]) == 0
    assert {"archive", "audit", "replay", "demo"} <= set(capsys.readouterr().out.split())


def test_py4j_logs_nothing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """py4j also logs under the root logger; other records of the root logger stay."""
    from barnabas.pipeline.job_runner import silence_spark

    monkeypatch.setattr(logging.root, "filters", [])
    caplog.set_level(logging.NOTSET, "py4j")
    silence_spark()
    for path in ("py4j/java_gateway.py", "others.py"):
        logging.root.handle(logging.LogRecord("root", logging.ERROR, path, 1, "run_command in %s", (path,), None))
    logging.getLogger("py4j.clientserver").error("the JVM is gone")
    assert [record.args for record in caplog.records] == [("others.py",)]


@pytest.mark.parametrize("kind", ["DataFrame", "SQL"])
def test_an_expression_that_spark_refuses_is_not_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """PySpark logs such errors as JSON with Java's stack trace, before they are caught."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from barnabas.pipeline.job_runner import silence_spark

    context = SimpleNamespace(
        contextType=lambda: SimpleNamespace(name=kind), callSite=lambda: "job.py:1", fragment=lambda: "nosuch"
    )

    class Refused(PySparkException):
        def getQueryContext(self) -> Any:  # noqa: N802 - Spark's name
            return [context]

    caplog.set_level(logging.NOTSET, PySparkLogger.getLogger(f"{kind}QueryContextLogger").name)
    silence_spark()
    Refused("[UNRESOLVED_COLUMN] nosuch")._log_exception()
    assert not caplog.records
