"""`barnabas bench` measures a broker, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import barnabas
from tests.cli.running import COMMAND, Verbs
from tests.support.librdkafka import create_topic, produce
from tests.support.waiting import until


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    with barnabas.Broker() as broker:
        yield Verbs(broker.bootstrap)


def test_loads_are_measured_and_the_topic_is_deleted(verbs: Verbs) -> None:
    produced, latency = verbs.rows("bench produce latency -d 1s --size 100 --rate 500 -p 2 --compression lz4 --acks 1")
    assert produced["load"] == "produce"
    assert produced["bytes"] == produced["records"] * 100 > 0
    assert produced["records"] <= 500 * produced["seconds"] + 500
    assert 0 < latency["latency_ms"]["p50"] <= latency["latency_ms"]["p99"] <= latency["latency_ms"]["max"]
    assert verbs.rows("topics list barnabas-bench.*") == []


def test_an_existing_topic_is_read_only_with_the_settings_file_of_kafkas_tools(verbs: Verbs, tmp_path: Path) -> None:
    (file := tmp_path / "client.properties").write_text("default.api.timeout.ms=60000\n")  # unknown to librdkafka
    create_topic(verbs.bootstrap, "existing", partitions=2)
    produce(verbs.bootstrap, "existing", [b"12345"] * 100, partitions=2)
    [row] = verbs.rows(f"bench --topic existing -d 30s --command-config {file}")
    assert (row["load"], row["records"], row["bytes"]) == ("consume", 100, 500)
    assert [part["end"] for part in verbs.rows("topics describe existing --offsets")[0]["partitions"]] == [50, 50]


def test_a_topic_with_fewer_records_than_offsets_is_read_to_its_end(verbs: Verbs, tmp_path: Path) -> None:
    """The markers of transactions have offsets too: waiting for as many records took the whole duration."""
    (lines := tmp_path / "lines").write_text("12345\n" * 100)
    create_topic(verbs.bootstrap, "transactions", partitions=2)
    assert verbs.run(f"produce transactions -q -l -i {lines} --transactional-id bench").code == 0
    [row] = verbs.rows("bench --topic transactions -d 300s")
    assert (row["records"], row["bytes"]) == (100, 500)


def test_bench_prints_a_table_and_a_drawing(verbs: Verbs) -> None:
    ended = verbs.run("bench produce latency -d 1s --rate 200")
    assert ended.out.split()[0] == "LOAD"
    assert "end to end, ms" in ended.err
    assert "█" in ended.err


@pytest.mark.long
def test_the_cluster_decides_how_large_a_record_may_be(verbs: Verbs) -> None:
    """Up to 1,048,588 bytes, here; librdkafka's own limit is lower, and its error is no answer of the cluster."""
    produced, latency = verbs.rows("bench produce latency -s 1020000 -d 1s --rate 20")
    assert produced["bytes"] == produced["records"] * 1_020_000 > 0
    assert latency["records"] > 0
    for load in ("produce", "latency"):
        assert verbs.refused(f"bench {load} -s 1100000 -d 60s") == (
            "The cluster refused a record: Broker: Message size too large."
        )
        assert verbs.rows("topics list barnabas-bench.*") == []


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_deletes_the_topic_too(verbs: Verbs, number: int, exit_code: int) -> None:
    command = [*COMMAND, "bench", "produce", "-b", verbs.bootstrap, "-d", "10m", "--rate", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: records(verbs), "records have arrived")
            process.send_signal(number)
            output = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, output) == (exit_code, ("", ""))
    assert verbs.rows("topics list barnabas-bench.*") == []


def records(verbs: Verbs) -> int:
    """How many records the topics of bench have."""
    names = [row["name"] for row in verbs.rows("topics list barnabas-bench.*")]
    found = [verbs.rows(f"topics describe {name} --offsets")[0] for name in names]
    return sum(part["end"] for topic in found for part in topic["partitions"])


def test_wrong_arguments_are_refused(verbs: Verbs) -> None:
    assert verbs.run("bench consume").code == 2
    assert verbs.run("bench -d soon").code == 2
    assert verbs.run("bench -s 2000000000").code == 2
    assert "it does not exist" in verbs.refused("bench --topic missing")
