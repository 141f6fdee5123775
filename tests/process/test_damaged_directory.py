"""Random damage to a stopped node's files, then a start: it serves, or fails with a sentence.

A failure prints its seed; `damage` with it repeats the damage.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import confluent_kafka
import pytest

from barnabas import Broker
from barnabas.embedded import BrokerError
from protocol.messages.produce_fetch import FetchPartition, FetchRequest, FetchTopic
from storage.directories.log_directory import CLEAN_SHUTDOWN
from tests.process.damaging import served_by
from tests.support.data_directory import PARTITIONS, copy_directory, damage, make_data_directory
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.long

SEEDS = 8
SENTENCE = re.compile(r"^barnabas: .*\.$", re.MULTILINE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undamaged directory."""
    path = tmp_path_factory.mktemp("damaged") / "data"
    make_data_directory(path)
    return path


def doctor(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command."""
    command = [sys.executable, "-m", "barnabas", "doctor", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def read_with_checks(bootstrap: str) -> int:
    """The number of records of all partitions, with their CRCs checked by the client."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "check.crcs": True,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
        }
    )
    topics = consumer.list_topics(timeout=20).topics
    places = [(topic, partition) for topic, partition in PARTITIONS if topic in topics]
    count = 0
    for topic, partition in places:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(20)
            assert message is not None, f"{topic}-{partition}: no message and no end"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                break
            count += 1
    consumer.close()
    return count


def fetch_everything(bootstrap: str) -> None:
    """Fetches all batches, whatever the responses are."""
    with RawClient(bootstrap) as client:
        for isolation in (0, 1):
            for topic, partition in PARTITIONS:
                for offset in range(0, 61, 7):
                    place = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
                    topics = [FetchTopic(topic=topic, partitions=[place])]
                    client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=isolation, topics=topics), 11)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_repaired_directory_serves_valid_batches(seed: int, whole: Path, tmp_path: Path) -> None:
    path = copy_directory(whole, tmp_path / "data")
    done = damage(path, random.Random(seed))
    visit = doctor(path, "--repair")
    if visit.returncode:
        assert "refuses" in visit.stdout or visit.stderr.startswith("barnabas: "), (done, visit)
        return
    assert doctor(path).returncode == 0, done
    broker = Broker(path).start()
    read_with_checks(broker.bootstrap)
    broker.stop()
    assert "Traceback" not in broker.log(), (done, broker.log())
    assert doctor(path).returncode == 0, done


@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_a_damaged_directory_is_served_or_refused_with_a_sentence(seed: int, whole: Path, tmp_path: Path) -> None:
    path = copy_directory(whole, tmp_path / "data")
    done = damage(path, random.Random(seed))
    broker = Broker(path)
    try:
        broker.start()
        fetch_everything(broker.bootstrap)
        broker.stop()
    except (BrokerError, OSError, EOFError):  # it did not start, or ended when it came to the damage
        with suppress(BrokerError):
            broker.stop()
        assert SENTENCE.search(broker.log()), (done, broker.log())
    assert "Traceback" not in broker.log(), (done, broker.log())
    broker.close()


def test_a_running_broker_keeps_the_doctor_out(tmp_path: Path) -> None:
    with Broker(tmp_path / "data"):
        visit = doctor(tmp_path / "data")
        assert (visit.returncode, visit.stdout) == (2, "")
        assert visit.stderr.startswith("barnabas: Cannot lock ")
        assert "--read-only" in visit.stderr
        assert doctor(tmp_path / "data", "--read-only").returncode == 0


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
    path = copy_directory(whole, tmp_path / "data")
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
    for name in {topic for topic, _ in PARTITIONS} | {"__consumer_offsets"}:
        for directory in path.glob(f"{name}-?"):
            shutil.rmtree(directory)
    broker.start()
    broker.close()


def test_a_torn_end_of_the_metadata_log_is_truncated(whole: Path, tmp_path: Path) -> None:
    path = copy_directory(whole, tmp_path / "data")
    (path / CLEAN_SHUTDOWN).unlink()
    size = metadata_log(path).stat().st_size
    with metadata_log(path).open("ab") as file:
        file.write(metadata_log(path).read_bytes()[:100])
    with Broker(path) as broker:
        assert len(fetchable(broker.bootstrap)) == len(PARTITIONS)
        assert f"from {size + 100} to {size} bytes" in broker.log()


def fetchable(bootstrap: str) -> list[tuple[str, int]]:
    """The partitions that can be read."""
    return [place for place, served in served_by(bootstrap).items() if not served.errors]
