"""Registration of brokers and controllers, unregistration, producer id blocks.

RULES    1. A broker's epoch is the offset of the first record of its registration batch. Requests with an older epoch are
            rejected.
         2. A broker registers fenced. A second registration of the same process keeps its state and epoch.
         3. A new process cannot register the id of a broker with a session, unless it knows the epoch of the previous clean
            shutdown: after a shutdown of all nodes at once, no controller saw the session end.
         4. The checks and messages are Apache Kafka 4.3's (ClusterControlManager, ProducerIdControlManager).
NOT HERE Heartbeats (`broker_heartbeats.py`), elections (`elections.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import quorum, stored_records
from protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.primitives import uuid_text
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.elections import broker_fenced, broker_restarted
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
    """The content of a BrokerRegistration request."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    directories: tuple[bytes, ...]
    rack: str | None = None
    features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES
    previous_epoch: int = -1
    """The broker epoch at the last clean shutdown; -1 if unknown."""
    is_migrating: bool = False
    """Whether the broker migrates from ZooKeeper."""


def registration_from(request: quorum.BrokerRegistrationRequest) -> Registration:
    """The registration in a request."""
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
    context: DecisionContext,
    registration: Registration,
    *,
    next_offset: int,
    is_alive: bool = False,
) -> Decision[int]:
    """Decide on a registration; the reply is the broker epoch.

    Args:
        image: the newest image.
        context: the inputs of decisions.
        registration: the broker's registration.
        next_offset: the offset of the first record.
        is_alive: whether the registered broker with this id has a session.

    Raises:
        KafkaError: the registration is rejected.
    """
    broker_id = registration.broker_id
    before = image.brokers.get(broker_id)
    is_same = before is not None and before.incarnation_id == registration.incarnation_id
    was_clean_shutdown = before is not None and before.epoch == registration.previous_epoch
    _check(image, registration, is_duplicate=is_alive and not is_same and not was_clean_shutdown)
    records: list[Versioned] = []
    if not is_same:
        records += broker_restarted(
            image, context, broker_id, registration.directories, was_clean_shutdown=was_clean_shutdown
        )
        before = None
    epoch = next_offset if before is None else before.epoch
    record = _registration_record(registration, epoch, before)
    if image.metadata_version < WITH_DIRECTORIES:
        record.log_dirs = []
    records.append((record, registration_version(image.metadata_version)))
    return Decision(records, epoch, is_atomic=False)


def _check(image: MetadataImage, registration: Registration, *, is_duplicate: bool) -> None:
    if registration.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {image.cluster_id}, but got cluster ID {registration.cluster_id}",
        )
    if is_duplicate:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session.",
        )
    if registration.is_migrating:
        message = "Controller does not support registering ZK brokers."
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    problem = _directory_problem(image, registration)
    if problem is not None and image.metadata_version >= WITH_DIRECTORIES:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, problem)
    _check_features(image, registration.features)


def _directory_problem(image: MetadataImage, registration: Registration) -> str | None:
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
    """Check all finalized feature levels against the broker's ranges; a missing feature means level 0."""
    for name, (lowest, highest) in features.items():
        _check_feature(name, image.features.get(name, 0), lowest, highest)
    if METADATA_VERSION not in features:
        message = f"Request features do not contain '{METADATA_VERSION}'"
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, message)
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


def _registration_record(
    registration: Registration, epoch: int, before: BrokerImage | None
) -> stored_records.RegisterBrokerRecord:
    """The record; `before` is the previous registration of the same process."""
    return stored_records.RegisterBrokerRecord(
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


def _endpoints(endpoints: tuple[Endpoint, ...]) -> list[stored_records.BrokerEndpoint]:
    return [
        stored_records.BrokerEndpoint(name=e.listener, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for e in endpoints
    ]


def _features(features: Mapping[str, tuple[int, int]]) -> list[stored_records.BrokerFeature]:
    return [
        stored_records.BrokerFeature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest) in features.items()
    ]


def register_controller(
    image: MetadataImage, context: DecisionContext, request: quorum.ControllerRegistrationRequest
) -> Decision[quorum.ControllerRegistrationResponse]:
    """Decide on a controller registration."""
    del context
    if image.metadata_version < WITH_CONTROLLERS:
        message = "The current MetadataVersion is too old to support controller registrations."
        code = ErrorCode.UNSUPPORTED_VERSION
        return Decision([], quorum.ControllerRegistrationResponse(error_code=code, error_message=message))
    record = stored_records.RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=request.listeners,
        features=request.features,
    )
    return Decision([(record, 0)], quorum.ControllerRegistrationResponse(error_code=ErrorCode.NONE))


def controller_registration_request(
    controller_id: int, incarnation_id: bytes, endpoints: tuple[Endpoint, ...], levels: Mapping[str, int]
) -> quorum.ControllerRegistrationRequest:
    """The registration of a controller at these feature levels."""
    return quorum.ControllerRegistrationRequest(
        controller_id=controller_id,
        incarnation_id=incarnation_id,
        listeners=_endpoints(endpoints),
        features=_features(features_for(levels)),
    )


def unregister(
    image: MetadataImage, context: DecisionContext, request: UnregisterBrokerRequest
) -> Decision[UnregisterBrokerResponse]:
    """Decide to unregister a broker; it stays in the replica lists of its partitions."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        message = f"Broker ID {request.broker_id} is not currently registered"
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
        return Decision([], UnregisterBrokerResponse(error_code=code, error_message=message))
    if broker.broker_id == context.node_id:
        message = f"Broker {broker.broker_id} is this node's own and runs."
        return Decision([], UnregisterBrokerResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message))
    record = stored_records.UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch)

    def is_affected(state: PartitionState) -> bool:
        return broker.broker_id in state.isr or broker.broker_id in state.eligible_leaders

    records = [*broker_fenced(image, context, broker.broker_id, is_affected), (record, 0)]
    return Decision(records, UnregisterBrokerResponse(error_code=ErrorCode.NONE), is_atomic=False)


def allocate_producer_ids(
    image: MetadataImage, context: DecisionContext, request: quorum.AllocateProducerIdsRequest
) -> Decision[quorum.AllocateProducerIdsResponse]:
    """Decide on a block of producer ids."""
    del context
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
        return Decision([], quorum.AllocateProducerIdsResponse(error_code=code, producer_id_start=0, producer_id_len=0))
    record = stored_records.ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK
    )
    reply = quorum.AllocateProducerIdsResponse(
        error_code=ErrorCode.NONE, producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK
    )
    return Decision([(record, 0)], reply)
