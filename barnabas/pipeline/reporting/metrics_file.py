"""Figures as Prometheus' text, in a file for node_exporter's textfile collector.

RULES    1. The file is replaced as a whole: nobody reads half of it.
         2. What is not known is not there.
NOT HERE Which figures (`progress.py` of jobs, `progress_listener.py` of streams).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Sample(NamedTuple):
    """A figure, and of what it is."""

    name: str
    labels: Mapping[str, str]
    value: float


def metrics_text(samples: Iterable[Sample], counters: str = "_total") -> str:
    """The samples by name, in the order of their first ones; names that end so are counters, the others gauges."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines = []
    for name, some in by_name.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith(counters) else 'gauge'}")
        lines += [f"{name}{{{_labels(one.labels)}}} {one.value}" for one in some]
    return "\n".join([*lines, ""])


def replace_file(path: Path, text: str) -> None:
    """Put the text in the file's place (rule 1)."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
