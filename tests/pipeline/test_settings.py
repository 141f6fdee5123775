"""A job's settings from a file and from options, and refused values."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

pytest.importorskip("pyspark")

from barnabas.client.client_settings import parse_pairs
from barnabas.client.errors import ClientError
from barnabas.pipeline import ArchiveSettings, StatsSettings
from barnabas.pipeline.errors import JobError, describe_failure
from barnabas.pipeline.settings import (
    BrokerSettings,
    build_settings,
    click_options,
    read_settings,
    setting,
)


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
    return build_settings("copy", Copying, read_settings(file, "copy", KINDS))


def test_a_jobs_table_overrides_common_settings(tmp_path: Path) -> None:
    """Names with dashes or underscores; one text or a list."""
    loaded = read(
        tmp_path,
        'bootstrap = "a:1"\ninto = "/x"\ntopic = "t"\nmost-rows = 1\n[copy]\nmost_rows = 2\nrate = 3\nis-loud = true\n',
    )
    assert loaded == Copying(bootstrap="a:1", into=Path("/x"), topic=("t",), most_rows=2, rate=3, is_loud=True)


def test_a_path_may_be_given_as_text() -> None:
    assert ArchiveSettings(into="/x", schema="s.ddl") == ArchiveSettings(into=Path("/x"), schema=Path("s.ddl"))
    assert StatsSettings(into="plots").into == Path("plots")
    assert ArchiveSettings(into=Path("/x")).schema is None


def test_the_option_bootstrap_overrides_the_settings_of_the_clients(tmp_path: Path) -> None:
    """A file of Kafka's tools may name a cluster, which was used although --bootstrap named another one."""
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=there:9092\nclient.id=me\n")
    for given, expected in (
        ({"bootstrap": "here:9092"}, "here:9092"),
        ({}, "there:9092"),
        ({"kafka": ("bootstrap.servers=elsewhere:9092",)}, "elsewhere:9092"),
    ):
        settings = build_settings("copy", Copying, {"into": "a", "command_config": str(file), **given})
        assert (settings.bootstrap, settings.client_settings()) == (expected, {"client.id": "me"})
    assert build_settings("copy", Copying, {"into": "a"}).bootstrap == "127.0.0.1:9092"
    assert build_settings("copy", Copying, {"into": "a", "bootstrap": ""}).bootstrap == ""


def test_common_settings_may_belong_to_another_job(tmp_path: Path) -> None:
    """A name that two jobs use with different types is checked against both."""
    assert read(tmp_path, 'folder = "/y"\n[copy]\ninto = "/x"') == Copying(into=Path("/x"))
    file = tmp_path / "job.toml"
    file.write_text('into = "/x"\nrate = 3\n')
    assert read_settings(file, "audit", {**KINDS, "audit": (BrokerSettings,)}) == {}


def test_options_do_not_check_whether_paths_are_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hidden := tmp_path / "hidden").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    taken: dict[str, object] = {}
    command = click.Command("copy", params=[*click_options(Copying)], callback=lambda **values: taken.update(values))
    command.main(["--into", str(hidden)], standalone_mode=False)
    assert build_settings("copy", Copying, taken) == Copying(into=hidden)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("most-row = 1", "sets most-row, which is not a setting"),
        ("[copy]\nmost-row = 1", "sets most-row in .copy., which is not a setting"),
        ("[copying]\n", "which is not a job: copy, read"),
        ('most-rows = "7"', "which is not a whole number"),
        ("most-rows = true", "which is not a whole number"),
        ("topic = [1]", "not a list of texts"),
        ("[copy]\nrate = 'fast'", "sets rate in .copy. to 'fast', which is not a number"),
        ('[[copy]]\ninto = "/x"', "sets copy, which is not a setting"),
        ("[[folder]]\nx = 1", "sets folder to .*, which is not a path"),
        ("into = ''", "--into of copy is empty: give a path"),
        ("topic = ", "is not TOML"),
        ("topic = 'a'", "copy needs --into"),
    ],
)
def test_unknown_names_and_wrong_types_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(JobError, match=words):
        read(tmp_path, text)


def test_options_have_the_names_and_defaults_of_the_fields() -> None:
    """An option that is not given leaves the field's default."""
    taken: dict[str, object] = {}
    command = click.Command("copy", params=[*click_options(Copying)], callback=lambda **values: taken.update(values))
    command.main(["--into", "/x", "--topic", "a", "--topic", "b", "--is-loud"], standalone_mode=False)
    assert build_settings("copy", Copying, taken) == Copying(into=Path("/x"), topic=("a", "b"), is_loud=True)


def test_a_line_without_a_name_is_refused() -> None:
    assert parse_pairs("kafka", ["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}
    with pytest.raises(ClientError, match="kafka takes NAME=VALUE"):
        parse_pairs("kafka", ["a.b"])


GATEWAY_EXITED = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
STOPPED = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."
JVM_ENDED = r"Spark's JVM ended, killed or out of memory: run the job again\."


@pytest.mark.parametrize(
    ("failure", "log", "sentence"),
    [
        ("Job aborted.\nCaused by: java.io.IOException: No space left on device\n\tat x", "", "The disk is full: .*"),
        (
            "An error occurred while calling o1.\norg.apache.X: Job aborted\nCaused by: a.b.OddException: too odd\n\tat y",
            "",
            "Spark failed with OddException: too odd",
        ),
        (
            "An error occurred while calling o1.\n: a.b.OddException: [ODD] too odd\n\tat y",
            "",
            r"Spark failed with OddException: \[ODD\] too odd",
        ),
        (ConnectionRefusedError(111, "Connection refused"), "", JVM_ENDED),
        ("An error occurred while calling o38.sc", "", JVM_ENDED),
        ("Error while sending or receiving", "", JVM_ENDED),
        ("Answer from Java side is empty", "", JVM_ENDED),
        ("functions does not exist in the JVM", "", JVM_ENDED),
        (
            "An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x([]) does not exist",
            "",
            r"Spark failed with Py4JException: Method x\(\[\]\) does not exist",
        ),
        (
            STOPPED,
            "ERROR StandaloneSchedulerBackend: Application has been killed. Reason: All masters are unresponsive! Giving up.",
            r"No Spark master answers at the address given with --master: .*",
        ),
        (STOPPED, "something else", ".*stopped SparkContext.*"),
        (
            GATEWAY_EXITED,
            "Invalid maximum heap size: -Xmxlots\nError: Could not create the Java Virtual Machine.\n",
            r"Spark did not start: Invalid maximum heap size: -Xmxlots\.",
        ),
        (
            GATEWAY_EXITED,
            "WARNING: Using incubator modules\n\t::  UNRESOLVED DEPENDENCIES  ::\n",
            r"Spark's jars are missing and could not be downloaded: see docs/pipeline.md\.",
        ),
        (
            GATEWAY_EXITED,
            'Exception in thread "main" a.b.SparkException: Cluster mode is odd.\n\tat x',
            r"Spark did not start: .*Cluster mode is odd\.",
        ),
        (GATEWAY_EXITED, "", r"Spark did not start: its JVM ended at once\."),
    ],
    ids=[
        *("a full disk", "an unknown cause", "an exception without a cause", "a refused connection to the JVM"),
        *(
            "a call of a lost JVM",
            "a lost JVM",
            "a JVM without an answer",
            "a look-up in a lost JVM",
            "a missing Java method",
        ),
        *("a stopped context, whose log has the reason", "a stopped context without a reason"),
        *("a JVM option", "missing jars", "an exception before Spark's start", "no reason in the log"),
    ],
)
def test_a_failure_of_spark_is_one_sentence(failure: str | Exception, log: str, sentence: str) -> None:
    error = RuntimeError(failure) if isinstance(failure, str) else failure
    assert re.fullmatch(sentence, describe_failure(error, log))


def test_an_archive_refuses_dead_letters_that_it_would_archive() -> None:
    """Also if their topic is created by the first malformed record, and matches the pattern."""
    for chosen in ({"topic": ("malformed",)}, {"pattern": ".*"}, {"pattern": "flights|mal.*"}):
        with pytest.raises(JobError, match="malformed is archived itself"):
            ArchiveSettings(into="/x", dead_letters="malformed", **chosen)
    assert ArchiveSettings(into="/x", dead_letters="malformed", pattern="mal").pattern == "mal"
    with pytest.raises(JobError, match=r"--pattern '\[' is not a regular expression"):
        ArchiveSettings(into="/x", pattern="[")


def test_a_continuous_archive_refuses_to_trim() -> None:
    with pytest.raises(JobError, match="--trim and --continuous exclude each other"):
        ArchiveSettings(into="/x", topic=("flights",), continuous=True, trim=True)
