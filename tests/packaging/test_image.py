"""The container image: built from docker/Dockerfile without an engine, unpacked, and run from outside.

RULES    1. The archive is small, and its config is what the Dockerfile says.
         2. The node is process 1, without root and capabilities; it obeys the stop signal, and keeps its data in the volume.
         3. KAFKA_ variables and a mounted settings file set it up as in the image apache/kafka.
         4. The services of the compose files serve clients when they are started from the image.
NOT HERE The compose files themselves (test_containers.py).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from barnabas.cluster import free_ports
from tests.packaging.test_containers import DOCKER, check_services, nodes_of, why_no_networks
from tests.support.librdkafka import create_topic, produce, read_to_end
from tests.support.oci_image import OciImage, first_process
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # the first test waits for the build

ROOT = Path(__file__).parents[2]
DATA = "/var/lib/kafka/data"
LARGEST = 120_000_000


@pytest.fixture(scope="module")
def image(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> OciImage:
    return OciImage(archive, tmp_path_factory.mktemp("root"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A volume as engines make it: it belongs to the image's user."""
    path = tmp_path / "data"
    path.mkdir()
    os.chown(path, 1000, 1000)
    return path


class Node:
    """A running node: its process on this host, and its port."""

    def __init__(self, process: subprocess.Popen[str], port: int, ready: str) -> None:
        self.process, self.port, self.ready = process, port, ready
        self.pid = first_process(process.pid)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal to process 1, as an engine does; returns the exit status."""
        os.kill(self.pid, number)
        return self.process.wait(60)


@contextmanager
def running(image: OciImage, data: Path, config: Path | None = None, **settings: str) -> Iterator[Node]:
    """A node on a port of 127.0.0.1, with this folder of settings; the network is this host's."""
    (port,) = free_ports(1)
    listeners = {"KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}"}
    process = subprocess.Popen(
        image.command(volumes={DATA: data} | ({} if config is None else {"/mnt/shared/config": config})),
        env=image.variables({**listeners, **settings}),
        stdout=subprocess.PIPE,
        stderr=(data.parent / "log").open("a"),
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith(f"barnabas ready on 127.0.0.1:{port} "), (data.parent / "log").read_text()[-3000:]
            yield Node(process, port, ready)
        finally:
            process.kill()


def status_of(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def test_the_archive_is_small_and_has_the_dockerfiles_config(archive: Path, image: OciImage) -> None:
    assert archive.stat().st_size < LARGEST
    config = image.config
    assert (config["User"], config["StopSignal"]) == ("1000:1000", "SIGTERM")
    assert config["Entrypoint"] == ["barnabas", "serve", "--environment"]
    assert config["Healthcheck"]["Test"] == ["CMD", "barnabas", "health"]
    assert config["Volumes"] == {DATA: {}}
    assert config["ExposedPorts"] == {"9092/tcp": {}}
    for leftover in ("src", "opt/pip", "media/pip.conf", "etc/pip.conf"):
        assert not (image.root / leftover).exists()


def test_nothing_in_the_image_belongs_to_its_user_but_the_data(image: OciImage) -> None:
    """A client that can make the node write a file cannot replace its programs."""
    own = [path for path in image.root.rglob("*") if path.lstat().st_uid == 1000]
    assert {str(path.relative_to(image.root)) for path in own} <= {"var/lib/kafka", "var/lib/kafka/data"}
    programs = [path for path in image.root.joinpath("opt").rglob("*") if path.lstat().st_mode & 0o022]
    assert [path for path in programs if not path.is_symlink()] == []


def test_the_node_runs_without_root_and_obeys_signals(image: OciImage, data: Path) -> None:
    """Rule 2: also SIGINT, which an engine sends for Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGINT):
        with running(image, data) as node:
            status = status_of(node.pid)
            assert status["Uid"].split() == ["1000"] * 4
            assert status["NSpid"].split()[-1] == "1"
            assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
            assert node.stop(number) == 0
    assert (data / ".kafka_cleanshutdown").exists()
    assert data.joinpath("meta.properties").stat().st_uid == 1000


def test_the_health_check_tells_a_running_node_from_a_stopped_one(image: OciImage, data: Path) -> None:
    check = image.command(image.config["Healthcheck"]["Test"][1:])
    with running(image, data) as node:
        variables = image.variables({"KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{node.port}"})
        assert subprocess.run(check, env=variables, timeout=60, check=False).returncode == 0
        node.stop()
        assert subprocess.run(check, env=variables, timeout=60, capture_output=True, check=False).returncode == 1


def test_data_survive_a_new_container(image: OciImage, data: Path) -> None:
    """After a clean stop, and after a SIGKILL."""
    expected: list[bytes] = []
    for number, value in ((signal.SIGTERM, b"one"), (signal.SIGKILL, b"two"), (signal.SIGTERM, b"three")):
        with running(image, data) as node:
            if not expected:
                create_topic(node.bootstrap, "kept")
            produce(node.bootstrap, "kept", [value])
            expected.append(value)
            assert [message.value() for message in read_to_end(node.bootstrap, "kept")] == expected
            node.stop(number)


def test_variables_and_a_mounted_file_are_settings(image: OciImage, data: Path, tmp_path: Path) -> None:
    """Rule 3: a variable overrides the file."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "server.properties").write_text(f"node.id=7\nnum.partitions=4\nlog.dirs={DATA}\n")
    with running(image, data, config, KAFKA_NUM_PARTITIONS="5") as node:
        assert "(node 7, " in node.ready
        produce(node.bootstrap, "made", [b"x"])
        assert node.stop() == 0
    identity = (data / "meta.properties").read_text()
    assert re.search(r"^node\.id=7$", identity, re.MULTILINE)
    assert "cluster.id=5L6g3nShT-eMCtK--X86sw" in identity
    assert len(list(data.glob("made-*"))) == 5


def test_a_volume_of_another_user_is_one_sentence(image: OciImage, data: Path) -> None:
    """A folder of the host that root made, with `--volume /srv/kafka:/var/lib/kafka/data`."""
    os.chown(data, 0, 0)
    done = subprocess.run(
        image.command(volumes={DATA: data}),
        env=image.variables(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert (
        "Permission denied. This process runs as user 1000, group 1000, which must own the log directories"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(why_no_networks() is not None, reason=why_no_networks() or "networks can be made")
@pytest.mark.parametrize("name", ["compose.yml", "cluster.yml"])
def test_the_services_of_a_compose_file_run_from_the_image(image: OciImage, name: str) -> None:
    check_services(nodes_of(DOCKER / name), image)


def test_a_node_of_the_image_runs_and_its_figures_are_printed(image: OciImage, archive: Path, data: Path) -> None:
    """What docs/operations.md says about the image; the numbers are printed, and not judged."""
    with running(image, data) as node:
        memory = until(lambda: status_of(node.pid).get("VmRSS"), "the node runs")
        print(f"archive {archive.stat().st_size / 1e6:.1f} MB; {node.ready.strip()}; {memory}")
