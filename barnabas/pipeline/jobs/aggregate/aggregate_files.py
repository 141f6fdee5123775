"""What a version of an aggregate consists of, and how one comes from the one before it.

FORMAT   windows/final-<version>-<number>.parquet   windows that will not change any more
         windows/open-<version>-<number>.parquet    windows that may
         late/late-<version>-<number>.parquet       what came for a window when it was final
         sums/is_final=false/*.parquet              the open windows' sums, for the next round
RULES    1. What is final or late goes on into the next version by links; it is written again only when there are too many small
            files, together.
         2. `windows` and `late` have a file from the beginning, so that any reader finds the columns.
NOT HERE Making a version count (`store/versions.py`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

FINAL, OPEN, LATE = "final", "open", "late"
WINDOWS = "windows"
SMALL_BYTES = 64 << 20
MOST_SMALL = 16


def open_sums(version: Path) -> Path:
    """Where a version keeps the sums of its open windows."""
    return version / "sums" / "is_final=false"


class Draft:
    """A version that is being written."""

    def __init__(self, staged: Path, number: int, before: Path | None) -> None:
        self._staged = staged
        self._number = number
        self._before = before

    def sums(self, sums: DataFrame, is_final: Column) -> DataFrame:
        """Keep the sums of all windows; the answer has the column `is_final`."""
        target = self._staged / "sums"
        schema = sums.withColumn("is_final", f.lit(False)).schema
        sums.withColumn("is_final", is_final).write.partitionBy("is_final").parquet(str(target))
        open_sums(self._staged).mkdir(exist_ok=True)
        return sums.sparkSession.read.schema(schema).parquet(str(target))

    def windows(self, rows: DataFrame) -> None:
        """What a reader sees of the windows, with the column `is_final`."""
        kind = f.when(f.col("is_final"), f.lit(FINAL)).otherwise(f.lit(OPEN))
        self._write(rows, kind, WINDOWS, FINAL)
        shutil.rmtree(self._staged / "sums" / "is_final=true", ignore_errors=True)

    def late(self, rows: DataFrame | None) -> None:
        """What came late in this round."""
        self._write(rows, f.lit(LATE), LATE, LATE)

    def counts(self) -> dict[str, int]:
        """How many rows there are of windows that are final, and that are open."""
        found = {FINAL: 0, OPEN: 0}
        for path in (self._staged / WINDOWS).iterdir():
            found[path.name.partition("-")[0]] += pq.read_metadata(path).num_rows
        return found

    def _write(self, rows: DataFrame | None, kind: Column, folder: str, lasting: str) -> None:
        """Fill a folder: with what lasts of the version before, and with these rows."""
        target = self._staged / folder
        target.mkdir()
        kept, small = self._from_before(folder, lasting)
        for path in kept:
            os.link(path, target / path.name)
        if rows is None:
            return
        if small:
            old = rows.sparkSession.read.schema(rows.schema).parquet(*map(str, small))
            rows = rows.unionByName(old)
        scratch = self._staged / "scratch"
        ordered = rows.hint("rebalance").sortWithinPartitions(*_sortable(rows))
        ordered.withColumn("kind", kind).write.partitionBy("kind").parquet(str(scratch))
        for path in scratch.glob("kind=*"):
            self._place(path.glob("*.parquet"), target, path.name.removeprefix("kind="))
        shutil.rmtree(scratch)
        if not any(target.iterdir()):
            rows.limit(0).coalesce(1).write.parquet(str(scratch))
            self._place(scratch.glob("*.parquet"), target, lasting)
            shutil.rmtree(scratch)

    def _place(self, files: Iterable[Path], target: Path, kind: str) -> None:
        for number, path in enumerate(sorted(files)):
            path.rename(target / f"{kind}-{self._number:08d}-{number:05d}.parquet")

    def _from_before(self, folder: str, kind: str) -> tuple[list[Path], list[Path]]:
        """The files that go on as they are, and those that are to be written together (rule 1)."""
        if self._before is None:
            return [], []
        held = sorted((self._before / folder).glob(f"{kind}-*.parquet"))
        small = [path for path in held if path.stat().st_size < SMALL_BYTES]
        return ([path for path in held if path not in small], small) if len(small) > MOST_SMALL else (held, [])


def _sortable(rows: DataFrame) -> list[str]:
    """The columns that have an order."""
    return [name for name, kind in rows.dtypes if not kind.startswith(("map", "variant"))]
