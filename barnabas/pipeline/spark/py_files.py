"""What the workers of a Spark cluster need of us travels with the job: nothing is installed on them beforehand.

RULES    1. Our own modules go as a zip (`addPyFile`), once for each Spark context, also on `local[N]`: one way for all.
         2. A client with a compiled part cannot be imported from a zip: it goes as an archive that Spark unpacks, and
            `shipped_client` puts that folder on the path where the worker has no such client of its own.
         3. The zip is named by its content: Spark refuses another file of the same name.
         4. A job that runs no Python on the workers ships nothing.
         5. What a worker imports (`sender.py`, `sources/segments.py`) imports this module, and neither imports anything but
            Python's own modules and Spark's when it is imported; the segments take numpy and pyarrow besides.
NOT HERE The jars, which Spark itself hands out (`jars.py`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql import SparkSession

CLIENT = "confluent_kafka"
CLIENT_FOLDER = "barnabas-client"
_shipped: set[str] = set()


def runs_here(master: str) -> bool:
    """Whether the workers are threads of the driver's JVM (`local-cluster` starts others, for trials)."""
    return master == "local" or master.startswith("local[")


def ship(spark: SparkSession) -> None:
    """Have every worker of this session import what this process imports of `barnabas`, and the client."""
    context = spark.sparkContext
    application = str(context.applicationId)
    if application in _shipped:
        return
    folder = Path(tempfile.mkdtemp(prefix="barnabas-ship-", dir=_local_dir(spark)))
    package = _zip_package(folder / "barnabas.zip")
    named = package.with_name(f"barnabas-{hashlib.sha256(package.read_bytes()).hexdigest()[:12]}.zip")
    context.addPyFile(str(package.rename(named)))
    if not runs_here(str(context.master)):
        context.addArchive(f"{_zip_client(folder / 'client.zip')}#{CLIENT_FOLDER}")
    _shipped.add(application)


def shipped_client() -> Any:
    """The Kafka client on a worker: its own, or the one that came with the job."""
    if importlib.util.find_spec(CLIENT) is None:
        sys.path.append(str(Path(SparkFiles.getRootDirectory()) / CLIENT_FOLDER))
    return importlib.import_module(CLIENT)


def _local_dir(spark: SparkSession) -> str | None:
    named = spark.conf.get("spark.local.dir", None)
    return named if named and Path(named).is_dir() else None


def _zip_package(target: Path) -> Path:
    package = Path(__file__).parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*.py")):
            if "_daemon" not in path.parts:
                archive.write(path, path.relative_to(package.parent))
    return target


def _zip_client(target: Path) -> Path:
    spec = importlib.util.find_spec(CLIENT)
    assert spec is not None, "the client is there: the job has asked the broker with it"
    assert spec.origin is not None, "a package has a file"
    package = Path(spec.origin).parent
    folders = [package, package.with_name(f"{CLIENT}.libs")]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()):
            archive.write(path, path.relative_to(package.parent))
    return target
