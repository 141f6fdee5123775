"""IncrementalAlterConfigs and AlterConfigs for topics, brokers, the cluster, groups and client metrics subscriptions.

RULES    1. The checks, their order, codes and messages are Apache Kafka 4.3's (ConfigurationControlManager). Each broker
            validates its own configurations first (`broker/handlers/admin/broker_config_validation.py`).
         2. A resource is changed completely or not at all; the resources of a request are independent.
         3. AlterConfigs replaces all configurations of a resource: the named ones are set, the others are deleted.
         4. With eligible leader replicas, the default in 4.3, min.insync.replicas is a cluster and topic configuration, not
            one of single brokers.
NOT HERE The definitions (`storage/config/log_config.py`, `broker/config/config_definitions.py`,
         `replication/metadata/group_configs.py`, `replication/metadata/client_metrics.py`), DescribeConfigs, log levels
         (`broker/process/log_levels.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import admin
from replication.controller.configs.configs import MIN_ISR, config_records, invalid_config, validate_topic_configs
from replication.controller.configs.schedule_targets import ScheduleTargets
from replication.controller.decision_context import DecisionContext
from replication.metadata.client_metrics import check_subscription
from replication.metadata.feature_levels import WITH_CORDONS
from replication.metadata.group_configs import check_group_settings
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.metadata_records import Versioned
from replication.metadata.topic_names import check_topic_name
from replication.state_machine import Decision
from storage.config.config_def import Kind, Setting, java_integer
from storage.config.log_config import TOPIC_SETTINGS

CORDONED = "cordoned.log.dirs"
MAX_VALUE_LENGTH = 32_767


class AlterConfigOp:
    """The operations of IncrementalAlterConfigs, as on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def incremental_alter_configs(
    context: DecisionContext, request: admin.IncrementalAlterConfigsRequest
) -> Decision[admin.IncrementalAlterConfigsResponse]:
    """Decide on changes of single configurations."""
    records, responses = _decide(context, request.resources)
    response = admin.IncrementalAlterConfigsResponse(responses=responses)
    return Decision([] if request.validate_only else records, response, is_atomic=False)


def legacy_alter_configs(
    context: DecisionContext, request: admin.AlterConfigsRequest
) -> Decision[admin.AlterConfigsResponse]:
    """Decide on the replacement of all configurations of resources (rule 3)."""
    records, responses = _decide(
        context, [replacement_as_changes(context.image, resource) for resource in request.resources]
    )
    response = admin.AlterConfigsResponse(responses=responses)
    return Decision([] if request.validate_only else records, response, is_atomic=False)


def replacement_as_changes(image: MetadataImage, wanted: admin.ReplacedConfigsResource) -> admin.AlterConfigsResource:
    """The incremental changes that replace all configurations of a resource (rule 3)."""
    kind, name = wanted.resource_type, wanted.resource_name
    named = {config.name for config in wanted.configs}
    others = [key for key in image.configs.get((kind, name), {}) if key not in named]
    return admin.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            *(
                admin.AlterableConfig(name=c.name, config_operation=AlterConfigOp.SET, value=c.value)
                for c in wanted.configs
            ),
            *(admin.AlterableConfig(name=key, config_operation=AlterConfigOp.DELETE, value=None) for key in others),
        ],
    )


def _decide(
    context: DecisionContext, resources: Sequence[admin.AlterConfigsResource]
) -> tuple[list[Versioned], list[admin.AlterConfigsResourceResponse]]:
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    targets = ScheduleTargets(context.image)
    records: list[Versioned] = []
    responses = []
    for resource in resources:
        kind, name = resource.resource_type, resource.resource_name
        response = admin.AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE, error_message=None, resource_type=kind, resource_name=name
        )
        try:
            records += _alter(context, resource, targets, is_repeated=counts[kind, name] > 1)
        except KafkaError as error:
            response.error_code, response.error_message = error.code, error.message
        responses.append(response)
    return records, responses


def _alter(
    context: DecisionContext, resource: admin.AlterConfigsResource, targets: ScheduleTargets, *, is_repeated: bool
) -> list[Versioned]:
    kind, name, wanted = resource.resource_type, resource.resource_name, resource.configs
    validate_changes(wanted, is_repeated=is_repeated)
    if kind == ResourceType.TOPIC:
        return _alter_topic(context, name, wanted, targets)
    if kind == ResourceType.BROKER:
        return _alter_broker(context, name, wanted)
    if kind == ResourceType.GROUP:
        return _alter_group(context, name, wanted)
    if kind == ResourceType.CLIENT_METRICS:
        return _alter_subscription(context.image, name, wanted)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def validate_changes(wanted: Sequence[admin.AlterableConfig], *, is_repeated: bool) -> None:
    """Reject repeated resources, repeated configurations and missing values.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    if is_repeated:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if len({config.name for config in wanted}) < len(wanted):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [c.name for c in wanted if c.value is None and c.config_operation != AlterConfigOp.DELETE]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _alter_topic(
    context: DecisionContext, name: str, wanted: Iterable[admin.AlterableConfig], targets: ScheduleTargets
) -> list[Versioned]:
    current = context.image.topic_config(name)
    changes = {config.name: new_value(config, current, TOPIC_SETTINGS.get(config.name)) for config in wanted}
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    validate_topic_configs(context, _apply(current, changes))
    if name not in context.image.topics_by_name:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    targets.check(name, changes)
    targets.add(name, changes)
    return _changed_records(context.image, ResourceType.TOPIC, name, changes)


def _alter_group(context: DecisionContext, name: str, wanted: Iterable[admin.AlterableConfig]) -> list[Versioned]:
    current = context.image.configs.get((ResourceType.GROUP, name), {})
    changes = {config.name: new_value(config, current, None) for config in wanted}
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    broker = dict(context.static_configs)
    for layer in ("", str(context.node_id)):
        broker |= context.broker_configs.usable(context.image.configs.get((ResourceType.BROKER, layer), {}))

    def broker_value(setting: str) -> str | None:
        row = context.broker_configs.setting(setting)
        return None if row is None else broker.get(setting, row.default)

    try:
        check_group_settings(_apply(current, changes), broker_value)
    except ValueError as error:
        raise invalid_config(str(error)) from None
    return _changed_records(context.image, ResourceType.GROUP, name, changes)


def _alter_subscription(image: MetadataImage, name: str, wanted: Iterable[admin.AlterableConfig]) -> list[Versioned]:
    current = image.configs.get((ResourceType.CLIENT_METRICS, name), {})
    changes = {config.name: new_value(config, current, None) for config in wanted}
    check_subscription(name, _apply(current, changes))
    return _changed_records(image, ResourceType.CLIENT_METRICS, name, changes)


def _apply(current: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**current, **changes}.items() if value is not None}


def _changed_records(image: MetadataImage, kind: int, name: str, changes: Mapping[str, str | None]) -> list[Versioned]:
    current = image.configs.get((kind, name), {})
    return config_records(
        image, kind, name, {key: value for key, value in changes.items() if current.get(key) != value}
    )


def _alter_broker(context: DecisionContext, name: str, wanted: Iterable[admin.AlterableConfig]) -> list[Versioned]:
    rules = context.broker_configs
    current = context.image.configs.get((ResourceType.BROKER, name), {})
    changes = {config.name: new_value(config, current, rules.setting(config.name)) for config in wanted}
    if name:
        _check_broker(name)
    if CORDONED in changes and context.image.metadata_version < WITH_CORDONS:
        raise invalid_config(f"{CORDONED} cannot be altered before metadata.version {WITH_CORDONS}.")
    if MIN_ISR in changes and context.image.has_eligible_leaders:
        if name:
            raise invalid_config(f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled.")
        if changes[MIN_ISR] is None:
            raise invalid_config(f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.")
    nodes = {*context.image.brokers, *context.image.controllers, context.node_id}
    if name and java_integer(name) not in nodes:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {java_integer(name)} found.")
    return config_records(context.image, ResourceType.BROKER, name, changes)


def _check_broker(name: str) -> None:
    """Validate the form of a broker id."""
    try:
        broker_id = java_integer(name)
    except ValueError:
        message = "Unable to parse broker name as a base 10 number."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
    if broker_id < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")


def new_value(config: admin.AlterableConfig, current: Mapping[str, str], row: Setting | None) -> str | None:
    """The value after a change; None if it is deleted.

    Raises:
        KafkaError: INVALID_CONFIG, INVALID_REQUEST.
    """
    operation, value = config.config_operation, config.value
    if operation == AlterConfigOp.DELETE:
        return None
    assert value is not None, "null values were rejected before"
    if operation in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
        if row is None or row.kind is not Kind.LIST:
            verb = "APPEND" if operation == AlterConfigOp.APPEND else "SUBTRACT"
            raise invalid_config(f"Can't {verb} to key {config.name} because its type is not LIST.")
        value = _new_list(operation, value, current.get(config.name, row.default))
    elif operation != AlterConfigOp.SET:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} on {config.name}")
    if len(value) > MAX_VALUE_LENGTH:
        raise invalid_config(
            "The configuration value cannot be added because it exceeds the maximum value size of "
            f"{MAX_VALUE_LENGTH} bytes."
        )
    return value


def _new_list(operation: int, value: str, current: str | None) -> str:
    elements = [element for element in (current or "").split(",") if element]
    named = value.rstrip(",").split(",") if value.strip(",") or not value else []  # Java ignores commas at the end
    for element in named:
        if operation == AlterConfigOp.SUBTRACT:
            if element in elements:
                elements.remove(element)
        elif element not in elements:
            elements.append(element)
    return ",".join(elements)
