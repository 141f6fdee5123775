"""Both engines implement storage/engine.py: segments, and the scattered engine of the tests."""

from __future__ import annotations

from pathlib import Path

from storage.engine import EngineFactory
from storage.io.disk import Disk
from storage.segments.segment_engine import SegmentEngine
from tests.support.scattered_engine import Store
from tests.unit.storage.engine_recovery_contract import EngineRecoveryContract


class TestSegmentEngine(EngineRecoveryContract):
    def factory(self, disk: Disk, root: Path) -> EngineFactory:
        return lambda directory, config: SegmentEngine(disk, directory, config)


class TestScatteredEngine(EngineRecoveryContract):
    def factory(self, disk: Disk, root: Path) -> EngineFactory:
        return Store(disk, str(root / "scattered")).engine
