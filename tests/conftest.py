"""What every test run does, whichever tests it runs.

MARKS    long          takes seconds to minutes; `make test` leaves it out, `make test-all` runs it
         needs_kafka   compares with a live Apache Kafka or uses its jars; skipped, with the reason, where these are missing;
                       `make test` leaves it out too
         smoke         one live run of its kind, which `make test` keeps although it is long or needs Kafka
         golden        asks a live Apache Kafka for the answers that tests/goldens records; `make goldens` writes them
         pure_python   replaces parts of modules in a way that compiled ones refuse; skipped on a compiled build
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import hypothesis
import pytest

from barnabas.__main__ import is_compiled
from tests.support import file_order, time_budget
from tests.support.kafka import why_no_kafka
from tests.support.stall_lines import StallLines
from tests.support.storage_engine import use_engine_of, why_segments_only


def pytest_addoption(parser: pytest.Parser) -> None:
    time_budget.add_options(parser)
    file_order.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Engine and stall lines of brokers; marks, the time budget and the order of files; a slow machine fails no property."""
    use_engine_of()
    hypothesis.settings.register_profile("no-deadline", deadline=None)
    hypothesis.settings.load_profile("no-deadline")
    plugin = StallLines()
    plugin.attach()
    config.pluginmanager.register(plugin, "stall-lines")
    config.pluginmanager.register(time_budget.TimeBudget(config), "time-budget")
    config.pluginmanager.register(file_order.FileOrder(config), "file-order")
    for line in (
        "long: takes seconds to minutes; left out of make test",
        "needs_kafka: needs Apache Kafka's jars and a Java; left out of make test",
        "smoke: a live run of its kind that make test keeps",
        "golden: asks a live Apache Kafka for the answers that tests/goldens records; make goldens writes them",
        "pure_python(reason): cannot run on a compiled build",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run: without Apache Kafka, with another storage engine, or on a compiled build."""
    reason = why_no_kafka()
    for item in items:
        if reason is not None and item.get_closest_marker("needs_kafka"):
            item.add_marker(pytest.mark.skip(reason=reason))
        if (why_segments := why_segments_only(item.nodeid)) is not None:
            item.add_marker(pytest.mark.skip(reason=f"STORAGE_ENGINE: {why_segments}"))
        pure = item.get_closest_marker("pure_python")
        if pure is not None and is_compiled():
            item.add_marker(pytest.mark.skip(reason=f"compiled build: {pure.args[0]}"))


def pytest_report_header() -> str:
    """The build under test: after `make compile`, a change of a compiled module has no effect."""
    return f"modules of the hot path: {'compiled' if is_compiled() else 'pure Python'}"


@pytest.fixture(autouse=True)
def _restore_log_levels() -> Iterator[None]:
    """A test that changes the level of a logger (KIP-412) does not affect the next one."""
    before = {name: logger.level for name, logger in _loggers().items()}
    yield
    for name, logger in _loggers().items():
        logger.setLevel(before.get(name, logging.NOTSET))


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict.items()
    ours = {name: one for name, one in known if name.startswith("barnabas") and isinstance(one, logging.Logger)}
    return {"root": logging.root, **ours}
