"""The files in config/: every setting exists, those in comments too, and its value is valid."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.config_loader import load_config
from broker.config.ignored_configs import IGNORED

CONFIG = Path(__file__).parents[4] / "config"
FILES = sorted(CONFIG.glob("*.properties"))
COMMENTED = re.compile(r"^#(?=[a-z0-9.-]+=)", re.MULTILINE)


def enabled(file: Path, folder: Path) -> BrokerConfig:
    """The settings of a file with those in comments."""
    path = folder / file.name
    path.write_text(COMMENTED.sub("", file.read_text()))
    return load_config(str(path), {})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_setting_of_an_example_exists_and_has_an_effect(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        given = enabled(file, tmp_path).given
    assert not caplog.messages
    assert len(given) > len(load_config(str(file), {}).given), "settings in comments are found"
    assert not given.keys() & IGNORED.keys()


@pytest.mark.parametrize("file", [file for file in FILES if file.stem != "controller"], ids=lambda file: file.stem)
def test_the_examples_of_brokers_name_both_engines(file: Path, tmp_path: Path) -> None:
    assert "barnabas.log.storage.engine" in enabled(file, tmp_path).given
    assert all(engine in file.read_text() for engine in ("segments", "commitlog"))
