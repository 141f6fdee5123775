"""The cluster metadata as an immutable value that changes only by applying records (Kafka: MetadataImage).

RULES    1. An image never changes. `apply` returns a new image that shares everything the records did not change. So readers
            keep a consistent view, and a controller discards uncommitted changes by returning to an older image.
         2. All content follows from the records of the metadata log: the same records give an equal image on every node, in
            whatever batches they are applied.
         3. `MetadataDelta` names what changed; its readers find the new values in the new image.
         4. A record that contradicts the image (for example a partition of an unknown topic) is a bug or a damaged log:
            AssertionError, the node stops.
NOT HERE Which records are written (`controller/`), their encoding (`metadata_records.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeVar

from protocol.messages import stored_records
from protocol.primitives import uuid_text
from protocol.schema import Message
from replication.metadata.acls import Acl, acl_of
from replication.metadata.client_quotas import Entity, entity_of
from replication.metadata.feature_levels import ELIGIBLE_LEADERS, METADATA_VERSION
from replication.metadata.opaque_records import Key, key_of
from storage.config.log_config import DYNAMIC_BROKER_SETTINGS, find_default_error

UNASSIGNED_DIRECTORY = (1).to_bytes(16, "big")
"""DirectoryId.UNASSIGNED: the broker has not reported the log directory yet."""
MIGRATING_DIRECTORY = bytes(16)
"""DirectoryId.MIGRATING: unknown when the cluster began to track log directories."""
NO_LEADER = -1
UNCHANGED_LEADER = -2
K = TypeVar("K")
V = TypeVar("V")
_NO_CONFIGS: Mapping[str, str] = {}


class ResourceType:
    """The resource of a config, numbered as in ConfigRecord."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class PartitionState(NamedTuple):
    """A partition's registration in the metadata."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    eligible_leaders: tuple[int, ...] = ()
    last_known_leaders: tuple[int, ...] = ()
    leader_recovery_state: int = 0

    def directory_of(self, broker_id: int) -> bytes | None:
        """The log directory of a broker's replica; None if it has not been reported."""
        named = dict(zip(self.replicas, self.directories, strict=False)).get(broker_id)
        return None if named in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY) else named

    def is_in_directories(self, broker_id: int, directories: Sequence[bytes]) -> bool:
        """Whether a broker's replica is in one of these log directories, as far as known."""
        named = self.directory_of(broker_id)
        return not directories or named is None or named in directories

    def with_change(self, record: stored_records.PartitionChangeRecord) -> PartitionState:
        """The state after a PartitionChangeRecord."""
        replicas = self.replicas if record.replicas is None else tuple(record.replicas)
        if record.directories is not None:
            directories = tuple(record.directories)
        elif record.replicas is None or not self.directories:
            directories = self.directories
        else:
            known = dict(zip(self.replicas, self.directories, strict=False))
            directories = tuple(known.get(replica, UNASSIGNED_DIRECTORY) for replica in replicas)
        has_new_leader = record.leader != UNCHANGED_LEADER
        return PartitionState(
            replicas,
            self.isr if record.isr is None else tuple(record.isr),
            record.leader if has_new_leader else self.leader,
            self.leader_epoch + 1 if has_new_leader else self.leader_epoch,
            self.partition_epoch + 1,
            directories,
            _changed(self.adding, record.adding_replicas),
            _changed(self.removing, record.removing_replicas),
            _changed(self.eligible_leaders, record.eligible_leader_replicas),
            _changed(self.last_known_leaders, record.last_known_elr),
            self.leader_recovery_state if record.leader_recovery_state == -1 else record.leader_recovery_state,
        )


def _put_value(values_by_key: dict[K, dict[str, V]], key: K, name: str, value: V | None) -> None:
    """Set a value of a key, or remove it with None. The dictionary of the key is replaced: other images have it too."""
    values = dict(values_by_key.get(key, {}))
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value
    if values:
        values_by_key[key] = values
    else:
        values_by_key.pop(key, None)


def _changed(old: tuple[int, ...], new: list[int] | None) -> tuple[int, ...]:
    return old if new is None else tuple(new)


@dataclass(slots=True)
class TopicImage:
    """A topic and its partitions in ascending order of index."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionState]


class Endpoint(NamedTuple):
    """A listener of a broker or controller."""

    listener: str
    host: str
    port: int
    security_protocol: int


class BrokerImage(NamedTuple):
    """A broker's registration."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: dict[str, tuple[int, int]]
    rack: str | None
    is_fenced: bool
    is_shutting_down: bool
    directories: tuple[bytes, ...]
    cordoned_directories: tuple[bytes, ...] | None = None

    @property
    def is_active(self) -> bool:
        """Whether the broker may receive replicas and clients."""
        return not self.is_fenced and not self.is_shutting_down

    def endpoint(self, listener: str) -> Endpoint | None:
        """The endpoint with a listener name."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


class ControllerImage(NamedTuple):
    """A controller's registration."""

    controller_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: dict[str, tuple[int, int]]


@dataclass(slots=True)
class MetadataDelta:
    """What differs between two images.

    `partitions` holds new and changed partitions by topic id, all present in the new image; `created_topics` holds topic ids;
    `removed_topics` holds topics as they were in the old image.
    """

    partitions: dict[bytes, set[int]] = field(default_factory=dict)
    created_topics: set[bytes] = field(default_factory=set)
    removed_topics: dict[bytes, TopicImage] = field(default_factory=dict)
    brokers: set[int] = field(default_factory=set)
    configs: set[tuple[int, str]] = field(default_factory=set)
    features: bool = False

    @classmethod
    def from_empty(cls, image: MetadataImage) -> Self:
        """The difference between an empty image and `image`."""
        changes = cls()
        for topic_id, topic in image.topics_by_id.items():
            changes.partitions[topic_id] = set(topic.partitions)
        changes.created_topics.update(image.topics_by_id)
        changes.brokers.update(image.brokers)
        changes.configs.update(image.configs)
        changes.features = bool(image.features)
        return changes

    @classmethod
    def between(cls, old: MetadataImage, new: MetadataImage) -> Self:
        """The difference between two images of which the second was not built from the first; may name unchanged things."""
        changes = cls.from_empty(new)
        for topic_id, topic in old.topics_by_id.items():
            if topic_id not in new.topics_by_id:
                changes.removed_topics[topic_id] = topic
        changes.created_topics.difference_update(old.topics_by_id)
        changes.brokers.update(old.brokers)
        changes.configs.update(old.configs)
        changes.features = old.features != new.features
        return changes


@dataclass(slots=True, eq=False, repr=False)
class MetadataImage:
    """The cluster at one offset of the metadata log."""

    cluster_id: str
    offset: int = -1
    """Offset of the last applied record; -1 before the first."""
    epoch: int = 0
    """Leader epoch of the last applied record."""
    leader_id: int = -1
    """The active controller, which is the leader of the metadata log; -1 if unknown."""
    topics_by_name: dict[str, TopicImage] = field(default_factory=dict)
    topics_by_id: dict[bytes, TopicImage] = field(default_factory=dict)
    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    controllers: dict[int, ControllerImage] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    """Dynamic configs by (resource type, resource name); the cluster-wide broker default has the name ""."""
    features: dict[str, int] = field(default_factory=dict)
    """Finalized feature levels, `metadata.version` included."""
    next_producer_id: int = 0
    acls: dict[bytes, Acl] = field(default_factory=dict)
    """Access control entries by id; a new dictionary after every change."""
    quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)
    """Client quotas by entity; a new dictionary after every change."""
    opaque_records: dict[Key, Message] = field(default_factory=dict)
    """SCRAM credentials and delegation tokens, as records (`opaque_records.py`)."""

    def __repr__(self) -> str:
        return (
            f"MetadataImage(offset {self.offset}, epoch {self.epoch}: {len(self.topics_by_id)} topics, "
            f"{len(self.brokers)} brokers)"
        )

    @property
    def metadata_version(self) -> int:
        """The finalized metadata.version, which determines the record versions; 0 before the first record."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def has_eligible_leaders(self) -> bool:
        """Whether eligible leader replicas (KIP-966) are enabled."""
        return self.features.get(ELIGIBLE_LEADERS, 0) >= 1

    def topic_config(self, name: str) -> Mapping[str, str]:
        """The dynamic config of a topic."""
        return self.configs.get((ResourceType.TOPIC, name), _NO_CONFIGS)

    def group_config(self, group_id: str) -> Mapping[str, str]:
        """The dynamic config of a group."""
        return self.configs.get((ResourceType.GROUP, group_id), _NO_CONFIGS)

    def own_broker_config(self, broker: str) -> Mapping[str, str]:
        """A broker's own dynamic config, or the cluster-wide one (""), which it overrides."""
        return self.configs.get((ResourceType.BROKER, broker), _NO_CONFIGS)

    def topic_defaults(self, broker_id: int) -> dict[str, str]:
        """The defaults of topic configs in a broker's dynamic config: cluster-wide ones overridden by its own."""
        return {**self.own_topic_defaults(""), **self.own_topic_defaults(str(broker_id))}

    def own_topic_defaults(self, broker: str) -> dict[str, str]:
        """What a broker's own dynamic config, or the cluster-wide one (""), has for topics.

        Values that no topic may have are left out: a controller stores what an operator sends to it without a check.
        """
        known = (
            (name, text) for name, text in self.own_broker_config(broker).items() if name in DYNAMIC_BROKER_SETTINGS
        )
        return {name: text for name, text in known if find_default_error(name, text) is None}

    def apply(self, records: Iterable[Message], *, offset: int, epoch: int) -> tuple[MetadataImage, MetadataDelta]:
        """The image after `records`, of which the last is at `offset`, and the difference."""
        draft = _Draft(self)
        handlers = _HANDLERS
        for record in records:
            handlers[type(record)](draft, record)
        image = draft.freeze()
        image.offset = offset
        image.epoch = epoch
        return image, draft.changes

    def with_leader(self, leader_id: int, *, offset: int, epoch: int) -> MetadataImage:
        """The image after a leader change of the metadata log."""
        return replace(self, leader_id=leader_id, offset=offset, epoch=epoch)

    def without_leader(self, broker_id: int) -> tuple[MetadataImage, MetadataDelta]:
        """The image in which the partitions led by one broker have no leader."""
        draft = _Draft(self)
        for topic_id, topic in self.topics_by_id.items():
            for index, state in topic.partitions.items():
                if state.leader == broker_id:
                    draft.partitions_of(topic_id)[index] = state._replace(leader=NO_LEADER)
                    draft.mark_changed(topic_id, index)
        return draft.freeze(), draft.changes


class _Draft:
    """A mutable image: each dictionary is copied once, when it is first written."""

    __slots__ = ("_base", "_copied", "_partitions", "_unsorted", "changes", "image")

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self.image = replace(base)
        self.changes = MetadataDelta()
        self._copied: set[str] = set()
        self._partitions: dict[bytes, dict[int, PartitionState]] = {}
        self._unsorted: set[bytes] = set()

    def freeze(self) -> MetadataImage:
        image = self.image
        for topic_id, partitions in self._partitions.items():
            old = image.topics_by_id[topic_id]
            in_order = dict(sorted(partitions.items())) if topic_id in self._unsorted else partitions
            topic = TopicImage(old.name, topic_id, in_order)
            image.topics_by_id[topic_id] = topic
            image.topics_by_name[old.name] = topic
        return image

    def _copy_on_write(self, slot: str) -> None:
        if slot not in self._copied:
            self._copied.add(slot)
            setattr(self.image, slot, dict(getattr(self.image, slot)))

    def _copy_topics(self) -> None:
        self._copy_on_write("topics_by_id")
        self._copy_on_write("topics_by_name")

    def partitions_of(self, topic_id: bytes) -> dict[int, PartitionState]:
        partitions = self._partitions.get(topic_id)
        if partitions is None:
            topic = self.image.topics_by_id.get(topic_id)
            assert topic is not None, f"a record names topic {uuid_text(topic_id)}, which does not exist"
            self._copy_topics()
            partitions = self._partitions[topic_id] = dict(topic.partitions)
        return partitions

    def mark_changed(self, topic_id: bytes, index: int) -> None:
        self.changes.partitions.setdefault(topic_id, set()).add(index)

    # -- topics and partitions

    def topic(self, record: stored_records.TopicRecord) -> None:
        self._copy_topics()
        image = self.image
        assert record.name not in image.topics_by_name, f"a record creates topic {record.name}, which exists"
        topic = TopicImage(record.name, record.topic_id, {})
        image.topics_by_name[record.name] = topic
        image.topics_by_id[record.topic_id] = topic
        self._partitions[record.topic_id] = {}
        self.changes.created_topics.add(record.topic_id)

    def remove_topic(self, record: stored_records.RemoveTopicRecord) -> None:
        self._copy_topics()
        image, changes, topic_id = self.image, self.changes, record.topic_id
        topic = image.topics_by_id.pop(topic_id, None)
        assert topic is not None, f"a record removes topic {uuid_text(topic_id)}, which does not exist"
        del image.topics_by_name[topic.name]
        self._partitions.pop(topic_id, None)
        changes.partitions.pop(topic_id, None)
        changes.created_topics.discard(topic_id)
        before = self._base.topics_by_id.get(topic_id)
        if before is not None:
            changes.removed_topics[topic_id] = before
        resource = (ResourceType.TOPIC, topic.name)
        if resource in image.configs:
            self._copy_on_write("configs")
            del image.configs[resource]
            changes.configs.add(resource)

    def partition(self, record: stored_records.PartitionRecord) -> None:
        topic_id, index = record.topic_id, record.partition_id
        partitions = self.partitions_of(topic_id)
        if index != len(partitions):
            self._unsorted.add(topic_id)
        partitions[index] = PartitionState(
            tuple(record.replicas),
            tuple(record.isr),
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            tuple(record.directories),
            tuple(record.adding_replicas),
            tuple(record.removing_replicas),
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
            record.leader_recovery_state,
        )
        self.mark_changed(topic_id, index)

    def partition_change(self, record: stored_records.PartitionChangeRecord) -> None:
        topic_id, index = record.topic_id, record.partition_id
        partitions = self.partitions_of(topic_id)
        old = partitions.get(index)
        assert old is not None, f"a record changes partition {index} of {uuid_text(topic_id)}, which does not exist"
        partitions[index] = old.with_change(record)
        self.mark_changed(topic_id, index)

    def clear_elr(self, record: stored_records.ClearElrRecord) -> None:
        image = self.image
        if record.topic_name:
            named = image.topics_by_name.get(record.topic_name)
            assert named is not None, f"a record clears the ELR of topic {record.topic_name}, which does not exist"
            topics = [named]
        else:
            topics = list(image.topics_by_id.values())
        for topic in topics:
            partitions = self._partitions.get(topic.topic_id, topic.partitions)
            for index, old in list(partitions.items()):
                if old.eligible_leaders or old.last_known_leaders:
                    self.partitions_of(topic.topic_id)[index] = old._replace(
                        eligible_leaders=(), last_known_leaders=(), partition_epoch=old.partition_epoch + 1
                    )
                    self.mark_changed(topic.topic_id, index)

    # -- configs, features, ACLs, quotas

    def config(self, record: stored_records.ConfigRecord) -> None:
        self._copy_on_write("configs")
        resource = (record.resource_type, record.resource_name)
        _put_value(self.image.configs, resource, record.name, record.value)
        self.changes.configs.add(resource)

    def feature_level(self, record: stored_records.FeatureLevelRecord) -> None:
        self._copy_on_write("features")
        if record.feature_level == 0:
            self.image.features.pop(record.name, None)
        else:
            self.image.features[record.name] = record.feature_level
        self.changes.features = True

    def producer_ids(self, record: stored_records.ProducerIdsRecord) -> None:
        self.image.next_producer_id = record.next_producer_id

    def put_acl(self, record: stored_records.AccessControlEntryRecord) -> None:
        self._copy_on_write("acls")
        self.image.acls[record.id] = acl_of(record)

    def remove_acl(self, record: stored_records.RemoveAccessControlEntryRecord) -> None:
        self._copy_on_write("acls")
        removed = self.image.acls.pop(record.id, None)
        assert removed is not None, f"a record removes ACL {uuid_text(record.id)}, which does not exist"

    def put_opaque(self, record: Message) -> None:
        self._copy_on_write("opaque_records")
        self.image.opaque_records[key_of(record)] = record

    def remove_opaque(self, record: Message) -> None:
        self._copy_on_write("opaque_records")
        self.image.opaque_records.pop(key_of(record), None)

    def quota(self, record: stored_records.ClientQuotaRecord) -> None:
        self._copy_on_write("quotas")
        value = None if record.remove else record.value
        _put_value(self.image.quotas, entity_of(record.entity), record.key, value)

    # -- brokers and controllers

    def register_broker(self, record: stored_records.RegisterBrokerRecord) -> None:
        self._copy_on_write("brokers")
        cordoned = record.cordoned_log_dirs
        self.image.brokers[record.broker_id] = BrokerImage(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            {f.name: (f.min_supported_version, f.max_supported_version) for f in record.features},
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple(record.log_dirs),
            None if cordoned is None else tuple(cordoned),
        )
        self.changes.brokers.add(record.broker_id)

    def unregister_broker(self, record: stored_records.UnregisterBrokerRecord) -> None:
        self._copy_on_write("brokers")
        del self.image.brokers[record.broker_id]
        self.changes.brokers.add(record.broker_id)

    def change_broker(self, record: stored_records.BrokerRegistrationChangeRecord) -> None:
        changed: dict[str, Any] = {}
        if record.fenced:
            changed["is_fenced"] = record.fenced == 1
        if record.in_controlled_shutdown == 1:
            changed["is_shutting_down"] = True
        if record.log_dirs:
            changed["directories"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changed["cordoned_directories"] = tuple(record.cordoned_log_dirs)
        self._change_registration(record.broker_id, record.broker_epoch, **changed)

    def fence_broker(self, record: stored_records.FenceBrokerRecord) -> None:
        self._change_registration(record.id, record.epoch, is_fenced=True)

    def unfence_broker(self, record: stored_records.UnfenceBrokerRecord) -> None:
        self._change_registration(record.id, record.epoch, is_fenced=False)

    def _change_registration(self, broker_id: int, epoch: int, **changed: Any) -> None:
        self._copy_on_write("brokers")
        broker = self.image.brokers.get(broker_id)
        assert broker is not None, f"a record changes broker {broker_id}, which is not registered"
        assert broker.epoch == epoch, (
            f"a record changes broker {broker_id} in epoch {epoch}, which has epoch {broker.epoch}"
        )
        self.image.brokers[broker_id] = broker._replace(**changed)
        self.changes.brokers.add(broker_id)

    def register_controller(self, record: stored_records.RegisterControllerRecord) -> None:
        self._copy_on_write("controllers")
        self.image.controllers[record.controller_id] = ControllerImage(
            record.controller_id,
            record.incarnation_id,
            tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            {f.name: (f.min_supported_version, f.max_supported_version) for f in record.features},
        )

    def unregister_controller(self, record: stored_records.UnregisterControllerRecord) -> None:
        self._copy_on_write("controllers")
        self.image.controllers.pop(record.controller_id, None)

    def ignore(self, record: Message) -> None:
        """A record without effect on the image."""


_HANDLERS: dict[type[Message], Callable[[_Draft, Any], None]] = {
    stored_records.RegisterBrokerRecord: _Draft.register_broker,
    stored_records.UnregisterBrokerRecord: _Draft.unregister_broker,
    stored_records.TopicRecord: _Draft.topic,
    stored_records.PartitionRecord: _Draft.partition,
    stored_records.ConfigRecord: _Draft.config,
    stored_records.PartitionChangeRecord: _Draft.partition_change,
    stored_records.RemoveTopicRecord: _Draft.remove_topic,
    stored_records.FeatureLevelRecord: _Draft.feature_level,
    stored_records.ProducerIdsRecord: _Draft.producer_ids,
    stored_records.BrokerRegistrationChangeRecord: _Draft.change_broker,
    stored_records.NoOpRecord: _Draft.ignore,
    stored_records.ZkMigrationStateRecord: _Draft.ignore,
    stored_records.RegisterControllerRecord: _Draft.register_controller,
    stored_records.UnregisterControllerRecord: _Draft.unregister_controller,
    stored_records.FenceBrokerRecord: _Draft.fence_broker,
    stored_records.UnfenceBrokerRecord: _Draft.unfence_broker,
    stored_records.ClientQuotaRecord: _Draft.quota,
    stored_records.AccessControlEntryRecord: _Draft.put_acl,
    stored_records.RemoveAccessControlEntryRecord: _Draft.remove_acl,
    stored_records.UserScramCredentialRecord: _Draft.put_opaque,
    stored_records.RemoveUserScramCredentialRecord: _Draft.remove_opaque,
    stored_records.DelegationTokenRecord: _Draft.put_opaque,
    stored_records.RemoveDelegationTokenRecord: _Draft.remove_opaque,
    stored_records.ClearElrRecord: _Draft.clear_elr,
}
