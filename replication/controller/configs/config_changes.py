"""Decisions on changes of settings: of topics, brokers, all brokers, groups and subscriptions to clients' metrics.

RULES    1. Checks, their order, codes and sentences are Apache Kafka 4.3's (ConfigurationControlManager). What brokers can
            have they say themselves, before (`broker/handlers/admin/broker_config_validation.py`).
         2. A resource is changed as a whole or not at all; resources of one request do not depend on each other.
         3. To replace all settings of a resource (AlterConfigs) is to set those that are named and to delete the others.
         4. While eligible leader replicas are on, as in every cluster formatted by 4.3, min.insync.replicas is a
            setting of the cluster and of topics, never of one broker.
NOT HERE The tables (`storage/config/log_config.py`, `broker/config/config_definitions.py`, `replication/metadata/group_configs.py`,
         `replication/metadata/client_metrics.py`), showing settings (DescribeConfigs), levels of loggers, which are no metadata
         (`broker/process/log_levels.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ReplacedConfigsResource,
)
from replication.controller.configs.configs import MIN_ISR, bad_setting, check_topic, setting_records
from replication.controller.decision_context import Environment
from replication.metadata.client_metrics import check_subscription
from replication.metadata.feature_levels import WITH_CORDONS
from replication.metadata.group_configs import check_group_settings
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.metadata_records import Versioned
from replication.metadata.topic_names import check_topic_name
from replication.state_machine import Decision
from storage.config.config_def import Kind, Setting
from storage.config.log_config import TOPIC_SETTINGS

CORDONED = "cordoned.log.dirs"
MAX_VALUE_LENGTH = 32_767


class Operation:
    """What is done to one setting, numbered as on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def alter_settings(
    image: MetadataImage, environment: Environment, request: IncrementalAlterConfigsRequest
) -> Decision[IncrementalAlterConfigsResponse]:
    """Decide on changes of single settings."""
    found, responses = _decide(image, environment, request.resources)
    response = IncrementalAlterConfigsResponse(responses=responses)
    return Decision([] if request.validate_only else found, response, is_atomic=False)


def replace_settings(
    image: MetadataImage, environment: Environment, request: AlterConfigsRequest
) -> Decision[AlterConfigsResponse]:
    """Decide on all settings of resources (rule 3)."""
    found, responses = _decide(image, environment, [as_changes(image, resource) for resource in request.resources])
    response = AlterConfigsResponse(responses=responses)
    return Decision([] if request.validate_only else found, response, is_atomic=False)


def as_changes(image: MetadataImage, wanted: ReplacedConfigsResource) -> AlterConfigsResource:
    """What it means to replace all settings of a resource (rule 3)."""
    kind, name = wanted.resource_type, wanted.resource_name
    named = {config.name for config in wanted.configs}
    others = [key for key in image.configs.get((kind, name), {}) if key not in named]
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            *(AlterableConfig(name=c.name, config_operation=Operation.SET, value=c.value) for c in wanted.configs),
            *(AlterableConfig(name=key, config_operation=Operation.DELETE, value=None) for key in others),
        ],
    )


def _decide(
    image: MetadataImage, environment: Environment, resources: Sequence[AlterConfigsResource]
) -> tuple[list[Versioned], list[AlterConfigsResourceResponse]]:
    asked = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    found: list[Versioned] = []
    responses = []
    for resource in resources:
        kind, name = resource.resource_type, resource.resource_name
        response = AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE, error_message=None, resource_type=kind, resource_name=name
        )
        try:
            found += _alter(image, environment, resource, is_repeated=asked[kind, name] > 1)
        except KafkaError as error:
            response.error_code, response.error_message = error.code, error.message
        responses.append(response)
    return found, responses


def _alter(
    image: MetadataImage, environment: Environment, resource: AlterConfigsResource, *, is_repeated: bool
) -> list[Versioned]:
    kind, name, wanted = resource.resource_type, resource.resource_name, resource.configs
    check_form(wanted, is_repeated=is_repeated)
    if kind == ResourceType.TOPIC:
        return _alter_topic(image, environment, name, wanted)
    if kind == ResourceType.BROKER:
        return _alter_broker(image, environment, name, wanted)
    if kind == ResourceType.GROUP:
        return _alter_group(image, environment, name, wanted)
    if kind == ResourceType.CLIENT_METRICS:
        return _alter_subscription(image, name, wanted)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def check_form(wanted: Sequence[AlterableConfig], *, is_repeated: bool) -> None:
    """What no resource takes, whatever it is: to be named twice, a setting twice, a setting without a value.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    if is_repeated:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if len({config.name for config in wanted}) < len(wanted):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [c.name for c in wanted if c.value is None and c.config_operation != Operation.DELETE]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")


def _alter_topic(
    image: MetadataImage, environment: Environment, name: str, wanted: Iterable[AlterableConfig]
) -> list[Versioned]:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    if name not in image.topics_by_name:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    current = image.topic_config(name)
    changes = {config.name: new_value(config, current, TOPIC_SETTINGS.get(config.name)) for config in wanted}
    check_topic(image, environment, _after(current, changes))
    return _different(image, ResourceType.TOPIC, name, changes)


def _alter_group(
    image: MetadataImage, environment: Environment, name: str, wanted: Iterable[AlterableConfig]
) -> list[Versioned]:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    broker = {**environment.settings, **image.broker_config(environment.node_id)}

    def of_broker(setting: str) -> str | None:
        row = environment.rules.setting(setting)
        return None if row is None else broker.get(setting, row.default)

    current = image.configs.get((ResourceType.GROUP, name), {})
    changes = {config.name: new_value(config, current, None) for config in wanted}
    try:
        check_group_settings(_after(current, changes), of_broker)
    except ValueError as error:
        raise bad_setting(str(error)) from None
    return _different(image, ResourceType.GROUP, name, changes)


def _alter_subscription(image: MetadataImage, name: str, wanted: Iterable[AlterableConfig]) -> list[Versioned]:
    current = image.configs.get((ResourceType.CLIENT_METRICS, name), {})
    changes = {config.name: new_value(config, current, None) for config in wanted}
    check_subscription(name, _after(current, changes))
    return _different(image, ResourceType.CLIENT_METRICS, name, changes)


def _after(current: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**current, **changes}.items() if value is not None}


def _different(image: MetadataImage, kind: int, name: str, changes: Mapping[str, str | None]) -> list[Versioned]:
    current = image.configs.get((kind, name), {})
    return setting_records(
        image, kind, name, {key: value for key, value in changes.items() if current.get(key) != value}
    )


def _alter_broker(
    image: MetadataImage, environment: Environment, name: str, wanted: Iterable[AlterableConfig]
) -> list[Versioned]:
    if name:
        _check_broker(name)
    rules = environment.rules
    current = image.configs.get((ResourceType.BROKER, name), {})
    changes = {config.name: new_value(config, current, rules.setting(config.name)) for config in wanted}
    if CORDONED in changes and image.metadata_version < WITH_CORDONS:
        raise bad_setting(f"{CORDONED} cannot be altered before metadata.version {WITH_CORDONS}.")
    if MIN_ISR in changes and image.has_eligible_leaders:
        if name:
            raise bad_setting(f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled.")
        if changes[MIN_ISR] is None:
            raise bad_setting(f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.")
    return setting_records(image, ResourceType.BROKER, name, changes)


def _check_broker(name: str) -> None:
    """What the controller asks of a broker's name: it may be any number."""
    try:
        broker_id = int(name)
    except ValueError:
        sentence = "Unable to parse broker name as a base 10 number."
        raise KafkaError(ErrorCode.INVALID_REQUEST, sentence) from None
    if broker_id < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")


def new_value(config: AlterableConfig, current: Mapping[str, str], row: Setting | None) -> str | None:
    """What a setting becomes; None: it is taken back.

    Raises:
        KafkaError: INVALID_CONFIG, INVALID_REQUEST.
    """
    operation, value = config.config_operation, config.value
    if operation == Operation.DELETE:
        return None
    assert value is not None, "nulls were refused before"
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        if row is None or row.kind is not Kind.LIST:
            verb = "APPEND" if operation == Operation.APPEND else "SUBTRACT"
            raise bad_setting(f"Can't {verb} to key {config.name} because its type is not LIST.")
        value = _new_list(operation, value, current.get(config.name, row.default))
    elif operation != Operation.SET:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} on {config.name}")
    if len(value) > MAX_VALUE_LENGTH:
        raise bad_setting(
            "The configuration value cannot be added because it exceeds the maximum value size of "
            f"{MAX_VALUE_LENGTH} bytes."
        )
    return value


def _new_list(operation: int, value: str, current: str | None) -> str:
    elements = [element for element in (current or "").split(",") if element]
    for element in value.split(","):
        if operation == Operation.SUBTRACT:
            if element in elements:
                elements.remove(element)
        elif element not in elements:
            elements.append(element)
    return ",".join(elements)
