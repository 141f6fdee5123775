"""Decisions on brokers and controllers: registration, being given up, blocks of producer ids.

RULES    1. A broker's epoch is the offset of the first record of the batch that registers it; every request that
            names an older one is refused.
         2. A broker registers fenced; the same process may register again and stays what it is, under its epoch.
         3. Another process cannot have the number of a broker that lives. Who knows the epoch that it ended with, cleanly, is
            no other one: all nodes of a cluster may have ended at once, with nobody there to be told.
         4. Checks and sentences are Apache Kafka 4.3's (ClusterControlManager, ProducerIdControlManager).
NOT HERE Heartbeats (`broker_heartbeats.py`), elections (`elections.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.messages.quorum import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from protocol.messages.stored_records import (
    BrokerEndpoint,
    BrokerFeature,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)
from protocol.primitives import uuid_text
from replication.controller.decision_context import Environment
from replication.controller.partitions.elections import broker_left, restart
from replication.metadata.feature_levels import (
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    WITH_CONTROLLERS,
    WITH_DIRECTORIES,
    features_for,
    registration_version,
)
from replication.metadata.image import BrokerImage, Endpoint, MetadataImage, PartitionState
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision

PRODUCER_ID_BLOCK = 1000
MAX_PRODUCER_ID = 2**63 - 1

_RESERVED_IDS = 100


class Registration(NamedTuple):
    """What a broker says when its process begins."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    directories: tuple[bytes, ...]
    rack: str | None = None
    features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES
    previous_epoch: int = -1
    """The epoch under which its last process ended cleanly; -1: it did not."""
    is_migrating: bool = False
    """Whether it comes from a cluster with ZooKeeper."""


def registration_of(request: BrokerRegistrationRequest) -> Registration:
    """What a request says."""
    return Registration(
        broker_id=request.broker_id,
        cluster_id=request.cluster_id,
        incarnation_id=request.incarnation_id,
        endpoints=tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in request.listeners),
        directories=tuple(request.log_dirs),
        rack=request.rack,
        features={f.name: (f.min_supported_version, f.max_supported_version) for f in request.features},
        previous_epoch=request.previous_broker_epoch,
        is_migrating=request.is_migrating_zk_broker,
    )


def register(
    image: MetadataImage,
    environment: Environment,
    registration: Registration,
    *,
    next_offset: int,
    is_alive: bool = False,
) -> Decision[int]:
    """Decide on a registration; the reply is the broker's epoch.

    Args:
        image: the newest.
        environment: of the controller.
        registration: what the broker says.
        next_offset: where the records will stand.
        is_alive: whether the broker that has the number now is heard of.

    Raises:
        KafkaError: the broker does not fit into this cluster.
    """
    broker_id = registration.broker_id
    before = image.brokers.get(broker_id)
    is_same = before is not None and before.incarnation_id == registration.incarnation_id
    was_clean = before is not None and before.epoch == registration.previous_epoch
    _check(image, registration, is_taken=is_alive and not is_same and not was_clean)
    records: list[Versioned] = []
    if not is_same:
        records += restart(image, environment, broker_id, registration.directories, was_clean=was_clean)
        before = None
    epoch = next_offset if before is None else before.epoch
    record = _registration_record(registration, epoch, before)
    if image.metadata_version < WITH_DIRECTORIES:
        record.log_dirs = []
    records.append((record, registration_version(image.metadata_version)))
    return Decision(records, epoch, is_atomic=False)


def _check(image: MetadataImage, registration: Registration, *, is_taken: bool) -> None:
    if registration.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {image.cluster_id}, but got cluster ID {registration.cluster_id}",
        )
    if is_taken:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session.",
        )
    if registration.is_migrating:
        sentence = "Controller does not support registering ZK brokers."
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, sentence)
    problem = _problem_of_directories(image, registration)
    if problem is not None and image.metadata_version >= WITH_DIRECTORIES:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, problem)
    _check_features(image, registration.features)


def _problem_of_directories(image: MetadataImage, registration: Registration) -> str | None:
    directories = registration.directories
    if not directories:
        return "No directories specified in request"
    if any(int.from_bytes(directory, "big") < _RESERVED_IDS for directory in directories):
        return "Reserved directory ID in request"
    if len(set(directories)) < len(directories):
        return "Duplicate directory ID in request"
    for other in image.brokers.values():
        shared = set(other.directories) & set(directories) if other.broker_id != registration.broker_id else set()
        if shared:
            return f"Broker {other.broker_id} is already registered with directory {uuid_text(min(shared))}"
    return None


def _check_features(image: MetadataImage, features: Mapping[str, tuple[int, int]]) -> None:
    """Levels in force must be among those that the broker knows; what it does not name it does not know."""
    for name, (lowest, highest) in features.items():
        _check_feature(name, image.features.get(name, 0), lowest, highest)
    if METADATA_VERSION not in features:
        sentence = f"Request features do not contain '{METADATA_VERSION}'"
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, sentence)
    for name, level in image.features.items():
        if name not in features:
            _check_feature(name, level, 0, 0)


def _check_feature(name: str, level: int, lowest: int, highest: int) -> None:
    if not lowest <= level <= highest:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Unable to register because the broker does not support finalized version {level} of {name}. "
            f"The broker wants a version between {lowest} and {highest}, inclusive.",
        )


def _registration_record(registration: Registration, epoch: int, before: BrokerImage | None) -> RegisterBrokerRecord:
    """The record; `before` is what the same process registered earlier."""
    return RegisterBrokerRecord(
        broker_id=registration.broker_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=epoch,
        end_points=_endpoints(registration.endpoints),
        features=_features(registration.features),
        rack=registration.rack,
        fenced=before is None or before.is_fenced,
        in_controlled_shutdown=before is not None and before.is_shutting_down,
        log_dirs=sorted(registration.directories),
    )


def _endpoints(endpoints: tuple[Endpoint, ...]) -> list[BrokerEndpoint]:
    return [
        BrokerEndpoint(name=e.listener, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for e in endpoints
    ]


def _features(features: Mapping[str, tuple[int, int]]) -> list[BrokerFeature]:
    return [
        BrokerFeature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest) in features.items()
    ]


def register_controller(
    image: MetadataImage, environment: Environment, request: ControllerRegistrationRequest
) -> Decision[ControllerRegistrationResponse]:
    """Decide on the registration of a controller's process."""
    del environment
    if image.metadata_version < WITH_CONTROLLERS:
        sentence = "The current MetadataVersion is too old to support controller registrations."
        code = ErrorCode.UNSUPPORTED_VERSION
        return Decision([], ControllerRegistrationResponse(error_code=code, error_message=sentence))
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=request.listeners,
        features=request.features,
    )
    return Decision([(record, 0)], ControllerRegistrationResponse(error_code=ErrorCode.NONE))


def registration_of_controller(
    controller_id: int, incarnation_id: bytes, endpoints: tuple[Endpoint, ...], levels: Mapping[str, int]
) -> ControllerRegistrationRequest:
    """What a controller says of itself where these levels of features are in force."""
    return ControllerRegistrationRequest(
        controller_id=controller_id,
        incarnation_id=incarnation_id,
        listeners=_endpoints(endpoints),
        features=_features(features_for(levels)),
    )


def unregister(
    image: MetadataImage, environment: Environment, request: UnregisterBrokerRequest
) -> Decision[UnregisterBrokerResponse]:
    """Decide on giving up a broker that will not come back; partitions keep it among their replicas."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        sentence = f"Broker ID {request.broker_id} is not currently registered"
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
        return Decision([], UnregisterBrokerResponse(error_code=code, error_message=sentence))
    if broker.broker_id == environment.node_id:
        sentence = f"Broker {broker.broker_id} is this node's own and runs."
        return Decision([], UnregisterBrokerResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=sentence))
    gone = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch)

    def concerns(state: PartitionState) -> bool:
        return broker.broker_id in state.isr or broker.broker_id in state.eligible_leaders

    records = [*broker_left(image, environment, broker.broker_id, concerns), (gone, 0)]
    return Decision(records, UnregisterBrokerResponse(error_code=ErrorCode.NONE), is_atomic=False)


def allocate_producer_ids(
    image: MetadataImage, environment: Environment, request: AllocateProducerIdsRequest
) -> Decision[AllocateProducerIdsResponse]:
    """Decide on a block of producer ids."""
    del environment
    broker = image.brokers.get(request.broker_id)
    code = ErrorCode.NONE
    if broker is None:
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
    elif broker.epoch != request.broker_epoch:
        code = ErrorCode.STALE_BROKER_EPOCH
    first = image.next_producer_id
    if code == ErrorCode.NONE and first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    if code != ErrorCode.NONE:
        return Decision([], AllocateProducerIdsResponse(error_code=code, producer_id_start=0, producer_id_len=0))
    record = ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK
    )
    reply = AllocateProducerIdsResponse(
        error_code=ErrorCode.NONE, producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK
    )
    return Decision([(record, 0)], reply)
