"""Finds the jars of Spark's Kafka connector and of its formats.

RULES    1. Kafka needs four jars; their other dependencies ship with PySpark in the same or newer versions. The formats avro,
            delta and iceberg add their own jars when a job needs them.
         2. Sources, in this order: the cache; Maven, with the mirrors of its own settings; `spark.jars.packages`, which needs
            direct access to a repository. The result names the source.
         3. The cache is complete or absent: jars are downloaded to a temporary folder and renamed.
NOT HERE Apache Kafka's jars for the tests (`tests/support/kafka.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from barnabas.pipeline.errors import MAX_MESSAGE_CHARS, JobError

SPARK_VERSION = "4.0.0"
KAFKA_CLIENTS_VERSION = "3.9.0"
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", SPARK_VERSION),
    ("org.apache.kafka", "kafka-clients", KAFKA_CLIENTS_VERSION),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
FORMATS = {
    "avro": (("org.apache.spark", "spark-avro_2.13", SPARK_VERSION),),
    "delta": (("io.delta", "delta-spark_2.13", "4.0.0"), ("io.delta", "delta-storage", "4.0.0")),
    "iceberg": (("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", "1.10.0"),),
}
SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "4",
    }
}
"""Settings that a format needs at the session's start; of the default 50 snapshot partitions most would be empty."""
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
MAVEN_TIMEOUT_S = 600
ANSI_COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Connector(NamedTuple):
    """A session's settings for the jars, and their source in words."""

    settings: dict[str, str]
    source: str


def jar_folder() -> Path:
    """Returns the cache: $BARNABAS_SPARK_JARS, or a folder in the user's cache."""
    named = os.environ.get("BARNABAS_SPARK_JARS")
    if named:
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "barnabas" / f"spark-kafka-{SPARK_VERSION}"


def find_connector(formats: Sequence[str] = ()) -> Connector:
    """Finds the connector and the jars of these formats (rule 2)."""
    folder = jar_folder()
    artifacts = [*JARS, *(jar for name in formats for jar in FORMATS[name])]
    paths = [folder / f"{artifact}-{version}.jar" for _, artifact, version in artifacts]
    count = "four jars" if len(paths) == len(JARS) else f"{len(paths)} jars"
    settings = {name: value for table_format in formats for name, value in SETTINGS.get(table_format, {}).items()}
    if all(path.is_file() for path in paths):
        return Connector(_local(paths) | settings, f"{count} in {folder}")
    if shutil.which("mvn") is not None:
        error = _copy_with_maven(folder, artifacts)
        if error is None:
            return Connector(_local(paths) | settings, f"{count} fetched by Maven into {folder}")
        return Connector(_packages(formats) | settings, f"spark.jars.packages, since Maven failed: {error}")
    return Connector(_packages(formats) | settings, "spark.jars.packages, since there is no mvn on the path")


def _local(paths: list[Path]) -> dict[str, str]:
    return {"spark.jars": ",".join(str(path) for path in paths)}


def _packages(formats: Sequence[str]) -> dict[str, str]:
    return {
        "spark.jars.packages": ",".join(
            ":".join(jar) for jar in (JARS[0], *(j for name in formats for j in FORMATS[name]))
        )
    }


def _copy_with_maven(folder: Path, artifacts: Sequence[tuple[str, str, str]]) -> str | None:
    """Fills the cache; returns None or Maven's error."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return _run_maven(folder, artifacts)
    except subprocess.TimeoutExpired:
        return f"it was not done after {MAVEN_TIMEOUT_S} s"
    except OSError as failure:
        message = f"Spark's jars cannot be kept in {folder}: {failure.strerror}"
        raise JobError(f"{message}; BARNABAS_SPARK_JARS names another folder.") from failure


def _run_maven(folder: Path, artifacts: Sequence[tuple[str, str, str]]) -> str | None:
    with tempfile.TemporaryDirectory(prefix=".jars-", dir=folder.parent) as temporary:
        work = Path(temporary)
        pom = work / "pom.xml"
        pom.write_text(_pom(artifacts))
        outcome = subprocess.run(
            ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(pom), COPY_GOAL, f"-DoutputDirectory={work / 'jars'}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAVEN_TIMEOUT_S,
            check=False,
        )
        if outcome.returncode != 0:
            lines = ANSI_COLOUR.sub("", outcome.stdout + outcome.stderr).strip().splitlines()
            return lines[0].removeprefix("[ERROR] ")[:MAX_MESSAGE_CHARS] if lines else f"exit code {outcome.returncode}"
        folder.mkdir(exist_ok=True)
        for jar in (work / "jars").iterdir():
            jar.replace(folder / jar.name)
    return None


def _pom(artifacts: Sequence[tuple[str, str, str]]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for group, artifact, version in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>barnabas</groupId><artifactId>spark-kafka</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
