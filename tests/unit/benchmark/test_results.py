"""The results of a benchmark: quartiles of the rounds."""

from __future__ import annotations

import pytest

from tests.benchmark.load.meter import Outcome
from tests.benchmark.report import tables
from tests.benchmark.report.rows import OURS, THEIRS, Quartiles, Results


@pytest.mark.parametrize(
    ("rounds", "quartiles"),
    [
        ([4.0], (4.0, 4.0, 4.0)),
        ([1.0, 3.0], (1.5, 2.0, 2.5)),
        ([9.0, 1.0, 2.0], (1.5, 2.0, 5.5)),
        ([5.0, 1.0, 100.0, 2.0, 4.0], (2.0, 4.0, 5.0)),
    ],
)
def test_quartiles_are_interpolated_between_rounds(rounds: list[float], quartiles: tuple[float, ...]) -> None:
    assert Quartiles.of(rounds) == quartiles


def test_a_ratio_compares_the_two_brokers_of_a_round() -> None:
    """The quartiles are those of the ratios, not ratios of quartiles."""
    results = Results("x", {})
    for ours, theirs in ((1.0, 2.0), (10.0, 10.0), (300.0, 100.0)):
        results.add("load", OURS, Outcome({"us": ours}))
        results.add("load", THEIRS, Outcome({"us": theirs}))
    assert results.rows[0].ratio == (0.75, 1.0, 2.0)


def test_the_table_names_interpreter_and_build() -> None:
    builds = {OURS: "barnabas 1.0, commit abc"}
    settings = {
        "rounds": 1,
        "seconds": 60.0,
        "interpreter": "CPython 3.11.2 (PGO), /usr/bin/python3.11",
        "builds": builds,
    }
    text = tables.markdown(Results("x", settings))
    assert "Barnabas: barnabas 1.0, commit abc, on CPython 3.11.2 (PGO), /usr/bin/python3.11" in text
