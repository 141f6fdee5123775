"""Random histories of a cluster as metadata records, for whoever replays them."""

from __future__ import annotations

import random
from collections.abc import Iterable

from protocol.messages import stored_records
from protocol.records import BatchBuilder
from protocol.schema import Message
from replication.metadata.feature_levels import partition_version, registration_version
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.metadata_records import Versioned, encode_record

LEVELS = (7, 8, 14, 15, 17, 20, 22, 23, 30, 33)


def data_batch(messages: Iterable[Versioned], *, base_offset: int, leader_epoch: int, timestamp_ms: int) -> bytearray:
    """One batch of data records."""
    builder = BatchBuilder(base_offset, leader_epoch=leader_epoch)
    append = builder.append
    for message, version in messages:
        append(timestamp_ms, None, encode_record(message, version))
    return builder.build()


def random_history(dice: random.Random, steps: int) -> list[Versioned]:
    """Valid random changes of a cluster that starts at one of `LEVELS`."""
    history = _History(dice)
    for _ in range(steps):
        dice.choice(history.changes)()
    return history.records


class _History:
    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.records: list[Versioned] = []
        self._image = MetadataImage("cluster")
        self._level = dice.choice(LEVELS)
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
            self._add_opaque_record,
            self._add_opaque_record,
            self._remove_opaque_record,
        ]

    def _add(self, record: Message, version: int = 0) -> None:
        self.records.append((record, version))
        self._image, _ = self._image.apply([record], offset=len(self.records) - 1, epoch=1)

    def _ids(self, most: int) -> list[int]:
        return self._dice.sample(range(1, 6), self._dice.randint(0, most))

    @property
    def _partition_version(self) -> int:
        return partition_version(self._level)

    def _feature(self) -> None:
        name = self._dice.choice(("group.version", "transaction.version"))
        self._add(stored_records.FeatureLevelRecord(name=name, feature_level=self._dice.randint(0, 2)))

    def _endpoints(self) -> list[stored_records.BrokerEndpoint]:
        names = self._dice.sample(("PLAINTEXT", "INSIDE", "OUTSIDE"), self._dice.randint(1, 3))
        return [
            stored_records.BrokerEndpoint(
                name=name, host=f"h{i}", port=self._dice.randrange(65536), security_protocol=i
            )
            for i, name in enumerate(names)
        ]

    def _register_broker(self) -> None:
        dice, is_last = self._dice, self._level >= 30
        record = stored_records.RegisterBrokerRecord(
            broker_id=dice.randint(1, 5),
            incarnation_id=dice.randbytes(16),
            broker_epoch=len(self.records),
            end_points=self._endpoints(),
            features=[
                stored_records.BrokerFeature(
                    name="f", min_supported_version=0, max_supported_version=dice.randint(0, 9)
                )
            ],
            rack=dice.choice((None, "", "a rack")),
            fenced=dice.random() < 0.5,
            in_controlled_shutdown=dice.random() < 0.5,
            log_dirs=[dice.randbytes(16) for _ in range(dice.randint(0, 3))] if self._level >= 17 else [],
            cordoned_log_dirs=dice.choice((None, [], [dice.randbytes(16)])) if is_last else None,
        )
        self._add(record, registration_version(self._level))

    def _change_broker(self) -> None:
        dice = self._dice
        if self._image.brokers:
            broker = dice.choice(list(self._image.brokers.values()))
            record = stored_records.BrokerRegistrationChangeRecord(
                broker_id=broker.broker_id,
                broker_epoch=broker.epoch,
                fenced=dice.choice((-1, 0, 1)),
                in_controlled_shutdown=dice.choice((0, 1)),
                log_dirs=[dice.randbytes(16)] if self._level >= 17 and dice.random() < 0.3 else [],
            )
            self._add(record, 2 if self._level >= 17 else 1)

    def _unregister_broker(self) -> None:
        if self._image.brokers:
            broker = self._dice.choice(list(self._image.brokers.values()))
            self._add(stored_records.UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch))

    def _register_controller(self) -> None:
        if self._level < 15:
            return
        self._add(
            stored_records.RegisterControllerRecord(
                controller_id=self._dice.randint(1, 3),
                incarnation_id=self._dice.randbytes(16),
                end_points=self._endpoints(),
                features=[stored_records.BrokerFeature(name="k", min_supported_version=0, max_supported_version=1)],
            )
        )

    def _create_topic(self) -> None:
        name = f"topic-{self._dice.randint(0, 9)}"
        if name in self._image.topics_by_name:
            return
        topic_id = self._dice.randbytes(16)
        self._add(stored_records.TopicRecord(name=name, topic_id=topic_id))
        indexes = list(range(self._dice.randint(1, 4)))
        self._dice.shuffle(indexes)
        for index in indexes:
            self._add(self._partition(topic_id, index), self._partition_version)

    def _partition(self, topic_id: bytes, index: int) -> stored_records.PartitionRecord:
        dice, is_new = self._dice, self._level >= 23
        replicas = self._ids(4) or [1]
        return stored_records.PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=replicas,
            isr=replicas[:2],
            removing_replicas=self._ids(1),
            adding_replicas=self._ids(2),
            leader=dice.choice((-1, replicas[0])),
            leader_recovery_state=dice.choice((0, 1)),
            leader_epoch=dice.randint(0, 9),
            partition_epoch=dice.randint(0, 9),
            directories=[dice.randbytes(16) for _ in replicas] if self._level >= 17 else [],
            eligible_leader_replicas=dice.choice((None, [], [3, 2])) if is_new else None,
            last_known_elr=dice.choice((None, [4])) if is_new else None,
        )

    def _change_partition(self) -> None:
        topics = list(self._image.topics_by_id.values())
        if topics:
            topic = self._dice.choice(topics)
            change = stored_records.PartitionChangeRecord(
                partition_id=self._dice.choice(list(topic.partitions)),
                topic_id=topic.topic_id,
                isr=self._dice.choice((None, [1], [2, 1])),
                leader=self._dice.choice((-2, -1, 1, 2)),
                replicas=self._dice.choice((None, [2, 1, 3])),
            )
            self._add(change, self._partition_version)

    def _remove_topic(self) -> None:
        if self._image.topics_by_id:
            self._add(stored_records.RemoveTopicRecord(topic_id=self._dice.choice(list(self._image.topics_by_id))))

    def _configure(self) -> None:
        dice = self._dice
        kind, name = dice.choice(
            ((ResourceType.BROKER, ""), (ResourceType.BROKER, "1"), (ResourceType.GROUP, "g"), (ResourceType.TOPIC, ""))
        )
        if kind == ResourceType.TOPIC:
            if not self._image.topics_by_name:
                return
            name = dice.choice(list(self._image.topics_by_name))
        key, value = f"setting.{dice.randint(0, 3)}", dice.choice((None, "", "value", "ä" * 100))
        self._add(stored_records.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value))

    def _allocate_producer_ids(self) -> None:
        self._add(
            stored_records.ProducerIdsRecord(
                broker_id=1, broker_epoch=1, next_producer_id=self._image.next_producer_id + 1000
            )
        )

    def _add_opaque_record(self) -> None:
        dice = self._dice
        user = dice.choice(("a", "b", None))
        entity = [
            stored_records.EntityData(entity_type=kind, entity_name=user) for kind in dice.sample(("user", "ip"), 2)
        ]
        quota = stored_records.ClientQuotaRecord(
            entity=entity[: dice.randint(1, 2)],
            key=dice.choice(("producer_byte_rate", "request_percentage")),
            value=dice.random(),
            remove=dice.random() < 0.3,
        )
        entry = stored_records.AccessControlEntryRecord(
            id=bytes([dice.randint(0, 3)]) * 16,
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=dice.randint(2, 9),
            permission_type=3,
        )
        credential = stored_records.UserScramCredentialRecord(
            name=user or "",
            mechanism=dice.randint(1, 2),
            salt=dice.randbytes(4),
            stored_key=b"k",
            server_key=b"s",
            iterations=4096,
        )
        token = stored_records.DelegationTokenRecord(
            owner="User:a",
            requester="User:b",
            renewers=["User:c"],
            issue_timestamp=1,
            max_timestamp=dice.randint(2, 9),
            expiration_timestamp=2,
            token_id=dice.choice("xyz"),
        )
        self._add(dice.choice((quota, entry, credential, token)))

    def _remove_opaque_record(self) -> None:
        dice = self._dice
        removals = (
            stored_records.RemoveAccessControlEntryRecord(id=bytes([dice.randint(0, 3)]) * 16),
            stored_records.RemoveUserScramCredentialRecord(name=dice.choice("ab"), mechanism=dice.randint(1, 2)),
            stored_records.RemoveDelegationTokenRecord(token_id=dice.choice("xyz")),
        )
        self._add(dice.choice(removals))
