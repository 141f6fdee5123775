"""Damage to a stopped node's files, then a start: it serves, or fails with a sentence (`damaging.py`)."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from barnabas import Broker
from barnabas.embedded import BrokerError
from storage.commitlog.commit_log import DIRECTORY
from storage.directories.log_directory import CLEAN_SHUTDOWN
from tests.process.damaging import Trial, doctor
from tests.support.data_directory import PARTITIONS, Content, TopicPartition, make_data_directory

pytestmark = pytest.mark.long

SEEDS = 8
SENTENCE = re.compile(r"^barnabas: .*\.$", re.MULTILINE)


@pytest.fixture(scope="module", params=["segments", "commitlog"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[TopicPartition, Content]]:
    """An undamaged directory, and its records."""
    path = tmp_path_factory.mktemp("damaged") / "data"
    return path, make_data_directory(path, request.param)


@pytest.fixture(scope="module")
def whole(made: tuple[Path, dict[TopicPartition, Content]]) -> Path:
    """The directory."""
    return made[0]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_directory_is_served_and_repaired_or_refused_with_a_sentence(
    seed: int, made: tuple[Path, dict[TopicPartition, Content]], tmp_path: Path
) -> None:
    trial = Trial(*made, tmp_path, seed)
    trial.run()
    assert not trial.problems, (trial.done, trial.problems)


def hashes(path: Path) -> dict[str, str]:
    """A hash of every file."""
    return {str(file): sha256(file.read_bytes()).hexdigest() for file in path.rglob("*") if file.is_file()}


def metadata_log(path: Path) -> Path:
    return path / "__cluster_metadata-0" / "00000000000000000000.log"


def cut_in_the_middle(path: Path) -> None:
    os.truncate(metadata_log(path), metadata_log(path).stat().st_size // 2)


def flip_in_the_middle(path: Path) -> None:
    content = bytearray(metadata_log(path).read_bytes())
    content[len(content) // 2] ^= 4
    metadata_log(path).write_bytes(content)


def without_a_log(path: Path) -> None:
    for file in metadata_log(path).parent.glob("*.log"):
        file.unlink()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("harm", [cut_in_the_middle, flip_in_the_middle, without_a_log])
def test_a_metadata_log_without_its_topics_is_refused(
    whole: Path, tmp_path: Path, harm: Callable[[Path], None], is_clean: bool
) -> None:
    path = shutil.copytree(whole, tmp_path / "data")
    if not is_clean:
        (path / CLEAN_SHUTDOWN).unlink()
    harm(path)
    before = hashes(path)
    foreseen = doctor(path)
    broker = Broker(path)
    with pytest.raises(BrokerError, match=r"(has lost its end|after a clean shutdown)[^\n]* [Rr]estore .* from a copy"):
        broker.start()
    assert len(SENTENCE.findall(broker.log())) == 1
    assert "refuses: " in foreseen.stdout
    assert hashes(path) == before
    (path / CLEAN_SHUTDOWN).unlink(missing_ok=True)
    if (path / DIRECTORY).exists():
        shutil.rmtree(path / DIRECTORY)
    for name in {topic for topic, _ in PARTITIONS} | {"__consumer_offsets"}:
        for directory in path.glob(f"{name}-?"):
            shutil.rmtree(directory)
    broker.start()
    broker.close()
