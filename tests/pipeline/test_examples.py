"""Runs the commands in the README of docs/examples, on fewer records."""

from __future__ import annotations

import contextlib
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from barnabas import Broker
from barnabas.pipeline import session
from barnabas.pipeline.command import main
from barnabas.pipeline.demo.flights import read_flights
from barnabas.pipeline.demo.produce import PARTITIONS, produce_flights
from tests.pipeline.topics import create

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", (EXAMPLES / "README.md").read_text(), re.DOTALL | re.MULTILINE)
ROWS = 2_000


class Done(BaseException):
    """Replaces SystemExit."""


def ended(code: object = None) -> None:
    """Replaces sys.exit."""
    assert not code, code
    raise Done


class Example:
    """A copy of the folder; its commands run in this process with the test's session."""

    def __init__(self, spark: Any, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bootstrap = bootstrap
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(sys, "exit", ended)
        monkeypatch.setattr(type(spark), "stop", lambda _: None)
        monkeypatch.setattr(session, "start_session", lambda *_, **__: (spark, "the session of the tests"))

    def run(self, line: str, *more: str) -> None:
        """Runs a line of the README."""
        words = [*shlex.split(line), "--bootstrap", self._bootstrap, *more]
        name = words.pop(0)
        if name == "barnabas":
            assert words[0] == "pipeline"
            assert main(words[1:]) == 0, line
            return
        self._monkeypatch.setattr(sys, "argv", words)
        with contextlib.suppress(Done):
            runpy.run_path(words[0], run_name="__main__")


@pytest.fixture
def example(spark: Any, kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path / "examples")
    return Example(spark, kafka_broker.bootstrap, monkeypatch)


def test_the_flights_are_archived_audited_and_counted(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    lines = BLOCKS[0].splitlines()
    assert [line.split()[2] for line in lines if line.startswith("barnabas")] == [
        "archive",
        "audit",
        "table",
        "aggregate",
    ]
    for line in lines:
        example.run(line, *(["--rows", str(ROWS)] if line.startswith("python") else []))
    original = capsys.readouterr().out
    assert "all as counted from the CSV" in original
    assert f"records: {ROWS:,}" in original
    assert Path("data/audit.html").stat().st_size > 1000
    latest = {bytes(row["key"]).decode() for row in pq.read_table("data/latest/current").to_pylist()}
    assert latest == {flight.carrier for flight in read_flights(ROWS)}


def test_broker_metrics_become_a_table_and_windows(example: Example) -> None:
    sampling, *jobs = BLOCKS[1].splitlines()
    assert [line.split()[2] for line in jobs] == ["table", "aggregate"]
    example.run(sampling, "--every", "0.1", "--times", "3")
    for line in jobs:
        example.run(line)
    rows = pq.read_table("data/minutes/current/windows").to_pylist()
    of_itself = [row for row in rows if row["topic"] == "broker-metrics" and row["group"] is None]
    assert max(row["log_end"] for row in of_itself) > min(row["log_end_before"] for row in of_itself) >= 0
    assert max(row["bytes"] for row in of_itself) > 0
    now = {bytes(row["key"]).decode() for row in pq.read_table("data/now/current").to_pylist()}
    assert "broker-metrics-0" in now
    example.run(sampling, "--times", "1")
    example.run(jobs[1])
    rows = pq.read_table("data/minutes/current/windows").to_pylist()
    assert any(str(row["group"]).startswith("barnabas-aggregate-") and row["lag"] >= 0 for row in rows)


def test_the_python_blocks_of_the_docs_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/pipeline.md, as one notebook; folders and broker are replaced."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", EXAMPLES.with_name("pipeline.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) == 3
    monkeypatch.setattr(session, "start_session", lambda *_: (spark, "the session of the tests"))
    followers: list[Any] = []
    monkeypatch.setattr(type(spark.streams), "addListener", lambda _, follower: followers.append(follower))
    names: dict[str, Any] = {}
    with Broker(data_dir=tmp_path / "logs", settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        create(broker.bootstrap, "flights", PARTITIONS)
        produce_flights(broker.bootstrap, "flights", read_flights(100), lambda _: None)
        code = "".join(blocks)
        for original, replacement in (
            ("localhost:9092", broker.bootstrap),
            ("/data/archive", str(tmp_path / "archive")),
            ("/var/lib/barnabas/data", str(tmp_path / "logs")),
            ("/var/lib/node_exporter", str(tmp_path)),
        ):
            assert original in code
            code = code.replace(original, replacement)
        exec(compile(code, "docs/pipeline.md", "exec"), names)
        assert names["report"].records == names["records"].count() == 100
        assert len(followers) == 1
