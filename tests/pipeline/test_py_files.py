"""The imports of modules that run on workers, which have only Python and Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline.spark import py_files

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


def test_files_from_1970_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproducible installations have such times, and a zip starts at 1980."""
    module = tmp_path / "of_1970" / "__init__.py"
    module.parent.mkdir()
    module.touch()
    os.utime(module, (0, 0))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(py_files, "COMPILED", ("of_1970",))
    with zipfile.ZipFile(py_files._zip_compiled(tmp_path / "compiled.zip")) as sent:
        assert sent.namelist() == ["of_1970/__init__.py"]
