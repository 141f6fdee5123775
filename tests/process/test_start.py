"""Starting and stopping the daemon: the ready line, and one sentence for each failed start."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.embedded import Broker
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.raw_client import RawClient

COMMAND = [sys.executable, "-m", "barnabas", "serve", "--listen", "127.0.0.1:0"]


def refuse(*arguments: object) -> str:
    """The error message of a daemon that must not start."""
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("barnabas: ")]
    assert "Traceback" not in done.stderr
    return sentence


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_the_ready_line_is_the_only_line_on_standard_output(tmp_path: Path) -> None:
    with subprocess.Popen([*COMMAND, "--data-dir", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        line = daemon.stdout.readline().decode()
        match = re.fullmatch(r"barnabas ready on 127\.0\.0\.1:(\d+) \(node 1, \d+\.\d\d s\)\n", line)
        assert match, line
        with RawClient(f"127.0.0.1:{match[1]}") as client:
            assert client.ask(MetadataRequest(topics=None), 12).brokers[0].port == int(match[1])
        daemon.send_signal(signal.SIGTERM)
        rest, _ = daemon.communicate(timeout=20)
        assert (daemon.returncode, rest) == (0, b"")


def test_a_busy_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = refuse("--data-dir", tmp_path / "data", "--listen", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in sentence
    assert not (tmp_path / "data").exists()


def test_a_busy_port_of_the_controller_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listeners = f"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://{address}"
        assert address in refuse("--data-dir", tmp_path / "data", "--set", listeners)
    with Broker(tmp_path / "data") as broker:
        assert "the controller listens" not in broker.log()


def test_a_second_broker_on_one_directory_is_one_sentence(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as first:
        assert "another process holds it" in refuse("--data-dir", tmp_path / "data")
        with RawClient(first.bootstrap) as client:
            assert client.ask(MetadataRequest(topics=None), 12).cluster_id


def test_an_incomplete_meta_properties_is_one_sentence_and_unchanged(tmp_path: Path) -> None:
    with Broker(tmp_path / "data"):
        pass
    meta = tmp_path / "data" / "meta.properties"
    meta.write_text(meta.read_text()[:30])
    before = contents(tmp_path)
    assert "meta.properties" in refuse("--data-dir", tmp_path / "data")
    assert contents(tmp_path) == before


def test_a_directory_of_another_node_is_one_sentence(tmp_path: Path) -> None:
    with Broker(tmp_path / "data"):
        pass
    before = contents(tmp_path)
    assert "node 1" in refuse("--data-dir", tmp_path / "data", "--set", "node.id=2")
    assert contents(tmp_path) == before


def test_a_data_directory_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something")
    assert str(tmp_path / "file") in refuse("--data-dir", tmp_path / "file" / "data")


def test_an_unwritable_directory_is_one_sentence(tmp_path: Path) -> None:
    assert "/proc/barnabas" in refuse("--data-dir", "/proc/barnabas")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        (tmp_path / "ballast").write_bytes(bytes(60 * 1024))
        assert "No space left on device" in refuse("--data-dir", tmp_path / "data")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "num.partitions=none"], "Not a number of type INT"),
        (["--set", "nonsense"], "name=value"),
        (["--config", "nowhere.properties"], "nowhere.properties"),
        (["--listen", "nonsense"], "NAME://host:port"),
    ],
)
def test_invalid_settings_are_one_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    assert words in refuse("--data-dir", tmp_path / "data", *arguments)


def test_topics_and_their_ids_survive_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            topic = CreatableTopic(name="kept", num_partitions=3, replication_factor=1)
            made = client.ask(CreateTopicsRequest(topics=[topic]), 7).topics[0]
            assert made.error_code == 0
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
            with RawClient(broker.bootstrap) as client:
                request = MetadataRequest(topics=[MetadataRequestTopic(name="kept")])
                (found,) = client.ask(request, 12).topics
            assert (found.topic_id, len(found.partitions)) == (made.topic_id, 3)


def test_only_an_unclean_restart_increments_the_leader_epoch(tmp_path: Path) -> None:
    epochs = []
    with Broker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            topic = CreatableTopic(name="kept", num_partitions=1, replication_factor=1)
            client.ask(CreateTopicsRequest(topics=[topic]), 7)
        for end in (broker.stop, broker.kill, broker.stop):
            with RawClient(broker.bootstrap) as client:
                request = MetadataRequest(topics=[MetadataRequestTopic(name="kept")])
                (found,) = client.ask(request, 12).topics
            epochs.append(found.partitions[0].leader_epoch)
            end()
            broker.start()
    assert epochs == [0, 0, 1]
