"""docker/: the compose files conform to the specification; their services run as processes in network namespaces.

compose-spec.json is the schema of the Compose Specification, from the GitHub repository compose-spec/compose-spec at commit
170098ba07d9f53c383a41bfd4c5166b0a4529a6; its licence is Apache-2.0, as ours.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import fastjsonschema
import pytest
import yaml

from barnabas import health
from barnabas.embedded import MAIN
from tests.support.oci_image import OciImage
from tests.support.waiting import until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
FILES = sorted(DOCKER.glob("*.yml"))
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
DOCKERFILES = sorted(DOCKER.glob("*Dockerfile"))
MOUNTED = "#listeners=A://:1\nadvertised.listeners=A://elsewhere:2\nlisteners = A://0.0.0.0:29092,C://:3\n"
CLIENT = """
import json, sys
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
bootstrap, replicas = sys.argv[1], int(sys.argv[2])
admin = AdminClient({"bootstrap.servers": bootstrap})
admin.create_topics([NewTopic("t", 3, replicas)])["t"].result(30)
producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
for number in range(30):
    producer.produce("t", str(number), partition=number % 3)
assert producer.flush(30) == 0
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
consumer.subscribe(["t"])
read = [int(consumer.poll(30).value()) for _ in range(30)]
consumer.close()
topic = admin.list_topics("t", timeout=30).topics["t"]
print(json.dumps({"read": sorted(read), "isrs": [sorted(p.isrs) for p in topic.partitions.values()]}))
"""


def services(path: Path) -> dict[str, Any]:
    """The services of a file and of the files that it includes."""
    content = yaml.safe_load(path.read_text())
    included = [services(path.parent / name) for name in content.get("include", [])]
    return {name: one for found in (*included, content["services"]) for name, one in found.items()}


def words(instruction: str) -> list[str]:
    """The arguments of a Dockerfile instruction in its exec form."""
    (found,) = re.findall(rf"^(?:{instruction}) (\[.*\])$", DOCKERFILE, re.MULTILINE)
    result: list[str] = json.loads(found)
    return result


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_compose_file_conforms_to_the_specification(path: Path) -> None:
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    fastjsonschema.validate(schema, yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_compose_file_refers_only_to_existing_things(path: Path) -> None:
    """Volumes, dependencies and files exist; addresses advertised to clients on this machine are published ports."""
    content, every = yaml.safe_load(path.read_text()), services(path)
    for service in content["services"].values():
        assert set(service.get("depends_on", {})) <= set(every)
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in content.get("volumes", {}) or (DOCKER / source).exists()
        if "build" in service:
            assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        response = re.findall(
            r"//localhost:(\d+)", service.get("environment", {}).get("KAFKA_ADVERTISED_LISTENERS", "")
        )
        assert response == [port.split(":")[0] for port in service.get("ports", [])]


def test_the_image_is_small_and_runs_without_root() -> None:
    """The last stage has only the installed files and a numeric user; the exec form lets the process receive signals."""
    stages = DOCKERFILE.split("FROM ")
    assert "pip" not in stages[-1]
    assert re.search(r"^USER 1000:1000$", stages[-1], re.MULTILINE)
    assert words("ENTRYPOINT")[0] == "barnabas"
    assert re.search(r"^HEALTHCHECK .*CMD \[\"barnabas\", \"health\"\]$", stages[-1], re.MULTILINE)
    assert words("VOLUME") == ["/var/lib/kafka/data"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_build_context_has_only_copied_files(path: Path) -> None:
    """Without history, caches or data: .dockerignore has the same files."""
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", path.read_text(), re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert all((ROOT / name).exists() for name in copied)
    assert lines == ["*", *(line for line in lines if line.startswith("!")), "**/__pycache__"]
    assert {line.removeprefix("!") for line in lines[1:-1]} == copied


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_image_is_built_once(path: Path) -> None:
    """The builder fails if two builds use one name at the same time."""
    every = services(path).values()
    built = [service["image"] for service in every if "build" in service]
    assert (
        len(set(built))
        == len(built)
        == len({service["build"]["dockerfile"] for service in every if "build" in service})
    )
    assert {service["image"] for service in every} == set(built)


def test_the_spark_jobs_have_valid_settings() -> None:
    """docker/spark.toml: known settings, existing brokers and master, folders that all services mount."""
    pytest.importorskip("pyspark")
    from barnabas.pipeline.command import all_jobs
    from barnabas.pipeline.session import SessionSettings
    from barnabas.pipeline.settings import build_settings, read_settings

    every = services(DOCKER / "spark.yml")
    jobs = {job.name: job.settings for job in all_jobs()}
    kinds = {name: (kind, SessionSettings) for name, kind in jobs.items()}
    for name in tomllib.loads((DOCKER / "spark.toml").read_text()):
        if name not in jobs:
            continue
        output = read_settings(DOCKER / "spark.toml", name, kinds)
        settings: Any = build_settings(name, jobs[name], output)
        hosts = {every[address.split(":")[0]]["hostname"] for address in settings.bootstrap.split(",")}
        assert hosts == {node["hostname"] for node in every.values() if node["image"] == "barnabas"}
        assert (
            build_settings(name, SessionSettings, output).master == f"spark://{every['spark-master']['hostname']}:7077"
        )
        assert getattr(settings, "into", None) or settings.archive
        assert all(str(output[folder]).startswith("/data/") for folder in ("into", "archive") if folder in output)
    on_spark = [service for service in every.values() if service["image"] == "barnabas-pipeline"]
    assert all("data:/data" in service["volumes"] for service in on_spark)
    master = every["spark-master"]["entrypoint"]
    assert [every[f"spark-worker-{number}"]["entrypoint"][-1] for number in (1, 2)] == [
        f"spark://{master[-1]}:7077"
    ] * 2


@pytest.mark.parametrize(
    ("variables", "mounted", "address"),
    [
        ({}, "", ("127.0.0.1", 9092)),
        ({"KAFKA_LISTENERS": "PLAINTEXT://:19092,CONTROLLER://:9093"}, "", ("127.0.0.1", 19092)),
        ({"KAFKA_LISTENERS": "PLAINTEXT://kafka-1:19092"}, "", ("kafka-1", 19092)),
        ({"KAFKA_ADVERTISED_LISTENERS": "A://elsewhere:29092"}, "", ("127.0.0.1", 29092)),
        ({}, MOUNTED, ("127.0.0.1", 29092)),
        ({"KAFKA_ADVERTISED_LISTENERS": "A://elsewhere:2"}, MOUNTED, ("127.0.0.1", 29092)),
        ({"KAFKA_LISTENERS": "A://kafka:4"}, MOUNTED, ("kafka", 4)),
    ],
)
def test_a_health_check_uses_the_nodes_listener(
    tmp_path: Path, variables: dict[str, str], mounted: str, address: tuple[str, int]
) -> None:
    """It has the same variables as the node, which override the mounted settings."""
    file = tmp_path / "server.properties"
    if mounted:
        file.write_text(mounted)
    assert health.address([], variables, file) == address


@pytest.mark.parametrize("text", ["nonsense", "127.0.0.1:x", "127.0.0.1:70000"])
def test_a_health_check_of_an_invalid_address_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main([text]) == 2
    assert capsys.readouterr().err == f"barnabas: {text} is not of the form HOST:PORT, such as 127.0.0.1:9092\n"


# ---- as processes, each service in its own network namespace ------------------------------------------------------


def why_no_networks() -> str | None:
    """Why this machine cannot run the test."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return "networks of one's own need root and ip(8)"
    tried = f"barnabas-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", tried], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", tried], capture_output=True, check=False)
    return made.stderr.strip() or None


class Networks:
    """A network namespace for each service and for a client, connected by a bridge; services have host names."""

    def __init__(self, names: list[str]) -> None:
        self._prefix = f"b{os.getpid()}-"
        self._names = [*names, "client"]
        self._made: list[str] = []

    def __enter__(self) -> Self:
        _ip(f"netns add {self._own('hub')}")
        self._made.append("hub")
        _ip(f"-n {self._own('hub')} link add switch type bridge")
        _ip(f"-n {self._own('hub')} link set switch up")
        hosts = "127.0.0.1 localhost\n"
        for number, name in enumerate(self._names, 1):
            _ip(f"netns add {self._own(name)}")
            self._made.append(name)
            wire = f"w{number}"
            _ip(f"-n {self._own('hub')} link add {wire} type veth peer name eth0 netns {self._own(name)}")
            _ip(f"-n {self._own('hub')} link set {wire} master switch up")
            _ip(f"-n {self._own(name)} address add 10.99.0.{number}/24 dev eth0")
            for device in ("lo", "eth0"):
                _ip(f"-n {self._own(name)} link set {device} up")
            hosts += f"10.99.0.{number} {name} {name.split('.svc')[0].rpartition('.')[0]}\n"
        for name in self._names:
            folder = Path("/etc/netns") / self._own(name)
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(hosts)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            _ip(f"netns delete {self._own(name)}")
            shutil.rmtree(Path("/etc/netns") / self._own(name), ignore_errors=True)

    def command(self, name: str, *command: str) -> list[str]:
        """The command line that runs a command in the namespace of a service."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
        return ["ip", "netns", "exec", self._own(name), *named, *command]

    def _own(self, name: str) -> str:
        return self._prefix + name


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)


def barnabas(words: list[str]) -> list[str]:
    """The image's command, run from this repository."""
    assert words[0] == "barnabas"
    return [sys.executable, "-P", str(MAIN), *words[1:]]


@contextmanager
def running(nodes: Mapping[str, Any], image: OciImage | None = None) -> Iterator[Networks]:
    """Services of the image, started at the same time: from the image, or with its command from this repository."""
    with ExitStack() as stack:
        networks = stack.enter_context(Networks(list(nodes)))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="barnabas-containers-"))
        log = stack.enter_context((Path(folder) / "log").open("wb"))
        for name, node in nodes.items():
            if image is None:
                command = [*barnabas(words("ENTRYPOINT")), *node.get("command", [])]
                variables = {**_clean(), **node["environment"], "KAFKA_LOG_DIRS": f"{folder}/{name}"}
            else:
                command = image.command(volumes={"/var/lib/kafka/data": _volume(Path(folder) / name)})
                variables = image.variables(node["environment"])
            process = subprocess.Popen(networks.command(name, *command), env=variables, stdout=log, stderr=log)
            stack.callback(_end if image is None else _kill, process)
        try:
            for name, node in nodes.items():
                own = barnabas(["barnabas", "health"]) if image is None else image.command(["barnabas", "health"])
                check = networks.command(name, *own)
                variables = {**(_clean() if image is None else image.variables()), **node["environment"]}
                until(
                    lambda check=check, variables=variables: (  # type: ignore[misc]
                        subprocess.run(check, env=variables, capture_output=True, check=False).returncode == 0
                    ),
                    f"{name} is healthy",
                    within_s=60,
                    every_s=0.2,
                )
            yield networks
        except BaseException as error:
            error.add_note((Path(folder) / "log").read_text(errors="replace")[-6000:])
            raise


def _volume(folder: Path) -> Path:
    """A folder of the image's user, as engines make a volume."""
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    return folder


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The namespaces end with their first process."""
    process.kill()
    process.wait()


def _clean() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("KAFKA_")}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.mark.skipif(why_no_networks() is not None, reason=why_no_networks() or "networks can be made")
@pytest.mark.parametrize("path", [DOCKER / "compose.yml", DOCKER / "cluster.yml"], ids=lambda path: path.name)
def test_the_services_of_a_compose_file_serve_clients(path: Path) -> None:
    check_services(nodes_of(path))


def nodes_of(path: Path) -> dict[str, Any]:
    """The services of a compose file that are nodes."""
    return {name: one for name, one in services(path).items() if one["image"] == "barnabas"}


def check_services(nodes: Mapping[str, Any], image: OciImage | None = None, port: int = 19092) -> None:
    """The image's command with the file's variables: topics with a replica on each node, a group, a health check."""
    with running(nodes, image) as networks:
        bootstrap = ",".join(f"{node['hostname']}:{port}" for node in nodes.values())
        client = networks.command("client", sys.executable, "-c", CLIENT, bootstrap, str(len(nodes)))
        done = subprocess.run(client, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout)
        assert found["read"] == list(range(30))
        ids = sorted(int(node["environment"]["KAFKA_NODE_ID"]) for node in nodes.values())
        assert found["isrs"] == [ids] * 3
