"""Batches of metadata records, and random histories of a cluster."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any

from protocol.batch_builder import BatchBuilder
from protocol.control_records import ControlType
from protocol.messages import stored_records
from protocol.schema import Message, fields_of
from replication.metadata.feature_levels import partition_version, registration_version
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.image_records import image_records
from replication.metadata.metadata_records import Versioned, control_records, encode_record, snapshot
from tests.support.controller_harness import WALL_MS
from tests.support.sample_requests import Drawer

LEVELS = (7, 8, 14, 15, 17, 20, 22, 23, 30, 33)


def feature_level(level: int, name: str = "metadata.version") -> stored_records.FeatureLevelRecord:
    return stored_records.FeatureLevelRecord(name=name, feature_level=level)


METADATA_VERSION = feature_level(30)


def topic_record(name: str) -> stored_records.TopicRecord:
    return stored_records.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\1"))


def batch(*messages: Message, offset: int = 0, epoch: int = 1) -> bytearray:
    """A batch of the metadata log with data records of version 0."""
    versioned = [(message, 0) for message in messages]
    return data_batch(versioned, base_offset=offset, leader_epoch=epoch, timestamp_ms=WALL_MS)


def control_batch(*messages: tuple[ControlType, Message], offset: int = 0) -> bytearray:
    """A batch of the metadata log with control records."""
    return control_records(messages, base_offset=offset, leader_epoch=1, timestamp_ms=WALL_MS)


def snapshot_of(*messages: Message, epoch: int = 0, control: Sequence[tuple[ControlType, Message]] = ()) -> bytes:
    """A snapshot file with data records of version 0."""
    versioned = [(message, 0) for message in messages]
    return snapshot(control, versioned, leader_epoch=epoch, timestamp_ms=WALL_MS, last_contained_ms=WALL_MS)


def data_batch(messages: Iterable[Versioned], *, base_offset: int, leader_epoch: int, timestamp_ms: int) -> bytearray:
    """One batch of data records."""
    builder = BatchBuilder(base_offset, leader_epoch=leader_epoch)
    append = builder.append
    for message, version in messages:
        append(timestamp_ms, None, encode_record(message, version))
    return builder.build()


def random_history(rng: random.Random, steps: int) -> list[Versioned]:
    """Valid random changes of a cluster that starts at one of `LEVELS`."""
    history = _History(rng)
    for _ in range(steps):
        rng.choice(history.changes)()
    return history.records


_REMOVALS: dict[type[Message], type[Message]] = {
    stored_records.ClientQuotaRecord: stored_records.ClientQuotaRecord,
    stored_records.UserScramCredentialRecord: stored_records.RemoveUserScramCredentialRecord,
    stored_records.DelegationTokenRecord: stored_records.RemoveDelegationTokenRecord,
}
"""The opaque records, and what removes them."""


class _SmallVocabulary(Drawer):
    """Draws records that often replace each other; the parts of a quota's entity differ in their types."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._entity_types = itertools.cycle(("user", "client-id", "ip"))

    def number(self, name: str, code: str) -> Any:
        value = self.rng.randint(0, 1)
        return {"16s": bytes([value]) * 16, "?": value == 1}.get(code, value)

    def text(self, name: str) -> str:
        return next(self._entity_types) if name == "entity_type" else self.rng.choice("ab")


class _History:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._opaque = _SmallVocabulary(rng)
        self.records: list[Versioned] = []
        self._image = MetadataImage("cluster")
        self._level = rng.choice(LEVELS)
        self._add(stored_records.FeatureLevelRecord(name="metadata.version", feature_level=self._level))
        self.changes = [
            self._feature,
            self._register_broker,
            self._change_broker,
            self._unregister_broker,
            self._register_controller,
            self._create_topic,
            self._remove_topic,
            self._change_partition,
            self._change_partition,
            self._configure,
            self._configure,
            self._allocate_producer_ids,
            self._add_acl,
            self._remove_acl,
            self._add_opaque_record,
            self._add_opaque_record,
            self._remove_opaque_record,
        ]

    def _add(self, record: Message, version: int = 0) -> None:
        self.records.append((record, version))
        self._image, _ = self._image.apply([record], offset=len(self.records) - 1, epoch=1)

    def _ids(self, maximum: int) -> list[int]:
        return self._rng.sample(range(1, 6), self._rng.randint(0, maximum))

    @property
    def _partition_version(self) -> int:
        return partition_version(self._level)

    def _feature(self) -> None:
        name = self._rng.choice(("group.version", "transaction.version"))
        self._add(stored_records.FeatureLevelRecord(name=name, feature_level=self._rng.randint(0, 2)))

    def _endpoints(self) -> list[stored_records.BrokerEndpoint]:
        names = self._rng.sample(("PLAINTEXT", "INSIDE", "OUTSIDE"), self._rng.randint(1, 3))
        return [
            stored_records.BrokerEndpoint(name=name, host=f"h{i}", port=self._rng.randrange(65536), security_protocol=i)
            for i, name in enumerate(names)
        ]

    def _register_broker(self) -> None:
        rng, has_cordons = self._rng, self._level >= 30
        record = stored_records.RegisterBrokerRecord(
            broker_id=rng.randint(1, 5),
            incarnation_id=rng.randbytes(16),
            broker_epoch=len(self.records),
            end_points=self._endpoints(),
            features=[
                stored_records.BrokerFeature(name="f", min_supported_version=0, max_supported_version=rng.randint(0, 9))
            ],
            rack=rng.choice((None, "", "a rack")),
            fenced=rng.random() < 0.5,
            in_controlled_shutdown=rng.random() < 0.5,
            log_dirs=[rng.randbytes(16) for _ in range(rng.randint(0, 3))] if self._level >= 17 else [],
            cordoned_log_dirs=rng.choice((None, [], [rng.randbytes(16)])) if has_cordons else None,
        )
        self._add(record, registration_version(self._level))

    def _change_broker(self) -> None:
        rng = self._rng
        if self._image.brokers:
            broker = rng.choice(list(self._image.brokers.values()))
            record = stored_records.BrokerRegistrationChangeRecord(
                broker_id=broker.broker_id,
                broker_epoch=broker.epoch,
                fenced=rng.choice((-1, 0, 1)),
                in_controlled_shutdown=rng.choice((0, 1)),
                log_dirs=[rng.randbytes(16)] if self._level >= 17 and rng.random() < 0.3 else [],
            )
            self._add(record, 2 if self._level >= 17 else 1)

    def _unregister_broker(self) -> None:
        if self._image.brokers:
            broker = self._rng.choice(list(self._image.brokers.values()))
            self._add(stored_records.UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch))

    def _register_controller(self) -> None:
        if self._level < 15:
            return
        self._add(
            stored_records.RegisterControllerRecord(
                controller_id=self._rng.randint(1, 3),
                incarnation_id=self._rng.randbytes(16),
                end_points=self._endpoints(),
                features=[stored_records.BrokerFeature(name="k", min_supported_version=0, max_supported_version=1)],
            )
        )

    def _create_topic(self) -> None:
        name = f"topic-{self._rng.randint(0, 9)}"
        if name in self._image.topics_by_name:
            return
        topic_id = self._rng.randbytes(16)
        self._add(stored_records.TopicRecord(name=name, topic_id=topic_id))
        indexes = list(range(self._rng.randint(1, 4)))
        self._rng.shuffle(indexes)
        for index in indexes:
            self._add(self._partition(topic_id, index), self._partition_version)

    def _partition(self, topic_id: bytes, index: int) -> stored_records.PartitionRecord:
        rng, is_new = self._rng, self._level >= 23
        replicas = self._ids(4) or [1]
        return stored_records.PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=replicas,
            isr=replicas[:2],
            removing_replicas=self._ids(1),
            adding_replicas=self._ids(2),
            leader=rng.choice((-1, replicas[0])),
            leader_recovery_state=rng.choice((0, 1)),
            leader_epoch=rng.randint(0, 9),
            partition_epoch=rng.randint(0, 9),
            directories=[rng.randbytes(16) for _ in replicas] if self._level >= 17 else [],
            eligible_leader_replicas=rng.choice((None, [], [3, 2])) if is_new else None,
            last_known_elr=rng.choice((None, [4])) if is_new else None,
        )

    def _change_partition(self) -> None:
        topics = list(self._image.topics_by_id.values())
        if topics:
            topic = self._rng.choice(topics)
            change = stored_records.PartitionChangeRecord(
                partition_id=self._rng.choice(list(topic.partitions)),
                topic_id=topic.topic_id,
                isr=self._rng.choice((None, [1], [2, 1])),
                leader=self._rng.choice((-2, -1, 1, 2)),
                replicas=self._rng.choice((None, [2, 1, 3])),
            )
            self._add(change, self._partition_version)

    def _remove_topic(self) -> None:
        if self._image.topics_by_id:
            self._add(stored_records.RemoveTopicRecord(topic_id=self._rng.choice(list(self._image.topics_by_id))))

    def _configure(self) -> None:
        rng = self._rng
        kind, name = rng.choice(
            ((ResourceType.BROKER, ""), (ResourceType.BROKER, "1"), (ResourceType.GROUP, "g"), (ResourceType.TOPIC, ""))
        )
        if kind == ResourceType.TOPIC:
            if not self._image.topics_by_name:
                return
            name = rng.choice(list(self._image.topics_by_name))
        key, value = f"setting.{rng.randint(0, 3)}", rng.choice((None, "", "value", "ä" * 100))
        self._add(stored_records.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value))

    def _allocate_producer_ids(self) -> None:
        self._add(
            stored_records.ProducerIdsRecord(
                broker_id=1, broker_epoch=1, next_producer_id=self._image.next_producer_id + 1000
            )
        )

    def _add_acl(self) -> None:
        self._add(self._opaque.message(stored_records.AccessControlEntryRecord, 0))

    def _remove_acl(self) -> None:
        if self._image.acls:
            self._add(stored_records.RemoveAccessControlEntryRecord(id=self._rng.choice(list(self._image.acls))))

    def _add_opaque_record(self) -> None:
        self._add(self._opaque.message(self._rng.choice(list(_REMOVALS)), 0))

    def _remove_opaque_record(self) -> None:
        if removable := [record for record, _ in image_records(self._image) if type(record) in _REMOVALS]:
            kept = self._rng.choice(removable)
            removal = _REMOVALS[type(kept)]
            fields = {field.name: getattr(kept, field.name) for field in fields_of(removal)}
            self._add(removal(**{**fields, **({"remove": True} if "remove" in fields else {})}))
