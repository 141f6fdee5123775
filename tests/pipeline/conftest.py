"""One Spark session per test process: it costs ten seconds and 1 GiB. A topic and an archive for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def java() -> None:
    """Skips tests without a suitable Java."""
    pytest.importorskip("pyspark")
    from barnabas.pipeline.errors import JobError
    from barnabas.pipeline.session import check_java

    try:
        check_java()
    except JobError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with the Kafka connector and, if available, the jars of all formats."""
    from barnabas.pipeline.session import start_session
    from barnabas.pipeline.spark.jars import FORMATS, find_connector

    formats = [name for name in FORMATS if "spark.jars" in find_connector([name]).settings]
    scratch = tmp_path_factory.mktemp("spark")
    session, source = start_session("tests", scratch, scratch / "spark.log", formats=formats)
    print(f"Spark's connector: {source}")
    yield session
    session.stop()


@pytest.fixture
def topic(kafka_broker: Any, tmp_path: Path) -> str:
    """A topic of this test, with two partitions and without retention."""
    from tests.pipeline.topics import create

    create(kafka_broker.bootstrap, tmp_path.name)
    return tmp_path.name


@pytest.fixture
def archiving(kafka_broker: Any, topic: str, tmp_path: Path) -> Any:
    """The settings of an archive of this topic."""
    from barnabas.pipeline import ArchiveSettings

    return ArchiveSettings(bootstrap=kafka_broker.bootstrap, into=tmp_path / "a", topic=(topic,))


@pytest.fixture
def archive_folder(tmp_path: Path) -> Any:
    """An archive without rounds."""
    from barnabas.pipeline.store.folder import ArchiveFolder

    folder = ArchiveFolder(tmp_path / "archive")
    with folder.lock():
        folder.create("cluster", {"format": "raw", "schema": "", "framing": "plain"})
    return folder
