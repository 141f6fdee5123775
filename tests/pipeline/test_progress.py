"""How far a job is: rate and time left from its steps, the bar of a terminal, the file of metrics."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from barnabas.pipeline.reporting.progress import Progress
from barnabas.pipeline.reporting.reporter import Telling

STEP = {"round": 0, "records": 1000, "bytes": 50_000, "seconds": 2.0, "behind": 3000}


def values_of(path: Path) -> dict[str, float]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert all('{job="archive"}' in line for line in lines)
    return {line.partition("{")[0].removeprefix("barnabas_job_"): float(line.split()[-1]) for line in lines}


def test_the_time_left_is_what_is_behind_by_the_rate_so_far() -> None:
    """progress.py rule 1; steps without records or without `behind` say nothing about it."""
    progress = Progress()
    assert (progress.rate, progress.left_s, progress.words()) == (None, None, [])
    progress.take(STEP)
    progress.take({"round": 1, "records": 500, "seconds": 1.0, "behind": 1000})
    progress.take({"round": 2, "joined_files": 4})
    assert (progress.rate, progress.left_s) == (500.0, 2.0)
    assert progress.words() == ["500 records/s", "about 2 s left"]


def test_metrics_follow_the_steps_and_say_how_it_ended(tmp_path: Path) -> None:
    """progress.py rule 2; metrics_file.py rules 1 and 2."""
    path = tmp_path / "archive.prom"
    telling = Telling("archive", as_json=True, metrics=path)
    first = values_of(path)
    assert (first["steps_total"], first["running"]) == (0, 1)
    assert not {"records_behind", "succeeded", "records_per_second"} & first.keys()
    telling.step(STEP)
    telling.step({**STEP, "malformed": 3, "behind": 0})
    during = values_of(path)
    assert (during["steps_total"], during["records_total"], during["malformed_total"]) == (2, 2000, 3)
    assert (during["records_per_second"], during["records_behind"]) == (500, 0)
    assert "seconds_left" not in during, "nothing is behind"
    telling.ended(succeeded=False)
    after = values_of(path)
    assert (after["running"], after["succeeded"], after["records_total"]) == (0, 0, 2000)
    assert "# TYPE barnabas_job_records_total counter" in path.read_text()
    assert "# TYPE barnabas_job_records_behind gauge" in path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["archive.prom"]


def test_metrics_that_cannot_be_written_do_not_end_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """progress.py rule 3."""
    telling = Telling("archive", as_json=True, metrics=tmp_path / "no-such-folder" / "archive.prom")
    telling.step(STEP)
    telling.ended(succeeded=True)
    assert "could not be written" in caplog.text


def test_a_terminal_gets_one_line_with_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """telling.py rule 3: steps that say what is behind are in the bar, others are lines, and a pipe gets lines only."""
    screen = io.StringIO()
    telling = Telling("archive", as_json=False, terminal=Console(file=screen, force_terminal=True, width=120))
    telling.step(STEP)
    telling.step({"round": 1, "joined_files": 4})
    telling.ended(succeeded=True)
    assert "1,000 records, 3,000 behind, 500 records/s, about 6 s left" in screen.getvalue()
    assert " 25%" in screen.getvalue()
    assert "joined files 4" in capsys.readouterr().err
    Telling("archive", as_json=False, terminal=Console(file=screen)).step(STEP)
    assert "behind 3,000, 500 records/s, about 6 s left" in capsys.readouterr().err
