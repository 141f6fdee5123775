"""The imports of modules that run on workers, which have only Python and Spark."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

BARE = """
import importlib, importlib.abc, json, sys
from importlib.metadata import packages_distributions

name, *there = json.loads(sys.argv[1])
missing = packages_distributions().keys() - set(there)

class Bare(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Bare())
importlib.import_module(name)
"""
SPARK = ("barnabas", "pyspark", "py4j")


@pytest.mark.parametrize(
    ("module", "there"),
    [("barnabas.pipeline.kafka.sender", SPARK), ("barnabas.pipeline.sources.segments", (*SPARK, "numpy", "pyarrow"))],
)
def test_worker_modules_import_without_our_dependencies(module: str, there: tuple[str, ...]) -> None:
    words = [sys.executable, "-c", BARE, json.dumps([module, *there])]
    imported = subprocess.run(words, capture_output=True, text=True, check=False)
    assert imported.returncode == 0, imported.stderr
