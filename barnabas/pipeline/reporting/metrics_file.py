"""Metrics in Prometheus' text format, in a file for node_exporter's textfile collector.

RULES    1. The file is replaced atomically.
         2. Unknown values are left out.
NOT HERE The metrics (`progress.py` for jobs, `progress_listener.py` for streams).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Sample(NamedTuple):
    """A metric with its labels and value."""

    name: str
    labels: Mapping[str, str]
    value: float


def write_metrics(path: Path, samples: Iterable[Sample]) -> None:
    """Replaces the file with the samples, grouped by name. Names that end in `_total` are counters, the others gauges."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines = []
    for name, of_name in by_name.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{name}{{{_labels(sample.labels)}}} {sample.value}" for sample in of_name]
    beside = path.with_name(f".{path.name}.new")
    beside.write_text("\n".join([*lines, ""]))
    beside.replace(path)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
