"""UpdateFeatures: the finalized feature levels of the cluster.

RULES    1. A request is applied completely or not at all; the first invalid feature rejects it.
         2. Every registered node must support the level; a feature that it does not name is supported at level 0 only.
         3. metadata.version can be lowered only if no record format changes.
         4. Enabling eligible leader replicas makes min.insync.replicas a cluster configuration.
         5. kraft.version is not a controller record: the quorum validates and stores it.
         6. The checks, their order and messages are Apache Kafka 4.3's (FeatureControlManager).
NOT HERE The meaning of levels (`replication/metadata/feature_levels.py`), the levels in ApiVersions (`broker/api_table.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.cluster import UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse
from protocol.messages.stored_records import ConfigRecord, FeatureLevelRecord
from replication.controller.configs.configs import MIN_ISR
from replication.controller.decision_context import DecisionContext
from replication.metadata.feature_levels import (
    ELIGIBLE_LEADERS,
    KRAFT_VERSION,
    METADATA_VERSION,
    changes_records,
    features_for,
    required_metadata_version,
)
from replication.metadata.image import ResourceType
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision

_ALL_FAILED = "The update failed for all features since the following feature had an error: "
_NO_DOWNGRADE = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
)


class UpgradeType:
    """The upgrade types, as on the wire."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(context: DecisionContext, request: UpdateFeaturesRequest) -> Decision[UpdateFeaturesResponse]:
    """Decide on new feature levels."""
    wanted = {update.feature: (update.max_version_level, update.upgrade_type) for update in request.feature_updates}
    after = {**context.image.features, **{name: level for name, (level, _) in wanted.items()}}
    records: list[Versioned] = []
    try:
        for name, (level, upgrade_type) in wanted.items():
            _check(context, name, level, upgrade_type)
            _check_dependency(name, level, after)
            records += _records(context, name, level)
    except KafkaError as error:
        message = f"{_ALL_FAILED}{error.message}"
        return Decision([], UpdateFeaturesResponse(error_code=error.code, error_message=message))
    results = [UpdatableFeatureResult(feature=name, error_code=ErrorCode.NONE, error_message="NONE") for name in wanted]
    response = UpdateFeaturesResponse(error_code=ErrorCode.NONE, results=results)
    return Decision([] if request.validate_only else records, response)


def raised_kraft_version(request: UpdateFeaturesRequest, answer: UpdateFeaturesResponse) -> int | None:
    """The kraft.version that the quorum must append after this response (rule 5)."""
    if request.validate_only or answer.error_code != ErrorCode.NONE:
        return None
    levels = (one.max_version_level for one in request.feature_updates if one.feature == KRAFT_VERSION)
    return next(levels, None)


def cluster_min_isr(context: DecisionContext) -> Versioned:
    """The record that makes this node's min.insync.replicas the cluster configuration."""
    value = context.static_configs.get(MIN_ISR, "1")
    return ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name=MIN_ISR, value=value), 0


def _check(context: DecisionContext, name: str, level: int, upgrade_type: int) -> None:
    before = context.kraft_version.level() if name == KRAFT_VERSION else context.image.features.get(name, 0)
    if upgrade_type not in (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
        raise _invalid_update(name, level, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid_update(name, level, "A feature version cannot be less than 0.")
    _check_nodes(context, name, level)
    if level < before and upgrade_type == UpgradeType.UPGRADE:
        raise _invalid_update(name, level, _NO_DOWNGRADE)
    if level > before and upgrade_type != UpgradeType.UPGRADE:
        raise _invalid_update(name, level, "Can't downgrade to a newer version.")
    if name == KRAFT_VERSION and level < before:
        raise _invalid_update(name, level, "Can't downgrade the version of this feature.")
    if name == KRAFT_VERSION and (refusal := context.kraft_version.refusal(level)) is not None:
        raise refusal
    if name == METADATA_VERSION and level < before and changes_records(level, before):
        reason = (
            "Refusing to perform the requested downgrade because it might delete metadata information."
            if upgrade_type == UpgradeType.SAFE_DOWNGRADE
            else "Unsafe metadata downgrade is not supported in this version."
        )
        message = f"Unsupported metadata.version downgrade from {before} to {level}. {reason}"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)


def _check_nodes(context: DecisionContext, name: str, level: int) -> None:
    """Check that all registered nodes support the level (rule 2)."""
    local = features_for(context.image.features)
    nodes = [(f"Local controller {context.node_id}", local)]
    nodes += [(f"Broker {broker_id}", broker.features) for broker_id, broker in context.image.brokers.items()]
    for node, known in nodes:
        lowest, highest = known.get(name, (0, 0))
        if lowest <= level <= highest:
            continue
        if not highest:
            raise _invalid_update(name, level, f"{node} does not support this feature.")
        levels = f"{lowest}-{highest}" if lowest < highest else str(lowest)
        raise _invalid_update(name, level, f"{node} only supports versions {levels}")
    if name not in local:
        raise _invalid_update(name, level, f"Feature {name} not found.")


def _check_dependency(name: str, level: int, after: dict[str, int]) -> None:
    needed = required_metadata_version(name, level)
    if after[METADATA_VERSION] < needed:
        message = f"{name} could not be set to {level} because it depends on {METADATA_VERSION} level {needed}"
        raise _invalid_update(name, level, message)


def _records(context: DecisionContext, name: str, level: int) -> list[Versioned]:
    if name == KRAFT_VERSION or context.image.features.get(name, 0) == level:
        return []
    records: list[Versioned] = []
    if name == ELIGIBLE_LEADERS and level:
        records += _set_cluster_min_isr(context)
    return [*records, (FeatureLevelRecord(name=name, feature_level=level), 0)]


def _set_cluster_min_isr(context: DecisionContext) -> list[Versioned]:
    """Set min.insync.replicas for the cluster and delete it from single brokers (rule 4)."""
    overridden = [
        name
        for (kind, name), local in context.image.configs.items()
        if kind == ResourceType.BROKER and MIN_ISR in local
    ]
    records: list[Versioned] = [
        (ConfigRecord(resource_type=ResourceType.BROKER, resource_name=name, name=MIN_ISR, value=None), 0)
        for name in overridden
        if name
    ]
    return records if "" in overridden else [cluster_min_isr(context), *records]


def _invalid_update(name: str, level: int, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {reason}")
