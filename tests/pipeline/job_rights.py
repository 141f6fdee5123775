"""The rights of the pipeline's jobs: the table of docs/pipeline.md, read from there, and how to run each job.

A right is `OPERATION RESOURCE NAME`; a name that ends with * is a prefix. The topics are named as in the table.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.pipeline import (
    AggregateSettings,
    ArchiveSettings,
    AuditSettings,
    ReplaySettings,
    SearchSettings,
    StatsSettings,
    TableSettings,
    aggregate,
    archive,
    audit,
    replay,
    search,
    stats,
    table,
)
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.settings import BrokerSettings
from tests.pipeline.topics import minutes, send, send_transaction, transactional
from tests.support.security_profiles import SecuredNode

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
ROW = re.compile(r"(?m)^\| (.+?) \| (.+?) \|$")
RIGHT = re.compile(r"(Read|Write|Create|Delete|DescribeConfigs|Describe) on (topic|group|transactional id) `([^`]+)`")
INTO, OUT_OF, LETTERS, TRIMMED = "TARGET", "TOPIC", "LETTERS", "TRIMMED"


class Right(NamedTuple):
    """An operation on a resource; the pattern is that of the name."""

    operation: str
    resource: str
    name: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}"

    def grant(self, node: SecuredNode, user: str) -> None:
        node.allow(user, snake(self.operation), snake(self.resource), self.name, self.pattern)


def snake(text: str) -> str:
    """`DescribeConfigs` and `transactional id` as in the protocol's names."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text.replace(" ", "_")).lower()


def documented() -> dict[str, list[Right]]:
    """The rights by the name of the row."""
    section = PAGE.read_text().partition("## Rights")[2].partition("\n## ")[0]
    rows = {name.replace("`", ""): RIGHT.findall(text) for name, text in ROW.findall(section)}
    return {
        name: [
            Right(verb, kind, text.rstrip("*"), "prefixed" if "*" in text else "literal") for verb, kind, text in found
        ]
        for name, found in rows.items()
        if found
    }


class World(NamedTuple):
    """A secured node with filled topics, the settings of the user, and an archive that another user made."""

    node: SecuredNode
    spark: Any
    settings: dict[str, Any]
    archive: Path


def fill(node: SecuredNode) -> None:
    """Creates the topics, one with aborted records."""
    brokers = Brokers(BrokerSettings(bootstrap=node.inside))
    for name in (OUT_OF, INTO, LETTERS, TRIMMED):
        brokers.create_topic(name, 2, 1, {"retention.ms": "-1"})
    producer = transactional(node.inside, "filling")
    send_transaction(producer, OUT_OF, minutes(20), commit=False)
    send(node.inside, OUT_OF, minutes(100, start=20))


def _client(world: World) -> dict[str, Any]:
    client = BrokerSettings(**world.settings).client_settings()
    return {
        "kafka.bootstrap.servers": world.node.bootstrap,
        **{f"kafka.{name}": value for name, value in client.items()},
    }


def _archive(world: World, folder: Path, **more: Any) -> None:
    assert archive(world.spark, ArchiveSettings(**world.settings, into=folder / "a", topic=(OUT_OF,), **more)).records


def _trim(world: World, folder: Path) -> None:
    """After an audit by another user."""
    send(world.node.inside, TRIMMED, minutes(5))
    more: dict[str, Any] = {"into": folder / "a", "topic": (TRIMMED,)}
    archive(world.spark, ArchiveSettings(bootstrap=world.node.inside, **more))
    audit(world.spark, AuditSettings(bootstrap=world.node.inside, archive=folder / "a", page=folder / "page.html"))
    archive(world.spark, ArchiveSettings(**world.settings, **more, trim=True))


def _demo(world: World, folder: Path) -> None:
    """In a process of its own, because it ends its Spark session."""
    options = ["--bootstrap", world.node.bootstrap, "--command-config", world.settings["command_config"]]
    command = [sys.executable, "-m", "barnabas", "pipeline", "demo", *options, "--rows", "500", "--output", folder]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise JobError(done.stderr)


def _audit(world: World, folder: Path) -> None:
    report = audit(world.spark, AuditSettings(**world.settings, archive=world.archive, page=folder / "page.html"))
    assert report.agrees
    assert not any("not_looked_into" in partition["gaps"] for partition in report.partitions), "gaps are explained"


def _replay(world: World, folder: Path, **more: Any) -> None:
    settings = ReplaySettings(**world.settings, topic=OUT_OF, to=INTO, name=folder.name, **more)
    assert replay(world.spark, settings).sent


def _table(world: World, folder: Path) -> None:
    assert table(world.spark, TableSettings(**world.settings, topic=OUT_OF, into=folder / "t")).records


def _aggregate(world: World, folder: Path) -> None:
    settings = AggregateSettings(**world.settings, topic=OUT_OF, into=folder / "g", window="1 hour")
    assert aggregate(world.spark, settings).records


def _search(world: World, _folder: Path) -> None:
    assert search(world.spark, SearchSettings(**world.settings, topic=(OUT_OF,), contains="value")).found


def _stats(world: World, folder: Path) -> None:
    assert stats(world.spark, StatsSettings(**world.settings, topic=(OUT_OF,), into=folder / "s"))


def _spark_source(world: World, _folder: Path) -> None:
    read = world.spark.read.format("kafka").options(**_client(world), subscribe=OUT_OF)
    assert read.load().count() > 0


def _spark_stream(world: World, folder: Path) -> None:
    read = world.spark.readStream.format("kafka").options(**_client(world), subscribe=OUT_OF)
    stream = read.option("startingOffsets", "earliest").load().writeStream.format("noop")
    stream.option("checkpointLocation", str(folder / "c")).trigger(availableNow=True).start().awaitTermination()


def _spark_sink(world: World, _folder: Path) -> None:
    rows = world.spark.sql("select 'v' as value")
    rows.write.format("kafka").options(**_client(world), topic=INTO).save()


def _follow(world: World, _folder: Path) -> None:
    brokers = Brokers(BrokerSettings(**world.settings))
    ends = brokers.end_offsets(brokers.find_topics([OUT_OF])[OUT_OF].topic_partitions())
    brokers.commit("spark-query", ends)


def _segments(world: World, _folder: Path) -> None:
    from barnabas.pipeline.sources.segments import register

    register(world.spark)
    read = world.spark.read.format("barnabas.segments").options(**_client(world), subscribe=OUT_OF)
    assert read.load(str(world.node.broker.data_dir)).count() > 0


JOBS: dict[str, Callable[[World, Path], None]] = {
    "archive": _archive,
    "archive --dead-letters": lambda world, folder: _archive(
        world, folder, decode="json", schema=schema(folder), dead_letters=LETTERS
    ),
    "archive --trim": _trim,
    "audit": _audit,
    "replay": _replay,
    "replay --archive": lambda world, folder: _replay(world, folder, archive=world.archive),
    "table": _table,
    "aggregate": _aggregate,
    "search": _search,
    "stats": _stats,
    "follow": _follow,
    "demo": _demo,
    "Spark's Kafka source, batch": _spark_source,
    "Spark's Kafka source, stream": _spark_stream,
    "Spark's Kafka sink": _spark_sink,
    "barnabas.segments": _segments,
}


def schema(folder: Path) -> Path:
    """A schema that no value matches."""
    path = folder / "schema.ddl"
    path.write_text("n int")
    return path
