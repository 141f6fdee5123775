"""A small sample of `make kill-archive`: one kill, then the rest."""

from __future__ import annotations

import secrets

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from barnabas.pipeline.session import NoJava, java_version
from tests.pipeline.killing import play

pytestmark = pytest.mark.turn(1)


def test_a_killed_archive_holds_every_record_once() -> None:
    """jobs/archive.py rule 1, killing.py rules 1 to 3."""
    try:
        java_version()
    except NoJava as missing:
        pytest.skip(str(missing))
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    play(1, seed, None)
