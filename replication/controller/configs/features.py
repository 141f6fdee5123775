"""Decisions on the levels of the cluster's features.

RULES    1. A request is obeyed as a whole or not at all: the first feature that cannot have its level refuses it for all.
         2. Every node that is registered must know the level; a feature that it does not name it knows at 0 only.
         3. The metadata go down to an older version only where no record of theirs would change its form.
         4. Where eligible leader replicas begin, min.insync.replicas becomes a setting of the whole cluster.
         5. kraft.version is no record of the controller: whether it can be raised says the quorum, which does it.
         6. Checks, their order and sentences are Apache Kafka 4.3's (FeatureControlManager).
NOT HERE What the levels mean (`replication/metadata/feature_levels.py`), which of them clients are told of (`broker/api_table.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.cluster import UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse
from protocol.messages.stored_records import ConfigRecord, FeatureLevelRecord
from replication.controller.configs.configs import MIN_ISR
from replication.controller.decision_context import Environment
from replication.metadata.feature_levels import (
    ELIGIBLE_LEADERS,
    KRAFT_VERSION,
    METADATA_VERSION,
    changes_records,
    features_for,
    needed_metadata_version,
)
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision

_ALL_FAILED = "The update failed for all features since the following feature had an error: "
_NO_DOWNGRADE = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
)


class UpgradeType:
    """What is allowed to become of a level, numbered as on the wire."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(
    image: MetadataImage, environment: Environment, request: UpdateFeaturesRequest
) -> Decision[UpdateFeaturesResponse]:
    """Decide on other levels."""
    wanted = {update.feature: (update.max_version_level, update.upgrade_type) for update in request.feature_updates}
    after = {**image.features, **{name: level for name, (level, _) in wanted.items()}}
    records: list[Versioned] = []
    try:
        for name, (level, how) in wanted.items():
            _check(image, environment, name, level, how)
            _check_needs(name, level, after)
            records += _records(image, environment, name, level)
    except KafkaError as error:
        sentence = f"{_ALL_FAILED}{error.message}"
        return Decision([], UpdateFeaturesResponse(error_code=error.code, error_message=sentence))
    results = [UpdatableFeatureResult(feature=name, error_code=ErrorCode.NONE, error_message="NONE") for name in wanted]
    response = UpdateFeaturesResponse(error_code=ErrorCode.NONE, results=results)
    return Decision([] if request.validate_only else records, response)


def raised_kraft_version(request: UpdateFeaturesRequest, answer: UpdateFeaturesResponse) -> int | None:
    """The kraft.version that the quorum is to have when this was the answer (rule 5)."""
    if request.validate_only or answer.error_code != ErrorCode.NONE:
        return None
    levels = (one.max_version_level for one in request.feature_updates if one.feature == KRAFT_VERSION)
    return next(levels, None)


def cluster_min_isr(environment: Environment) -> Versioned:
    """The record that makes this node's min.insync.replicas the cluster's."""
    value = environment.settings.get(MIN_ISR, "1")
    return ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name=MIN_ISR, value=value), 0


def _check(image: MetadataImage, environment: Environment, name: str, level: int, how: int) -> None:
    before = environment.kraft_version.level() if name == KRAFT_VERSION else image.features.get(name, 0)
    if how not in (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
        raise _refused(name, level, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _refused(name, level, "A feature version cannot be less than 0.")
    _check_nodes(image, environment, name, level)
    if level < before and how == UpgradeType.UPGRADE:
        raise _refused(name, level, _NO_DOWNGRADE)
    if level > before and how != UpgradeType.UPGRADE:
        raise _refused(name, level, "Can't downgrade to a newer version.")
    if name == KRAFT_VERSION and level < before:
        raise _refused(name, level, "Can't downgrade the version of this feature.")
    if name == KRAFT_VERSION and (refusal := environment.kraft_version.refusal(level)) is not None:
        raise refusal
    if name == METADATA_VERSION and level < before and changes_records(level, before):
        why = (
            "Refusing to perform the requested downgrade because it might delete metadata information."
            if how == UpgradeType.SAFE_DOWNGRADE
            else "Unsafe metadata downgrade is not supported in this version."
        )
        sentence = f"Unsupported metadata.version downgrade from {before} to {level}. {why}"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, sentence)


def _check_nodes(image: MetadataImage, environment: Environment, name: str, level: int) -> None:
    """Rule 2."""
    own = features_for(image.features)
    nodes = [(f"Local controller {environment.node_id}", own)]
    nodes += [(f"Broker {broker_id}", broker.features) for broker_id, broker in image.brokers.items()]
    for who, known in nodes:
        lowest, highest = known.get(name, (0, 0))
        if lowest <= level <= highest:
            continue
        if not highest:
            raise _refused(name, level, f"{who} does not support this feature.")
        levels = f"{lowest}-{highest}" if lowest < highest else str(lowest)
        raise _refused(name, level, f"{who} only supports versions {levels}")
    if name not in own:
        raise _refused(name, level, f"Feature {name} not found.")


def _check_needs(name: str, level: int, after: dict[str, int]) -> None:
    needed = needed_metadata_version(name, level)
    if after[METADATA_VERSION] < needed:
        sentence = f"{name} could not be set to {level} because it depends on {METADATA_VERSION} level {needed}"
        raise _refused(name, level, sentence)


def _records(image: MetadataImage, environment: Environment, name: str, level: int) -> list[Versioned]:
    if name == KRAFT_VERSION or image.features.get(name, 0) == level:
        return []
    records: list[Versioned] = []
    if name == ELIGIBLE_LEADERS and level:
        records += _settle_min_isr(image, environment)
    return [*records, (FeatureLevelRecord(name=name, feature_level=level), 0)]


def _settle_min_isr(image: MetadataImage, environment: Environment) -> list[Versioned]:
    """Rule 4: set for the cluster, taken back from single brokers."""
    holders = [name for (kind, name), own in image.configs.items() if kind == ResourceType.BROKER and MIN_ISR in own]
    records: list[Versioned] = [
        (ConfigRecord(resource_type=ResourceType.BROKER, resource_name=name, name=MIN_ISR, value=None), 0)
        for name in holders
        if name
    ]
    return records if "" in holders else [cluster_min_isr(environment), *records]


def _refused(name: str, level: int, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {why}")
