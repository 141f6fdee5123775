"""Starting and stopping the daemon: the ready line, and one sentence for each failed start."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.embedded import Broker
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from storage.directories.log_directory import CLEAN_SHUTDOWN
from tests.support.loading import create
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


def test_repeated_signals_do_not_change_the_exit_code(tmp_path: Path) -> None:
    """The last ones arrive when the logs are closed and the interpreter ends."""
    with subprocess.Popen([*COMMAND, "--data-dir", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        while daemon.poll() is None:
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(0.0005)
        assert daemon.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "a closed terminal"])
def test_signals_of_a_terminal_end_a_node_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([*COMMAND, "--data-dir", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        daemon.send_signal(number)
        daemon.communicate(timeout=60)
    assert daemon.returncode == 0
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


def test_a_node_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    command = ["nohup", *COMMAND, "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        address = daemon.stdout.readline().decode().split()[3]
        daemon.send_signal(signal.SIGHUP)
        with RawClient(address) as client:
            assert client.ask(MetadataRequest(topics=None), 12).brokers
        daemon.terminate()
        daemon.communicate(timeout=60)
    assert daemon.returncode == 0


def test_a_node_without_standard_input_ends_cleanly(tmp_path: Path) -> None:
    """As a node is started in the background: `barnabas serve <&- &`. A socket would have the descriptor of standard input."""
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        daemon.terminate()
        daemon.communicate(timeout=60)
    assert daemon.returncode == 0
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


def test_a_node_whose_ready_line_cannot_be_written_serves(tmp_path: Path) -> None:
    """A full disk has the file to which standard output is redirected."""
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen([*COMMAND, "--data-dir", tmp_path], stdout=full, stderr=subprocess.PIPE, text=True) as daemon,
    ):
        assert daemon.stderr is not None
        lines = iter(daemon.stderr.readline, "")
        assert any(
            "the ready line cannot be written to standard output: No space left on device" in line for line in lines
        )
        daemon.terminate()
        daemon.communicate(timeout=60)
    assert daemon.returncode == 0


@pytest.mark.parametrize(
    ("option", "text"), [("--listen", "{}"), ("--set", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://{}")]
)
def test_a_busy_port_is_one_sentence_and_leaves_no_directory(tmp_path: Path, option: str, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        sentence = refuse("--data-dir", tmp_path / "data", option, text.format(address))
    assert f"cannot listen on {address}: Address already in use" in sentence
    assert not (tmp_path / "data").exists()


def test_a_second_broker_on_one_directory_is_one_sentence(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as first:
        sentence = refuse("--data-dir", tmp_path / "data")
        assert "another process holds it. Stop it, or choose another directory." in sentence
        assert str(tmp_path / "data") in sentence
        with RawClient(first.bootstrap) as client:
            assert client.ask(MetadataRequest(topics=None), 12).cluster_id


@pytest.mark.parametrize(
    ("kept_bytes", "arguments", "words"),
    [
        pytest.param(30, (), "meta.properties", id="an incomplete meta.properties"),
        pytest.param(None, ("--set", "node.id=2"), "node 1", id="a directory of another node"),
    ],
)
def test_an_unusable_directory_is_one_sentence_and_unchanged(
    tmp_path: Path, kept_bytes: int | None, arguments: tuple[str, ...], words: str
) -> None:
    with Broker(tmp_path / "data"):
        pass
    meta = tmp_path / "data" / "meta.properties"
    meta.write_text(meta.read_text()[:kept_bytes])
    before = contents(tmp_path)
    assert words in refuse("--data-dir", tmp_path / "data", *arguments)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("directory", "arguments", "words"),
    [
        ("file/data", [], "/file"),
        ("/proc/barnabas", [], "/proc/barnabas"),
        ("data", ["--set", "num.partitions=none"], "Not a number of type INT"),
        ("data", ["--set", "nonsense"], "name=value"),
        ("data", ["--set", "log.dirs=a,b"], "--data-dir and --set log.dirs name the same setting: give one of them"),
        ("data", ["--config", "nowhere.properties"], "nowhere.properties"),
        ("data", ["--listen", "nonsense"], "--listen nonsense: give it as HOST:PORT"),
        ("data", ["--metrics", "127.0.0.1:65536"], "with a port up to 65535"),
        (
            "data",
            ["--set", "listener.security.protocol.map=PLAINTEXT:SSL"],
            "listener PLAINTEXT: TLS needs ssl.keystore.location",
        ),
        (
            "data",
            ["--set", "security.providers=x"],
            "security.providers is not enforced by this broker: remove the setting",
        ),
    ],
)
def test_impossible_directories_and_invalid_settings_are_one_sentence(
    tmp_path: Path, directory: str, arguments: list[str], words: str
) -> None:
    (tmp_path / "file").write_text("something")
    assert words in refuse("--data-dir", tmp_path / directory, *arguments)


def kept_topic(broker: Broker) -> MetadataResponseTopic:
    """The metadata of the topic `kept`."""
    with RawClient(broker.bootstrap) as client:
        found: list[MetadataResponseTopic] = client.ask(
            MetadataRequest(topics=[MetadataRequestTopic(name="kept")]), 12
        ).topics
    assert len(found) == 1
    return found[0]


def test_topics_and_their_ids_survive_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            (topic_id,) = create(client, "kept", partitions=3)
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
            found = kept_topic(broker)
            assert (found.topic_id, len(found.partitions)) == (topic_id, 3)


def test_only_an_unclean_restart_increments_the_leader_epoch(tmp_path: Path) -> None:
    epochs = []
    with Broker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "kept")
        for end in (broker.stop, broker.kill, broker.stop):
            epochs.append(kept_topic(broker).partitions[0].leader_epoch)
            end()
            broker.start()
    assert epochs == [0, 0, 1]
