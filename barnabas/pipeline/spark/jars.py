"""Spark's Kafka connector and its formats: which jars they take, and how they come here.

RULES    1. Four jars are enough for Kafka; what else they name ships with PySpark, in the same versions or newer. A format
            that Spark has not itself (avro, delta, iceberg) adds its own, when a job asks for it.
         2. In this order: the cache; Maven, which follows whatever mirror its own settings name; Spark's own
            `spark.jars.packages`, which needs a repository it can reach directly. Whoever asks is told which it was.
         3. The cache is complete or absent: jars are copied beside it and moved in place.
NOT HERE Apache Kafka's jars for our tests (`tests/support/kafka.py`).
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

from barnabas.pipeline.errors import LONGEST, JobError

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
    },
}
"""What a session with a format must be told when it starts; of 50 parts of a log most would be empty."""
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
MAVEN_LIMIT_S = 600
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Connector(NamedTuple):
    """What a Spark session is told: settings, and where they come from in words."""

    settings: dict[str, str]
    source: str


def jar_folder() -> Path:
    """The cache: $BARNABAS_SPARK_JARS, or a folder of its own below the user's cache."""
    named = os.environ.get("BARNABAS_SPARK_JARS")
    if named:
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "barnabas" / f"spark-kafka-{SPARK_VERSION}"


def find_connector(formats: Sequence[str] = ()) -> Connector:
    """The connector, and the jars of these formats, by the first way that is open here."""
    folder = jar_folder()
    wanted = [*JARS, *(jar for name in formats for jar in FORMATS[name])]
    paths = [folder / f"{artifact}-{version}.jar" for _, artifact, version in wanted]
    count = "four jars" if len(paths) == len(JARS) else f"{len(paths)} jars"
    told = {name: value for one in formats for name, value in SETTINGS.get(one, {}).items()}
    if all(path.is_file() for path in paths):
        return Connector(_local(paths) | told, f"{count} in {folder}")
    if shutil.which("mvn") is not None:
        refusal = _copy_with_maven(folder, wanted)
        if refusal is None:
            return Connector(_local(paths) | told, f"{count} fetched by Maven into {folder}")
        return Connector(_packages(formats) | told, f"spark.jars.packages, since Maven failed: {refusal}")
    return Connector(_packages(formats) | told, "spark.jars.packages, since there is no mvn on the path")


def _local(paths: list[Path]) -> dict[str, str]:
    return {"spark.jars": ",".join(str(path) for path in paths)}


def _packages(formats: Sequence[str]) -> dict[str, str]:
    return {
        "spark.jars.packages": ",".join(
            ":".join(jar) for jar in (JARS[0], *(j for name in formats for j in FORMATS[name]))
        )
    }


def _copy_with_maven(folder: Path, wanted: Sequence[tuple[str, str, str]]) -> str | None:
    """Fill the folder; the answer is None or what Maven says."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return _copied(folder, wanted)
    except subprocess.TimeoutExpired:
        return f"it was not done after {MAVEN_LIMIT_S} s"
    except OSError as failure:
        words = f"Spark's jars cannot be kept in {folder}: {failure.strerror}"
        raise JobError(f"{words}; BARNABAS_SPARK_JARS names another folder.") from failure


def _copied(folder: Path, wanted: Sequence[tuple[str, str, str]]) -> str | None:
    with tempfile.TemporaryDirectory(prefix=".jars-", dir=folder.parent) as temporary:
        work = Path(temporary)
        pom = work / "pom.xml"
        pom.write_text(_pom(wanted))
        outcome = subprocess.run(
            ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(pom), COPY, f"-DoutputDirectory={work / 'jars'}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAVEN_LIMIT_S,
            check=False,
        )
        if outcome.returncode != 0:
            lines = COLOUR.sub("", outcome.stdout + outcome.stderr).strip().splitlines()
            return lines[0].removeprefix("[ERROR] ")[:LONGEST] if lines else f"exit code {outcome.returncode}"
        folder.mkdir(exist_ok=True)
        for jar in (work / "jars").iterdir():
            jar.replace(folder / jar.name)
    return None


def _pom(wanted: Sequence[tuple[str, str, str]]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for group, artifact, version in wanted
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>barnabas</groupId><artifactId>spark-kafka</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
