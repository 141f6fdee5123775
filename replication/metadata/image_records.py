"""The records that rebuild an image from an empty one: the content of a snapshot.

RULES    1. Applied to an empty image of the same cluster, the records give an equal image, except for its leader, offset and
            epoch.
         2. Their order is Kafka's: features (metadata.version first), brokers, controllers, topics with partitions, configs,
            quotas, producer ids, access control entries, other opaque records. Record versions follow metadata.version.
NOT HERE The file around them (`snapshot_files.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from protocol.messages import stored_records
from replication.metadata.acls import acl_record
from replication.metadata.client_quotas import parts_of
from replication.metadata.feature_levels import (
    METADATA_VERSION,
    WITH_CONTROLLERS,
    WITH_DIRECTORIES,
    partition_version,
    registration_version,
)
from replication.metadata.image import BrokerImage, ControllerImage, Endpoint, MetadataImage, PartitionState
from replication.metadata.metadata_records import Versioned
from replication.metadata.opaque_records import of_kind


def image_records(image: MetadataImage) -> Iterator[Versioned]:
    """The records, generated one by one: an image may have hundreds of thousands."""
    yield from _features(image)
    level = image.metadata_version
    for broker in image.brokers.values():
        yield _broker(broker, has_directories=level >= WITH_DIRECTORIES), registration_version(level)
    if level >= WITH_CONTROLLERS:
        for controller in image.controllers.values():
            yield _controller(controller), 0
    yield from _topics(image)
    for (kind, name), settings in image.configs.items():
        for setting, value in settings.items():
            yield stored_records.ConfigRecord(resource_type=kind, resource_name=name, name=setting, value=value), 0
    for entity, quotas in image.quotas.items():
        for key, quota in quotas.items():
            parts = parts_of(entity)
            yield stored_records.ClientQuotaRecord(entity=parts, key=key, value=quota, remove=False), 0
    if image.next_producer_id:
        yield (
            stored_records.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id),
            0,
        )
    for acl_id, acl in image.acls.items():
        yield acl_record(acl_id, acl), 0
    for record in of_kind(
        image.opaque_records,
        stored_records.UserScramCredentialRecord,
        stored_records.DelegationTokenRecord,
    ):
        yield record, 0


def _features(image: MetadataImage) -> Iterator[Versioned]:
    levels = image.features
    for name in sorted(levels, key=lambda name: name != METADATA_VERSION):
        yield stored_records.FeatureLevelRecord(name=name, feature_level=levels[name]), 0


def _broker(broker: BrokerImage, *, has_directories: bool) -> stored_records.RegisterBrokerRecord:
    cordoned = broker.cordoned_directories
    return stored_records.RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=stored_endpoints(broker.endpoints),
        features=stored_features(broker.features),
        rack=broker.rack,
        fenced=broker.is_fenced,
        in_controlled_shutdown=broker.is_shutting_down,
        log_dirs=list(broker.directories) if has_directories else [],
        cordoned_log_dirs=None if cordoned is None else list(cordoned),
    )


def _controller(controller: ControllerImage) -> stored_records.RegisterControllerRecord:
    return stored_records.RegisterControllerRecord(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        end_points=stored_endpoints(controller.endpoints),
        features=stored_features(controller.features),
    )


def stored_endpoints(endpoints: tuple[Endpoint, ...]) -> list[stored_records.BrokerEndpoint]:
    """Endpoints as in records and registrations."""
    return [
        stored_records.BrokerEndpoint(name=e.listener, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for e in endpoints
    ]


def stored_features(features: Mapping[str, tuple[int, int]]) -> list[stored_records.BrokerFeature]:
    """The supported levels of features as in records and registrations."""
    return [
        stored_records.BrokerFeature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest) in features.items()
    ]


def _topics(image: MetadataImage) -> Iterator[Versioned]:
    version = partition_version(image.metadata_version)
    for topic_id, topic in image.topics_by_id.items():
        yield stored_records.TopicRecord(name=topic.name, topic_id=topic_id), 0
        for index, state in topic.partitions.items():
            yield _partition(topic_id, index, state, has_directories=version > 0), version


def _partition(
    topic_id: bytes, index: int, state: PartitionState, *, has_directories: bool
) -> stored_records.PartitionRecord:
    return stored_records.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(state.replicas),
        isr=list(state.isr),
        removing_replicas=list(state.removing),
        adding_replicas=list(state.adding),
        leader=state.leader,
        leader_recovery_state=state.leader_recovery_state,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        directories=list(state.directories) if has_directories else [],
        eligible_leader_replicas=list(state.eligible_leaders) or None,
        last_known_elr=list(state.last_known_leaders) or None,
    )
