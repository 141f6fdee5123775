"""The files of a version of an aggregate.

FORMAT   windows/final-<version>-<number>.parquet   windows that no longer change
         windows/open-<version>-<number>.parquet    windows that may change
         late/late-<version>-<number>.parquet       late records of final windows
         sums/is_final=false/*.parquet              the sums of open windows, for the next round
RULES    1. Final and late files are hard-linked into the next version. They are rewritten only to merge too many small files.
         2. `windows` and `late` always have a file, so that readers find the schema.
         3. Late files with the former name of a column are rewritten before others are added: all have the same columns.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from barnabas.pipeline.jobs.aggregate.windows import ARRIVAL, FORMER_ARRIVAL

FINAL, OPEN, LATE = "final", "open", "late"
WINDOWS = "windows"
SMALL_BYTES = 64 << 20
MOST_SMALL = 16


def open_sums(version: Path) -> Path:
    """Returns the folder with the sums of a version's open windows."""
    return version / "sums" / "is_final=false"


class VersionWriter:
    """Writes a version to a staging folder."""

    def __init__(self, staged: Path, number: int, previous: Path | None) -> None:
        self._staged = staged
        self._number = number
        self._previous = previous

    def sums(self, sums: DataFrame, is_final: Column) -> DataFrame:
        """Writes the sums of all windows and returns them with the column `is_final`."""
        target = self._staged / "sums"
        schema = sums.withColumn("is_final", f.lit(False)).schema
        sums.withColumn("is_final", is_final).write.partitionBy("is_final").parquet(str(target))
        open_sums(self._staged).mkdir(exist_ok=True)
        return sums.sparkSession.read.schema(schema).parquet(str(target))

    def windows(self, rows: DataFrame) -> None:
        """Writes the result rows of the windows."""
        kind = f.when(f.col("is_final"), f.lit(FINAL)).otherwise(f.lit(OPEN))
        self._write(rows, kind, WINDOWS, FINAL)
        shutil.rmtree(self._staged / "sums" / "is_final=true", ignore_errors=True)

    def late(self, rows: DataFrame | None) -> None:
        """Writes the late rows of this round."""
        self._write(rows, f.lit(LATE), LATE, LATE)

    def counts(self) -> dict[str, int]:
        """Returns the number of rows of final and of open windows."""
        found = {FINAL: 0, OPEN: 0}
        for path in (self._staged / WINDOWS).iterdir():
            found[path.name.partition("-")[0]] += pq.read_metadata(path).num_rows
        return found

    def _write(self, rows: DataFrame | None, kind: Column, folder: str, lasting: str) -> None:
        """Fills a folder with the previous version's lasting files and with these rows."""
        target = self._staged / folder
        target.mkdir()
        linked, merged = self._carried_over(folder, lasting)
        for path in (*linked, *(merged if rows is None else ())):
            os.link(path, target / path.name)
        if rows is None:
            return
        if merged:
            rows = rows.unionByName(_read_former(rows, merged))
        scratch = self._staged / "scratch"
        ordered = rows.hint("rebalance").sortWithinPartitions(*_sortable(rows))
        ordered.withColumn("kind", kind).write.partitionBy("kind").parquet(str(scratch))
        for path in scratch.glob("kind=*"):
            self._move_numbered(path.glob("*.parquet"), target, path.name.removeprefix("kind="))
        shutil.rmtree(scratch)
        if not any(target.iterdir()):
            rows.limit(0).coalesce(1).write.parquet(str(scratch))
            self._move_numbered(scratch.glob("*.parquet"), target, lasting)
            shutil.rmtree(scratch)

    def _move_numbered(self, files: Iterable[Path], target: Path, kind: str) -> None:
        for number, path in enumerate(sorted(files)):
            path.rename(target / f"{kind}-{self._number:08d}-{number:05d}.parquet")

    def _carried_over(self, folder: str, kind: str) -> tuple[list[Path], list[Path]]:
        """The previous files to link, and those to merge: small ones, or former ones (rules 1 and 3)."""
        if self._previous is None:
            return [], []
        files = sorted((self._previous / folder).glob(f"{kind}-*.parquet"))
        small = [path for path in files if path.stat().st_size < SMALL_BYTES]
        former = [path for path in files if FORMER_ARRIVAL in pq.read_schema(path).names]
        merged = {*(small if len(small) > MOST_SMALL else ()), *former}
        return [path for path in files if path not in merged], sorted(merged)


def _read_former(rows: DataFrame, files: Iterable[Path]) -> DataFrame:
    """Reads files with the columns of these rows, also files with the former name of a column (rule 3)."""
    if ARRIVAL not in rows.columns:
        return rows.sparkSession.read.schema(rows.schema).parquet(*map(str, files))
    both = rows.withColumn(FORMER_ARRIVAL, f.col(ARRIVAL)).schema
    old = rows.sparkSession.read.schema(both).parquet(*map(str, files))
    return old.withColumn(ARRIVAL, f.coalesce(ARRIVAL, FORMER_ARRIVAL)).drop(FORMER_ARRIVAL)


def _sortable(rows: DataFrame) -> list[str]:
    """The columns with an order."""
    return [name for name, kind in rows.dtypes if not kind.startswith(("map", "variant"))]
