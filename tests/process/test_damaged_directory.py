"""Random damage to a stopped node's files, and then a start: it serves, or says in a sentence why it does not.

RULES    1. A failure prints its seed; `damage` with it does the same damage again.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest

from barnabas import Broker
from barnabas.embedded import BrokerError
from protocol.messages.produce_fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.data_directory import PARTITIONS, copied, damage, make_data_directory
from tests.support.raw_client import RawClient

SEEDS = 8
SENTENCE = re.compile(r"^barnabas: .*\.$", re.MULTILINE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which nothing is wrong."""
    path = tmp_path_factory.mktemp("damaged") / "data"
    make_data_directory(path)
    return path


def doctor(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command."""
    command = [sys.executable, "-m", "barnabas", "doctor", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def read_with_checks(bootstrap: str) -> int:
    """Every record of every partition that is there, CRCs checked by the client; how many."""
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
    """Ask for all batches, whatever the answers are."""
    with RawClient(bootstrap) as client:
        for isolation in (0, 1):
            for topic, partition in PARTITIONS:
                for offset in range(0, 61, 7):
                    place = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
                    topics = [FetchTopic(topic=topic, partitions=[place])]
                    client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=isolation, topics=topics), 11)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_repaired_directory_serves_whole_batches(seed: int, whole: Path, tmp_path: Path) -> None:
    """What the doctor has repaired starts, and clients that check CRCs read all of it."""
    path = copied(whole, tmp_path / "data")
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
    """Issue 5: the start either repairs as documented and says so, or refuses with a sentence; it never has a fault."""
    path = copied(whole, tmp_path / "data")
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


def test_an_index_of_transactions_of_another_version_takes_the_directory_away(whole: Path, tmp_path: Path) -> None:
    """A sentence, no fault; the doctor builds the index anew."""
    path = copied(whole, tmp_path / "data")
    index = path / "plain-0" / "00000000000000000000.txnindex"
    index.write_bytes(b"\0\1" + index.read_bytes()[2:])
    broker = Broker(path).start()
    with suppress(OSError, EOFError):
        fetch_everything(broker.bootstrap)
    with suppress(BrokerError):
        broker.stop()
    assert "no log directory is left: Cannot understand the index" in broker.log()
    assert "Traceback" not in broker.log()
    broker.close()
    assert doctor(path, "--repair").returncode == 0
    assert index.read_bytes()[:2] == bytes(2)


def test_a_running_broker_keeps_the_doctor_out(tmp_path: Path) -> None:
    """A sentence and exit status 2; with --read-only the doctor looks."""
    with Broker(tmp_path / "data"):
        visit = doctor(tmp_path / "data")
        assert (visit.returncode, visit.stdout) == (2, "")
        assert visit.stderr.startswith("barnabas: Cannot lock ")
        assert "--read-only" in visit.stderr
        assert doctor(tmp_path / "data", "--read-only").returncode == 0
