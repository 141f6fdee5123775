"""The space of log directories on the metrics page (broker/node/log_dir_metrics.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.node.log_dir_metrics import LogDirMetrics, Space
from replication.completion import Completion


def test_a_second_page_at_the_same_time_does_not_take_the_spaces_of_the_first() -> None:
    usage = SimpleNamespace(run=None, total_bytes=2, usable_bytes=1)
    logs = SimpleNamespace(directories={"/d": None}, disk_usage=lambda _directory, _logs: usage)
    measurements: list[Completion[None]] = []

    def read(_directory: str, _run: Any) -> Completion[None]:
        measurements.append(Completion())
        return measurements[-1]

    replicas: Any = SimpleNamespace(log_manager=logs)
    io: Any = SimpleNamespace(read=read)
    metrics = LogDirMetrics(replicas, io)
    first = metrics.prepare()
    next(first)
    measurements[0].complete(None)
    assert list(first) == []
    next(metrics.prepare())
    assert metrics.spaces == {"/d": Space(2, 1)}
