"""Sends our code to the workers of a Spark cluster: nothing needs to be installed there.

RULES    1. Our modules are sent as a zip (`addPyFile`), once per Spark context, also on `local[N]`.
         2. Python cannot import a package with compiled parts from a zip: these are sent as an archive that Spark unpacks.
            `import_shipped` adds that folder to the path, unless the worker has the package.
         3. The zip's name contains its hash, since Spark rejects a different file with the same name.
         4. A job without Python on the workers sends nothing.
         5. Modules for workers (`sender.py`, `sources/segments.py`) import at module level only Python's standard library,
            PySpark and this module; the segment source also imports numpy and pyarrow.
NOT HERE The jars, which Spark distributes (`jars.py`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql import SparkSession

COMPILED = ("confluent_kafka", "crc32c")
COMPILED_FOLDER = "barnabas-compiled"
_shipped: set[str] = set()


def is_local_master(master: str) -> bool:
    """Whether the workers are threads of the driver's JVM (`local-cluster` starts processes)."""
    return master == "local" or master.startswith("local[")


def ship(spark: SparkSession) -> None:
    """Sends our package and the compiled ones to every worker of this session."""
    context = spark.sparkContext
    application = str(context.applicationId)
    if application in _shipped:
        return
    folder = Path(tempfile.mkdtemp(prefix="barnabas-ship-", dir=_local_dir(spark)))
    package = _zip_package(folder / "barnabas.zip")
    named = package.with_name(f"barnabas-{hashlib.sha256(package.read_bytes()).hexdigest()[:12]}.zip")
    context.addPyFile(str(package.rename(named)))
    if not is_local_master(str(context.master)):
        context.addArchive(f"{_zip_compiled(folder / 'compiled.zip')}#{COMPILED_FOLDER}")
    _shipped.add(application)


@cache
def import_shipped(package: str) -> Any:
    """Imports a compiled package on a worker: its own, or the shipped one."""
    if importlib.util.find_spec(package) is None:
        sys.path.append(str(Path(SparkFiles.getRootDirectory()) / COMPILED_FOLDER))
    return importlib.import_module(package)


def _local_dir(spark: SparkSession) -> str | None:
    named = spark.conf.get("spark.local.dir", None)
    return named if named and Path(named).is_dir() else None


def _zip_package(target: Path) -> Path:
    package = Path(__file__).parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sorted(package.rglob("*.py")):
            if "_daemon" not in path.parts:
                archive.write(path, path.relative_to(package.parent))
    return target


def _zip_compiled(target: Path) -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        for name in COMPILED:
            spec = importlib.util.find_spec(name)
            assert spec is not None, "the driver has the package"
            assert spec.origin is not None, "a package has a file"
            package = Path(spec.origin).parent
            for folder in (package, *package.parent.glob(f"{name}[.-]*")):  # its libraries, and its version
                for path in filter(Path.is_file, sorted(folder.rglob("*"))):
                    archive.write(path, path.relative_to(package.parent))
    return target
