"""The container image for all files of this folder: two pytest processes share one build (docker/build_image.py, rule 5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.oci_image import run_builder


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's archive."""
    path = tmp_path_factory.mktemp("image") / "image.tar"
    run_builder("build_image.py", path)
    return path
