"""A stopped node's data directory with all kinds of files, created once and copied for tests that damage it.

FORMAT   topics: `plain` (two partitions, one segment each; partition 0 with transactions, one of them aborted),
         `split` (one partition of many small segments, indexes with several entries), `packed` (compressed, log
         append time), `empty`, `trimmed` (starts after its first segments); a member and a committed offset of group
         `readers`, and of `new readers` with the consumer protocol
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka

from barnabas import Broker
from protocol.compression import Compression
from protocol.control_records import ControlType
from protocol.primitives import uuid_text
from protocol.records import headers, records
from replication.metadata_log.node_identity import META_PROPERTIES
from storage.commitlog.commit_log import DIRECTORY
from storage.config.log_config import LogConfig
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.log_manager import LogManager
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.io.disk import Disk
from storage.log.log import Log
from storage.log.log_validator import AppendOrigin
from tests.support.loading import create
from tests.support.logs import NOW_MS, ProducerInfo, append, append_records, bytes_of, marker
from tests.support.raw_client import RawClient
from tests.support.storage_engine import SETTING

PARTITIONS = (("plain", 0), ("plain", 1), ("split", 0), ("packed", 0), ("empty", 0), ("trimmed", 0))
_SMALL = {"index_interval_bytes": 300, "internal_segment_bytes": 4000}
TOPICS: dict[str, dict[str, Any]] = {
    "plain": {"partitions": 2},
    "split": _SMALL,
    "packed": {"message_timestamp_type": "LogAppendTime"},
    "empty": {},
    "trimmed": _SMALL,
}
SMALL_SEGMENTS = LogConfig(segment_bytes=4000, index_interval_bytes=300)
COMMIT_LOG_FILE_BYTES = 8192

TopicPartition = tuple[str, int]
Content = dict[int, tuple[bytes | None, ...]]
"""Key and value by offset."""


def make_data_directory(path: Path, engine: str = "segments") -> dict[TopicPartition, Content]:
    """Create the directory, with a clean shutdown; returns all records that were written, deleted ones too."""
    settings = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 2, SETTING: engine}
    with Broker(path, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            ids = {name: create(client, name, **configs)[0] for name, configs in TOPICS.items()}
        _commit(broker.bootstrap, "readers", "classic", "empty")
        _commit(broker.bootstrap, "new readers", "consumer", "^em.*")
    written: dict[TopicPartition, Content] = {}
    change_logs(path, lambda manager: written.update(_fill(manager, ids, engine)))
    change_logs(path, lambda manager: _clean(manager, str(path)))
    for file in path.rglob("*.deleted"):
        file.unlink()
    return written


def _commit(bootstrap: str, group: str, protocol: str, topics: str) -> None:
    """Join a group, commit an offset, and leave it."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol})
    consumer.subscribe([topics])
    for _ in range(100):
        if consumer.assignment():
            break
        consumer.poll(0.1)
    consumer.commit(offsets=[confluent_kafka.TopicPartition("plain", 1, 3)], asynchronous=False)
    consumer.close()


def with_metadata_apart(data: Path) -> Path:
    """Move the metadata log of a node to a directory beside `data`, that of `metadata.log.dir`; returns it."""
    metadata = make_directory_beside(data, "metadata")
    (data / METADATA_DIRECTORY).rename(metadata / METADATA_DIRECTORY)
    return metadata


def make_directory_beside(data: Path, name: str) -> Path:
    """Another directory of the same node, formatted and otherwise empty."""
    other = data.with_name(name)
    other.mkdir()
    directory_id = f"directory.id={uuid_text(os.urandom(16))}"
    text = re.sub("directory.id=.*", directory_id, (data / META_PROPERTIES).read_text())
    (other / META_PROPERTIES).write_text(text)
    return other


def change_logs(path: Path, act: Callable[[LogManager], None]) -> None:
    """Change the logs of a stopped node."""
    manager = LogManager(Disk(), {str(path): bytes(16)}, SMALL_SEGMENTS, random_bytes=os.urandom)
    manager.commit_logs.file_bytes = COMMIT_LOG_FILE_BYTES
    manager.load()
    act(manager)
    manager.shutdown(manager.previous_broker_epoch)


def _fill(manager: LogManager, ids: Mapping[str, bytes], engine: str) -> dict[TopicPartition, Content]:
    def log_of(topic: str, partition: int) -> Log:
        config = SMALL_SEGMENTS if topic in {"split", "trimmed"} else LogConfig()
        return manager.get_or_create(topic, partition, ids[topic], replace(config, barnabas_storage_engine=engine))

    logs = {place: log_of(*place) for place in PARTITIONS}
    plain, other = logs["plain", 0], logs["plain", 1]
    for sequence in range(20):
        append(plain, f"value {sequence}", producer=ProducerInfo(7, 0, sequence))
        append(other, f"first {sequence}", f"second {sequence}", timestamp_ms=NOW_MS + sequence)
    for kind, producer_id in ((ControlType.ABORT, 8), (ControlType.COMMIT, 9)):
        append(plain, "in a transaction", producer=ProducerInfo(producer_id, 0, 0, transactional=True))
        append_records(plain, marker(kind, producer_id, 0), origin=AppendOrigin.COORDINATOR)
    for number in range(60):
        append(logs["split", 0], f"{number}: " + "x" * 200, timestamp_ms=NOW_MS + number)
        append(logs["trimmed", 0], "y" * 200)
    for codec in Compression:
        append(logs["packed", 0], *[f"{codec.name} {number}" for number in range(10)], compression=codec)
    written = {place: content_of(bytes_of(log)) for place, log in logs.items()}
    for log in logs.values():
        log.high_watermark = log.log_end_offset
    logs["trimmed", 0].open().trim(30, NOW_MS)
    return written


def _clean(manager: LogManager, directory: str) -> None:
    """Replace the files of a commit log with deleted records by a run."""
    for _ in manager.commit_logs.clean(directory, NOW_MS, 1000, is_full=False) or ():
        pass


def content_of(batches: bytes) -> Content:
    """The records of whole batches."""
    return {
        record.offset: tuple(None if data is None else bytes(data) for data in (record.key, record.value))
        for position, header in headers(batches)
        for record in records(batches, position, header, max_bytes=1 << 24)
    }


def damage(path: Path, dice: random.Random) -> list[str]:
    """Change random files, each kind equally likely; returns a description."""
    done = []
    if dice.random() < 0.4:
        (path / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        done.append("no clean shutdown")
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        kinds: dict[str, list[Path]] = {}
        is_in_commit_log = (path / DIRECTORY).exists() and dice.random() < 0.7
        for file in sorted((path / DIRECTORY if is_in_commit_log else path).rglob("*")):
            if file.is_file():
                internal = file.parent.name.partition("-")[0] if file.parent.name.startswith("__") else ""
                kinds.setdefault(internal + (file.suffix or file.name), []).append(file)
        alike = kinds[dice.choice(sorted(kinds))]
        file = dice.choice(alike)
        done.append(f"{_damage(file, alike, dice)} {file.relative_to(path)}")
    return done


def _damage(file: Path, alike: list[Path], dice: random.Random) -> str:
    content = bytearray(file.read_bytes())
    at = dice.randrange(len(content) or 1)
    length = dice.choice((1, 4, 20, 200))
    kind = dice.choice(
        (*["flip"] * 3, "random bytes", "zeros", "cut", "empty", "append", "delete", "exchange", "strange")
    )
    match kind:
        case "flip" if content:
            content[at] ^= 1 << dice.randrange(8)
            file.write_bytes(content)
            return f"flip at {at}"
        case "random bytes":
            content[at : at + length] = dice.randbytes(length)
            file.write_bytes(content)
            return f"{length} random bytes at {at}"
        case "zeros":
            content[at : at + length] = bytes(length)
            file.write_bytes(content)
            return f"{length} zeros at {at}"
        case "cut":
            file.write_bytes(content[:at])
            return f"cut at {at}"
        case "append":
            file.write_bytes(content + dice.choice((bytes(length), dice.randbytes(length))))
            return f"append {length} to"
        case "delete":
            file.unlink()
            return "delete"
        case "exchange" if len(alike) > 1:
            other = dice.choice([one for one in alike if one != file])
            file.write_bytes(other.read_bytes())
            other.write_bytes(content)
            return f"exchange {other.name} with"
        case "strange":
            name = dice.choice(("00000000000000000000.log.swap", "notes.txt", "00000000000000000007.cleaned", "1.log"))
            (file.parent / name).write_bytes(dice.randbytes(length))
            return f"{name} beside"
        case _:
            file.write_bytes(b"")
            return "empty"
