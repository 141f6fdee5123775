"""A stopped node's data directory with all kinds of files, created once and copied for tests that damage it.

FORMAT   topics: `plain` (two partitions, one segment each; partition 0 with transactions, one of them aborted),
         `split` (one partition of many small segments, indexes with several entries), `packed` (compressed, log
         append time), `empty`, `trimmed` (starts after its first segments); a member and a committed offset of group
         `readers`
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import confluent_kafka

from barnabas import Broker
from protocol.compression import Compression
from protocol.records import ControlType
from storage.config.log_config import LogConfig
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.log_manager import LogManager
from storage.io.disk import Disk
from storage.log.log import AppendOrigin, Log
from tests.support.librdkafka import create_topic
from tests.support.logs import NOW_MS, ProducerInfo, append, append_records, marker

PARTITIONS = (("plain", 0), ("plain", 1), ("split", 0), ("packed", 0), ("empty", 0), ("trimmed", 0))
SMALL_SEGMENTS = LogConfig(segment_bytes=4000, index_interval_bytes=300)


def make_data_directory(path: Path) -> None:
    """Create the directory, with a clean shutdown."""
    with Broker(path, settings={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 2}) as broker:
        small = {"index.interval.bytes": "300", "internal.segment.bytes": "4000"}
        create_topic(broker.bootstrap, "plain", 2)
        create_topic(broker.bootstrap, "split", 1, 1, **small)
        create_topic(broker.bootstrap, "packed", message_timestamp_type="LogAppendTime")
        create_topic(broker.bootstrap, "empty")
        create_topic(broker.bootstrap, "trimmed", 1, 1, **small)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
        consumer.subscribe(["empty"])
        for _ in range(100):
            if consumer.assignment():
                break
            consumer.poll(0.1)
        consumer.commit(offsets=[confluent_kafka.TopicPartition("plain", 1, 3)], asynchronous=False)
        consumer.close()
    change_logs(path, _fill)
    for file in path.rglob("*.deleted"):
        file.unlink()


def change_logs(path: Path, act: Callable[[LogManager], None]) -> None:
    """Change the logs of a stopped node."""
    manager = LogManager(Disk(), {str(path): bytes(16)}, SMALL_SEGMENTS, random_bytes=os.urandom)
    manager.load()
    act(manager)
    manager.shutdown(manager.previous_broker_epoch)


def _fill(manager: LogManager) -> None:
    plain, other = _log(manager, "plain", 0), _log(manager, "plain", 1)
    for sequence in range(20):
        append(plain, f"value {sequence}", producer=ProducerInfo(7, 0, sequence))
        append(other, f"first {sequence}", f"second {sequence}", timestamp_ms=NOW_MS + sequence)
    for kind, producer_id in ((ControlType.ABORT, 8), (ControlType.COMMIT, 9)):
        append(plain, "in a transaction", producer=ProducerInfo(producer_id, 0, 0, transactional=True))
        append_records(plain, marker(kind, producer_id, 0), origin=AppendOrigin.COORDINATOR)
    split, trimmed = _log(manager, "split", 0), _log(manager, "trimmed", 0)
    for number in range(60):
        append(split, f"{number}: " + "x" * 200, timestamp_ms=NOW_MS + number)
        append(trimmed, "y" * 200)
    packed = _log(manager, "packed", 0)
    for codec in Compression:
        append(packed, *[f"{codec.name} {number}" for number in range(10)], compression=codec)
    for log in (plain, other, split, trimmed, packed):
        log.high_watermark = log.log_end_offset
    trimmed.open().trim(30, NOW_MS)


def _log(manager: LogManager, topic: str, partition: int) -> Log:
    log = manager.logs.get((topic, partition))
    assert log is not None
    log.update_config(SMALL_SEGMENTS if topic in {"split", "trimmed"} else LogConfig())
    return log


def damage(path: Path, dice: random.Random) -> list[str]:
    """Change random files, each kind equally likely; returns a description."""
    done = []
    if dice.random() < 0.4:
        (path / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        done.append("no clean shutdown")
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        kinds: dict[str, list[Path]] = {}
        for file in sorted(path.rglob("*")):
            if file.is_file():
                internal = file.parent.name.partition("-")[0] if file.parent.name.startswith("__") else ""
                kinds.setdefault(internal + (file.suffix or file.name), []).append(file)
        file = dice.choice(kinds[dice.choice(sorted(kinds))])
        done.append(f"{_damage(file, dice)} {file.relative_to(path)}")
    return done


def _damage(file: Path, dice: random.Random) -> str:
    content = bytearray(file.read_bytes())
    at = dice.randrange(len(content) or 1)
    length = dice.choice((1, 4, 20, 200))
    match dice.choice(("flip", "flip", "flip", "random bytes", "zeros", "cut", "empty", "append", "delete", "strange")):
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
        case "strange":
            name = dice.choice(("00000000000000000000.log.swap", "notes.txt", "00000000000000000007.cleaned", "1.log"))
            (file.parent / name).write_bytes(dice.randbytes(length))
            return f"{name} beside"
        case _:
            file.write_bytes(b"")
            return "empty"
