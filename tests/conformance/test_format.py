"""`barnabas format` prints the same messages and writes the same files as kafka-storage for the same options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker import cli
from protocol.schema import Message
from replication.metadata.metadata_records import read_batches
from tests.support.kafka import needs_kafka
from tests.support.kafka_tools import KafkaTools, Outcome

pytestmark = needs_kafka

ID = ("--cluster-id", "AAAAAAAAAAAAAAAAAAAAAQ")
INITIAL = (
    "--initial-controllers",
    "1@127.0.0.1:9093:JEXY6aqzQY-32P5TStzaFg,2@127.0.0.1:9094:MvDxzVmcRsaTz33bUuRU6A",
)
BOOTSTRAP_SERVERS = "controller.quorum.bootstrap.servers=127.0.0.1:9093,127.0.0.1:9094"
STATIC = "controller.quorum.voters=1@127.0.0.1:9093,2@127.0.0.1:9094"
CONTROLLER = ("process.roles=broker,controller", "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093")
RELEASES = ("3.3-IV3", "3.9", "4.0-IV1", "4.0", "4.1", "4.2-IV0")
ADD = "--add-scram"
SALTED = "name=a,salt=MW==,saltedpassword=mT0yyUUxnlJaC99HXgRTSYlbuqa4FSGtJCJfTMvjYCE="
BROKER = ("process.roles=broker", "listeners=PLAINTEXT://127.0.0.1:9092")


@pytest.fixture(scope="module")
def tools() -> Iterator[KafkaTools]:
    with KafkaTools() as running:
        yield running


class NodeFolder:
    """The folder and the config file of one of the two."""

    def __init__(self, folder: Path, settings: tuple[str, ...]) -> None:
        self._folder = folder
        folder.mkdir()
        self.config = folder / "node.properties"
        dirs = f"log.dirs={folder}/a,{folder}/b"
        lines = ["node.id=1", "controller.listener.names=CONTROLLER", dirs, *settings]
        self.config.write_text("\n".join(lines) + "\n")

    def messages(self, outcome: Outcome) -> tuple[bool, list[str]]:
        """Whether it succeeded, and the messages; Apache Kafka lists directories in any order."""
        text = (outcome.out + outcome.err).replace(str(self._folder), "DIR")
        response = re.sub(r"Log directory DIR/\w", "Log directory DIR/?", text).splitlines()
        kept = [
            line.removeprefix("barnabas: ")
            for line in response
            if "DIR" in line or "controller" in line or "eature" in line or "SCRAM" in line or "add-scram" in line
        ]
        shown = {line for line in kept if not line.startswith(("Bootstrap metadata", "\tat", "["))}
        return outcome.code == 0, sorted(shown)

    def files(self) -> dict[str, list[Message] | str]:
        """The files without random ids and times."""
        found: dict[str, list[Message] | str] = {}
        for path in sorted(self._folder.glob("[ab]/**/*")):
            name = str(path.relative_to(self._folder))
            if path.name == "meta.properties":
                lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
                found[name] = re.sub(r"directory\.id=(?!JEXY)\S+", "directory.id=drawn", "\n".join(sorted(lines)))
            elif path.suffix == ".checkpoint":
                messages = [message for batch in read_batches(path.read_bytes()) for message in batch.messages]
                found[name] = [message for message in messages if "Snapshot" not in type(message).__name__]
        return found


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ((*CONTROLLER, BOOTSTRAP_SERVERS), INITIAL),
        ((*CONTROLLER, BOOTSTRAP_SERVERS), ("--no-initial-controllers",)),
        ((*CONTROLLER, BOOTSTRAP_SERVERS), ()),
        ((*CONTROLLER, STATIC), ()),
        ((*CONTROLLER, STATIC), INITIAL),
        ((*CONTROLLER, STATIC), ("--no-initial-controllers",)),
        ((*CONTROLLER, STATIC), ("--feature", "kraft.version=1")),
        ((*CONTROLLER, STATIC), ("--feature", "metadata.version=20")),
        ((*CONTROLLER, STATIC), ("--feature", "metadata.version=20", "--release-version", "3.9")),
        ((*BROKER, BOOTSTRAP_SERVERS), ()),
        ((*BROKER, BOOTSTRAP_SERVERS), INITIAL),
        ((*BROKER, BOOTSTRAP_SERVERS), ("--standalone",)),
        *(((*CONTROLLER, STATIC), ("--release-version", release)) for release in (*RELEASES, "9.9")),
        ((*CONTROLLER, STATIC), ("--release-version", "4.0", "--feature", "eligible.leader.replicas.version=1")),
        ((*CONTROLLER, STATIC), ("--release-version", "3.9", "--feature", "eligible.leader.replicas.version=1")),
        ((*CONTROLLER, STATIC), ("--feature", "group.version=0", "--feature", "share.version=0")),
        ((*CONTROLLER, STATIC), ("--feature", "nothing.version=1")),
        ((*CONTROLLER, STATIC), (ADD, f"SCRAM-SHA-256=[{SALTED}]", "-S", f"SCRAM-SHA-512=[iterations=5000,{SALTED}]")),
        ((*CONTROLLER, STATIC), (ADD, 'SCRAM-SHA-512=[name="b",salt=MW,password="c=",]')),
        ((*CONTROLLER, STATIC), (ADD, "SCRAM-SHA-1=[name=a,password=b]")),
        ((*CONTROLLER, STATIC), (ADD, "SCRAM-SHA-256=[name=a,salt=MW==,password=b]", "--release-version", "3.4")),
    ],
)
def test_the_same_options_have_the_same_outcome(
    tools: KafkaTools,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settings: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    """Messages and files; then again for a formatted directory, without and with --ignore-formatted."""
    kafka, ours = NodeFolder(tmp_path / "kafka", settings), NodeFolder(tmp_path / "ours", settings)
    for more in ((), (), ("--ignore-formatted",)):
        theirs = tools.run("kafka.tools.StorageTool", "format", "--config", kafka.config, *ID, *options, *more)
        code = cli.main(["format", "--config", str(ours.config), *ID, *options, *more])
        assert ours.messages(Outcome(code, *capsys.readouterr())) == kafka.messages(theirs)
        assert ours.files() == kafka.files()
