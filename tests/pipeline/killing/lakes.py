"""Archives in tables of Delta and Iceberg that are killed.

RULES    1. After every kill Spark's own reader of the table finds no record twice and none that was not sent. It may find a
            round that the manifest has not: whole or not at all, which a later run has to respect.
         2. In the end it finds every record once, and the audit agrees (`life.py`).
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from tests.pipeline.killing.archives import Archive
from tests.pipeline.killing.job import QUICK_JVM, ROOT
from tests.pipeline.killing.story import Moment, counted


class Lake(Archive):
    """A table, of a format and with a pattern for its commits' files."""

    format: ClassVar[str]
    commits: ClassVar[str]

    def words(self) -> list[str]:
        """Into a table."""
        return [*super().words(), "--format", self.format]

    def moments(self) -> dict[str, Moment]:
        """By what lies in the folder and in the table."""
        return {
            "planned": Moment(self._rounds_begun, 2),
            "written": Moment(counted(self.into / "records", "**/*.parquet"), 4),
            "entered": Moment(counted(self.into / "records", self.commits), 4),
            "committed": Moment(counted(self.into / "_barnabas" / "manifest", "*.json"), 2),
        }

    def files(self) -> list[Path]:
        """What Spark's reader of the table finds (rule 1)."""
        if not counted(self.into / "records", self.commits)():
            return []
        target = self.folder / f"seen-{secrets.token_hex(3)}"
        words = ["copy", self.format, str(self.into / "records"), str(target)]
        subprocess.run(
            [sys.executable, "-m", "tests.pipeline.killing.plain_spark", *words],
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **QUICK_JVM, **self.environment},
            check=True,
        )
        return sorted(target.glob("*.parquet"))

    def _rounds_begun(self) -> int:
        plan = self.into / "_barnabas" / "round.json"
        return 1 + int(json.loads(plan.read_text())["round"]) if plan.exists() else 0


class DeltaArchive(Lake):
    """Delta."""

    name = "delta"
    format = "delta"
    commits = "_delta_log/[0-9]*.json"


class IcebergArchive(Lake):
    """Iceberg."""

    name = "iceberg"
    format = "iceberg"
    commits = "metadata/v*.metadata.json"
