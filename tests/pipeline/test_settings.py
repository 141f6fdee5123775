"""A job's settings from a file, from options, and what is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline import ArchiveSettings, StatsSettings
from barnabas.pipeline.errors import JobError, sentence_of
from barnabas.pipeline.settings import BrokerSettings, filled, options_of, pairs, read_settings, setting


@dataclass(frozen=True, kw_only=True)
class Copying(BrokerSettings):
    into: Path = setting("Where to.")
    topic: tuple[str, ...] = setting("What.", ())
    most_rows: int = setting("How many.", 7)
    rate: float | None = setting("How fast.", None)
    is_loud: bool = setting("Whether.", False)


@dataclass(frozen=True, kw_only=True)
class Reading(BrokerSettings):
    folder: Path = setting("Where.")
    rate: str = setting("How fast.", "slow")


KINDS = {"copy": (Copying,), "read": (Reading,)}


def read(tmp_path: Path, text: str) -> Copying:
    file = tmp_path / "job.toml"
    file.write_text(text)
    return filled("copy", Copying, read_settings(file, "copy", KINDS))


def test_the_table_of_a_job_wins_over_what_stands_above_the_tables(tmp_path: Path) -> None:
    """settings.py rules 1, 2 and 4: dashes or underscores, one text or a list."""
    said = read(
        tmp_path,
        'bootstrap = "a:1"\ninto = "/x"\ntopic = "t"\nmost-rows = 1\n[copy]\nmost_rows = 2\nrate = 3\nis-loud = true\n',
    )
    assert said == Copying(bootstrap="a:1", into=Path("/x"), topic=("t",), most_rows=2, rate=3, is_loud=True)


def test_a_text_stands_for_a_path_in_a_notebook() -> None:
    """settings.py rule 5: in every job, also where nothing may be said, or where the job looks at its settings itself."""
    assert ArchiveSettings(into="/x", schema="s.ddl") == ArchiveSettings(into=Path("/x"), schema=Path("s.ddl"))  # type: ignore[arg-type]
    assert StatsSettings(into="plots").into == Path("plots")  # type: ignore[arg-type]
    assert ArchiveSettings(into=Path("/x")).schema is None


def test_what_stands_above_the_tables_may_be_for_another_job(tmp_path: Path) -> None:
    """settings.py rules 1 to 3: a name that two jobs know in two kinds is for the one that it fits."""
    assert read(tmp_path, 'folder = "/y"\n[copy]\ninto = "/x"') == Copying(into=Path("/x"))
    file = tmp_path / "job.toml"
    file.write_text('into = "/x"\nrate = 3\n')
    assert read_settings(file, "audit", {**KINDS, "audit": (BrokerSettings,)}) == {}


def test_a_path_is_looked_at_by_the_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """command.py rule 1: what cannot be read is no wrong option, and has a sentence of its own."""
    (hidden := tmp_path / "hidden").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    taken: dict[str, object] = {}
    command = click.Command("copy", params=options_of(Copying), callback=lambda **values: taken.update(values))
    command.main(["--into", str(hidden)], standalone_mode=False)
    assert filled("copy", Copying, taken) == Copying(into=hidden)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("most-row = 1", "sets most-row, and there is no such setting"),
        ("[copy]\nmost-row = 1", "sets most-row in .copy., and there is no such setting"),
        ("[copying]\n", "there is no such job: copy, read"),
        ('most-rows = "7"', "that is not a whole number"),
        ("most-rows = true", "that is not a whole number"),
        ("topic = [1]", "not a list of texts"),
        ("[copy]\nrate = 'fast'", "sets rate in .copy. to 'fast', and that is not a number"),
        ('[[copy]]\ninto = "/x"', "sets copy, and there is no such setting"),
        ("[[folder]]\nx = 1", "sets folder to .*, and that is not a path"),
        ("into = ''", "--into of copy is an empty text, and that is no path"),
        ("topic = ", "is not TOML"),
        ("topic = 'a'", "copy needs --into"),
    ],
)
def test_what_nobody_knows_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    """settings.py rule 3."""
    with pytest.raises(JobError, match=words):
        read(tmp_path, text)


def test_options_have_the_names_and_defaults_of_the_fields() -> None:
    """settings.py rule 1; an option that is not given leaves the field's own default."""
    taken: dict[str, object] = {}
    command = click.Command("copy", params=options_of(Copying), callback=lambda **values: taken.update(values))
    command.main(["--into", "/x", "--topic", "a", "--topic", "b", "--is-loud"], standalone_mode=False)
    assert filled("copy", Copying, taken) == Copying(into=Path("/x"), topic=("a", "b"), is_loud=True)


def test_a_line_without_a_name_is_refused() -> None:
    """settings.py rule 3, for NAME=VALUE."""
    assert pairs("kafka", ["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}
    with pytest.raises(JobError, match="kafka takes NAME=VALUE"):
        pairs("kafka", ["a.b"])


def test_a_failure_of_spark_comes_down_to_one_sentence() -> None:
    """trouble.py rule 2."""
    full = "Job aborted.\nCaused by: java.io.IOException: No space left on device\n\tat x"
    assert sentence_of(RuntimeError(full)).startswith("The disk is full")
    unknown = (
        "An error occurred while calling o1.\norg.apache.X: Job aborted\nCaused by: a.b.OddException: too odd\n\tat y"
    )
    assert sentence_of(RuntimeError(unknown)) == "Spark failed with OddException: too odd"
    without_cause = "An error occurred while calling o1.\n: a.b.OddException: [ODD] too odd\n\tat y"
    assert sentence_of(RuntimeError(without_cause)) == "Spark failed with OddException: [ODD] too odd"


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionRefusedError(111, "Connection refused"),
        RuntimeError("An error occurred while calling o38.sc"),
        RuntimeError("Error while sending or receiving"),
        RuntimeError("Answer from Java side is empty"),
    ],
    ids=str,
)
def test_a_jvm_that_went_away_is_one_sentence(failure: Exception) -> None:
    """trouble.py rule 3."""
    assert sentence_of(failure) == "Spark's JVM went away, killed or out of memory: run the job again."


def test_a_method_that_a_jvm_has_not_is_no_jvm_that_went_away() -> None:
    """trouble.py rule 3."""
    failure = RuntimeError(
        "An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x([]) does not exist"
    )
    assert sentence_of(failure) == "Spark failed with Py4JException: Method x([]) does not exist"


def test_a_context_that_spark_stopped_has_said_why_in_the_log() -> None:
    """trouble.py rule 3: who asked for it hears of the stop alone."""
    failure = RuntimeError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.")
    log = "ERROR StandaloneSchedulerBackend: Application has been killed. Reason: All masters are unresponsive! Giving up."
    assert sentence_of(failure, log) == "No Spark master answers at the address given with --master."
    assert "stopped SparkContext" in sentence_of(failure, "something else")


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (
            "Invalid maximum heap size: -Xmxlots\nError: Could not create the Java Virtual Machine.\n",
            "Invalid maximum heap",
        ),
        ("WARNING: Using incubator modules\n\t::  UNRESOLVED DEPENDENCIES  ::\n", "Spark's jars are not here"),
        ('Exception in thread "main" a.b.SparkException: Cluster mode is odd.\n\tat x', "start: Cluster mode is odd."),
        ("", "Spark did not start: its JVM ended at once."),
    ],
)
def test_a_jvm_that_did_not_start_has_said_why(log: str, sentence: str) -> None:
    """trouble.py rule 3."""
    failure = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    said = sentence_of(failure, log)
    assert sentence in said
    assert said.endswith(".")
    assert "JAVA_GATEWAY" not in said
