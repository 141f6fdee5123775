"""`barnabas cluster`: several nodes with one command."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from barnabas import Cluster, cluster_command
from barnabas.embedded import MAIN, BrokerError
from tests.support.librdkafka import create_topic
from tests.support.waiting import until

pytestmark = pytest.mark.long

READY = re.compile(r"barnabas cluster ready on (?P<bootstrap>\S+) \((?P<count>\d+) nodes, \d+\.\d\d s\)\n")


@contextmanager
def command(folder: Path, *arguments: str, before: Sequence[str] = ()) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command and its bootstrap servers; `before` are words in front of the command."""
    words = [*before, sys.executable, "-P", str(MAIN), "cluster", "--data-dir", str(folder), "--port", "0", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = READY.fullmatch(process.stdout.readline())
            assert ready is not None, process.communicate()[1]
            yield process, ready["bootstrap"]
        finally:
            process.send_signal(signal.SIGTERM)


def nodes(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """The nodes' process ids by node id."""
    found = {}
    for child in psutil.Process(process.pid).children():
        number = re.search(r"node\.id=(\d+)", " ".join(child.cmdline()))
        if number is not None:
            found[number[1]] = child
    return found


def in_sync(admin: AdminClient) -> list[int]:
    """The ISR size of each partition."""
    found = admin.list_topics("kept", timeout=30).topics["kept"].partitions
    return [len(partition.isrs) for partition in found.values()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "a closed terminal"])
def test_one_command_runs_three_nodes_whose_data_survive(tmp_path: Path, number: signal.Signals) -> None:
    with command(tmp_path) as (process, bootstrap):
        assert len(bootstrap.split(",")) == 3
        create_topic(bootstrap, "kept", 3, -1)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        until(lambda: in_sync(admin) == [3, 3, 3], "every replica is made")
        running = nodes(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")
        assert not any(node.is_running() for node in running.values())
    assert all((tmp_path / f"node-{node}" / ".kafka_cleanshutdown").exists() for node in (1, 2, 3))
    with command(tmp_path) as (process, again):
        assert again == bootstrap
        admin = AdminClient({"bootstrap.servers": again})
        until(lambda: in_sync(admin) == [3, 3, 3], "all replicas are in sync again")


def test_a_dead_node_is_reported_and_not_restarted(tmp_path: Path) -> None:
    with command(tmp_path, "--nodes", "1", "--controllers", "1") as (process, bootstrap):
        running = nodes(process)
        assert set(running) == {"1", "2"}
        running["2"].kill()
        assert process.stderr is not None
        assert re.fullmatch(r"barnabas: node 2 ended with -9; .*node-2\.log may say why\n", process.stderr.readline())
        assert AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers.keys() == {1}
        assert set(nodes(process)) == {"1"}
        process.terminate()
        assert process.wait(30) == 1


def test_the_command_ends_when_no_node_is_left(tmp_path: Path) -> None:
    with command(tmp_path, "--nodes", "1") as (process, _):
        nodes(process)["1"].kill()
        assert process.wait(30) == 1


def test_a_child_that_is_no_node_may_end(tmp_path: Path) -> None:
    shell = ("sh", "-c", 'true & exec "$@"', "sh")
    with command(tmp_path, "--nodes", "1", before=shell) as (process, bootstrap):
        until(lambda: len(psutil.Process(process.pid).children()) == 1, "the other child is reaped")
        assert AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers.keys() == {1}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")


def test_the_nodes_under_nohup_outlive_their_terminal(tmp_path: Path) -> None:
    with command(tmp_path, "--nodes", "1", before=("nohup",)) as (process, bootstrap):
        process.send_signal(signal.SIGHUP)
        assert AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers.keys() == {1}
        process.terminate()
        assert process.wait(30) == 0


def test_a_signal_before_the_nodes_start_ends_the_command_without_a_stack_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_command, "Cluster", interrupted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its handlers
    assert cluster_command.main(["--data-dir", str(tmp_path)]) == 0


def test_an_output_that_cannot_be_written_is_a_sentence_and_stops_the_nodes(tmp_path: Path) -> None:
    words = [sys.executable, "-P", str(MAIN), "cluster", "--data-dir", str(tmp_path), "--port", "0", "--nodes", "1"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "barnabas: standard output: No space left on device\n")
    assert (tmp_path / "node-1" / ".kafka_cleanshutdown").exists()


def test_no_node_outlives_the_command(tmp_path: Path) -> None:
    with command(tmp_path, "--nodes", "1") as (process, _):
        running = nodes(process)
        process.kill()
        until(lambda: not running["1"].is_running(), "the node has ended")


def test_a_folder_keeps_the_size_and_the_addresses_of_its_cluster(tmp_path: Path) -> None:
    first = Cluster(1, data_dir=tmp_path, host="localhost")
    first.close()
    before = (tmp_path / "cluster.json").read_text()
    port = int(first.bootstrap.rpartition(":")[2])
    for brokers, other, words in (
        (3, {}, "holds a cluster of 1 brokers and 0 nodes that are controllers only, not of 3"),
        (1, {"port": port - 1}, rf"holds a cluster on {first.bootstrap}, and its addresses cannot change"),
        (1, {"host": "127.0.0.1"}, "its addresses cannot change"),
    ):
        with pytest.raises(BrokerError, match=words):
            Cluster(brokers, data_dir=tmp_path, **other)
    assert (tmp_path / "cluster.json").read_text() == before
    again = Cluster(1, data_dir=tmp_path)
    assert (again.bootstrap, again.nodes[1].host, list(again.nodes)) == (first.bootstrap, "localhost", [1])
    again.close()


def test_a_failed_creation_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"Cannot listen on 127\.0\.0\.1:{port}: Address already in use\."):
            Cluster(3, data_dir=folder, port=port)
    with pytest.raises(BrokerError, match=r"Cannot listen on nowhere\.invalid"):
        Cluster(3, data_dir=folder, host="nowhere.invalid")
    for wrong in (70_000, 65_500, -5):
        with pytest.raises(BrokerError, match="would need the ports"):
            Cluster(3, data_dir=folder, port=wrong)
    with pytest.raises(BrokerError, match=r"log\.dirs cannot be set for all nodes of a cluster"):
        Cluster(3, data_dir=folder, settings={"log.dirs": "one"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"nodes": {}}'])
def test_a_damaged_plan_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(BrokerError, match=r"cluster\.json .*: restore it, or choose another folder"):
        Cluster(3, data_dir=tmp_path)


def test_a_file_as_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = [sys.executable, "-P", str(MAIN), "cluster", "--data-dir", str(tmp_path / "file")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    output = f"barnabas: {tmp_path / 'file'} is a file, not a folder: choose another one.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", output)


def test_close_deletes_a_temporary_folder() -> None:
    with Cluster(1) as cluster:
        folder = cluster.folder
        assert cluster.nodes[1].log_path == folder / "node-1.log"
        assert os.path.exists(folder / "node-1" / "meta.properties")
    assert not folder.exists()


def test_a_forked_process_leaves_nodes_and_data_alone() -> None:
    with Cluster(1) as cluster:
        child = os.fork()
        if child == 0:
            cluster.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert cluster.nodes[1].log_path.exists()
        assert cluster.nodes[1].is_running
