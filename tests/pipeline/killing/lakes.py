"""Archives in Delta and Iceberg tables that are killed.

RULES    1. After every kill Spark's reader of the table finds no duplicate and no unknown record. It may find a round that is
            not in the manifest: completely or not at all.
         2. In the end it finds every record once, and the audit agrees (`kill_run.py`).
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import ClassVar

from tests.pipeline.killing.archives import Archive
from tests.pipeline.killing.plain_spark import answer_of, start
from tests.pipeline.killing.scenario import Trigger, count_matches


class TableArchive(Archive):
    """An archive in a table; `commits` matches the files of the table's commits."""

    format: ClassVar[str]
    commits: ClassVar[str]

    def words(self) -> list[str]:
        return [*super().words(), "--format", self.format]

    def triggers(self) -> dict[str, Trigger]:
        return {
            "planned": Trigger(self._rounds_begun, 2),
            "written": Trigger(count_matches(self.into / "records", "**/*.parquet"), 4),
            "entered": Trigger(count_matches(self.into / "records", self.commits), 4),
            "committed": Trigger(count_matches(self.into / "_barnabas" / "manifest", "*.json"), 2),
        }

    def files(self) -> list[Path]:
        """The rows that Spark's reader of the table finds, as Parquet files (rule 1)."""
        if not count_matches(self.into / "records", self.commits)():
            return []
        target = self.folder / f"seen-{secrets.token_hex(3)}"
        answer_of(start(self.environment, "copy", self.format, str(self.into / "records"), str(target)))
        return sorted(target.glob("*.parquet"))

    def _rounds_begun(self) -> int:
        plan = self.into / "_barnabas" / "round.json"
        return 1 + int(json.loads(plan.read_text())["round"]) if plan.exists() else 0


class DeltaArchive(TableArchive):
    name = "delta"
    format = "delta"
    commits = "_delta_log/[0-9]*.json"


class IcebergArchive(TableArchive):
    name = "iceberg"
    format = "iceberg"
    commits = "metadata/v*.metadata.json"
