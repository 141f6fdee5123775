"""Registration of brokers and controllers, unregistration.

RULES    1. A broker's epoch is the offset of the first record of its registration batch. Requests with an older epoch are
            rejected.
         2. A broker registers fenced. A second registration of the same process keeps its state and epoch.
         3. A new process cannot register the id of a broker with a session, unless it knows the epoch of the previous clean
            shutdown: after a shutdown of all nodes at once, no controller saw the session end.
         4. The checks and messages are Apache Kafka 4.3's (ClusterControlManager).
NOT HERE Heartbeats (`broker_heartbeats.py`), elections (`elections.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import quorum, stored_records
from protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.primitives import uuid_text
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.elections import broker_fenced, broker_restarted
from replication.metadata.feature_levels import (
    METADATA_VERSION,
    WITH_CONTROLLERS,
    WITH_DIRECTORIES,
    features_for,
    registration_version,
)
from replication.metadata.image import Endpoint, MetadataImage, PartitionState
from replication.metadata.image_records import stored_endpoints, stored_features
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision

_RESERVED_IDS = 100


def register(
    context: DecisionContext, request: quorum.BrokerRegistrationRequest, *, next_offset: int, is_alive: bool = False
) -> Decision[quorum.BrokerRegistrationResponse]:
    """Decide on a registration.

    `next_offset`: the offset of the first record; `is_alive`: whether the registered broker with this id has a session.

    Raises:
        KafkaError: the registration is rejected.
    """
    before = context.image.brokers.get(request.broker_id)
    is_same = before is not None and before.incarnation_id == request.incarnation_id
    was_clean_shutdown = before is not None and before.epoch == request.previous_broker_epoch
    _check(context.image, request, is_duplicate=is_alive and not is_same and not was_clean_shutdown)
    records: list[Versioned] = []
    if not is_same:
        records += broker_restarted(context, request.broker_id, request.log_dirs, was_clean_shutdown=was_clean_shutdown)
        before = None
    record = stored_records.RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=next_offset if before is None else before.epoch,
        end_points=request.listeners,
        features=request.features,
        rack=request.rack,
        fenced=before is None or before.is_fenced,
        in_controlled_shutdown=before is not None and before.is_shutting_down,
        log_dirs=sorted(request.log_dirs) if context.image.metadata_version >= WITH_DIRECTORIES else [],
    )
    records.append((record, registration_version(context.image.metadata_version)))
    response = quorum.BrokerRegistrationResponse(error_code=ErrorCode.NONE, broker_epoch=record.broker_epoch)
    return Decision(records, response, is_atomic=False)


def _check(image: MetadataImage, request: quorum.BrokerRegistrationRequest, *, is_duplicate: bool) -> None:
    if request.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {image.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    if is_duplicate:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session.",
        )
    if request.is_migrating_zk_broker:
        message = "Controller does not support registering ZK brokers."
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    problem = _directory_problem(image, request.broker_id, request.log_dirs)
    if problem is not None and image.metadata_version >= WITH_DIRECTORIES:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, problem)
    _check_features(image, {f.name: (f.min_supported_version, f.max_supported_version) for f in request.features})


def _directory_problem(image: MetadataImage, broker_id: int, directories: list[bytes]) -> str | None:
    if not directories:
        return "No directories specified in request"
    if any(int.from_bytes(directory, "big") < _RESERVED_IDS for directory in directories):
        return "Reserved directory ID in request"
    if len(set(directories)) < len(directories):
        return "Duplicate directory ID in request"
    for other in image.brokers.values():
        shared = set(other.directories) & set(directories) if other.broker_id != broker_id else set()
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


def register_controller(
    context: DecisionContext, request: quorum.ControllerRegistrationRequest
) -> Decision[quorum.ControllerRegistrationResponse]:
    """Decide on a controller registration."""
    if context.image.metadata_version < WITH_CONTROLLERS:
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
        listeners=stored_endpoints(endpoints),
        features=stored_features(features_for(levels)),
    )


def unregister(context: DecisionContext, request: UnregisterBrokerRequest) -> Decision[UnregisterBrokerResponse]:
    """Decide to unregister a broker; it stays in the replica lists of its partitions."""
    broker = context.image.brokers.get(request.broker_id)
    if broker is None:
        message = f"Broker ID {request.broker_id} is not currently registered"
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
        return Decision([], UnregisterBrokerResponse(error_code=code, error_message=message))
    record = stored_records.UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch)

    def is_affected(state: PartitionState) -> bool:
        return broker.broker_id in state.isr or broker.broker_id in state.eligible_leaders

    records = [*broker_fenced(context, broker.broker_id, is_affected), (record, 0)]
    return Decision(records, UnregisterBrokerResponse(error_code=ErrorCode.NONE), is_atomic=False)
