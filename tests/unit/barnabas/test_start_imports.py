"""What a daemon must not import at its start: a start takes 0.2 s, and imports are most of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LISTED = """
import sys
import broker.cli, broker.server
print(*sys.modules)
"""


@pytest.mark.parametrize(
    "module", ["argparse", "cryptography", "email", "importlib.metadata", "jwt", "numpy", "zipfile"]
)
def test_a_start_does_not_import(module: str) -> None:
    imported = subprocess.run(
        [sys.executable, "-c", _LISTED], capture_output=True, text=True, check=True
    ).stdout.split()
    assert module not in imported
