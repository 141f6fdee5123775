"""A job's progress: rate and remaining time, the terminal's bar, the metrics file."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from barnabas.pipeline.reporting.progress import JobProgress
from barnabas.pipeline.reporting.reporter import Reporter

STEP = {"round": 0, "records": 1000, "bytes": 50_000, "seconds": 2.0, "behind": 3000}


def values_of(path: Path) -> dict[str, float]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert all('{job="archive"}' in line for line in lines)
    return {line.partition("{")[0].removeprefix("barnabas_job_"): float(line.split()[-1]) for line in lines}


def test_the_remaining_time_is_the_lag_divided_by_the_rate() -> None:
    progress = JobProgress()
    assert (progress.rate, progress.remaining_s, progress.summary()) == (None, None, [])
    progress.add_step(STEP)
    progress.add_step({"round": 1, "records": 500, "seconds": 1.0, "behind": 1000})
    progress.add_step({"round": 2, "compacted_files": 4})
    assert (progress.rate, progress.remaining_s) == (500.0, 2.0)
    assert progress.summary() == ["500 records/s", "about 2 s left"]


def test_metrics_follow_the_steps_and_hold_the_result(tmp_path: Path) -> None:
    path = tmp_path / "archive.prom"
    reporter = Reporter("archive", as_json=True, metrics=path)
    first = values_of(path)
    assert (first["steps_total"], first["running"]) == (0, 1)
    assert not {"records_behind", "succeeded", "records_per_second"} & first.keys()
    reporter.step(STEP)
    reporter.step({**STEP, "malformed": 3, "behind": 0})
    during = values_of(path)
    assert (during["steps_total"], during["records_total"], during["malformed_total"]) == (2, 2000, 3)
    assert (during["records_per_second"], during["records_behind"]) == (500, 0)
    assert "seconds_left" not in during, "nothing is behind"
    reporter.finish(succeeded=False)
    after = values_of(path)
    assert (after["running"], after["succeeded"], after["records_total"]) == (0, 0, 2000)
    assert "# TYPE barnabas_job_records_total counter" in path.read_text()
    assert "# TYPE barnabas_job_records_behind gauge" in path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["archive.prom"]


def test_metrics_that_cannot_be_written_do_not_end_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter("archive", as_json=True, metrics=tmp_path / "no-such-folder" / "archive.prom")
    reporter.step(STEP)
    reporter.finish(succeeded=True)
    assert "could not be written" in caplog.text


def test_a_terminal_shows_a_bar_and_a_pipe_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    reporter = Reporter("archive", as_json=False, terminal=Console(file=screen, force_terminal=True, width=120))
    reporter.step(STEP)
    reporter.step({"round": 1, "compacted_files": 4})
    reporter.finish(succeeded=True)
    assert "1,000 records, 3,000 behind, 500 records/s, about 6 s left" in screen.getvalue()
    assert " 25%" in screen.getvalue()
    assert "compacted files 4" in capsys.readouterr().err
    Reporter("archive", as_json=False, terminal=Console(file=screen)).step(STEP)
    assert "behind 3,000, 500 records/s, about 6 s left" in capsys.readouterr().err
