"""Decisions on settings: those of a new topic, and changes of topics' and brokers' dynamic ones.

RULES    1. Checks, their order, codes and sentences are Apache Kafka 4.3's (ConfigAdminManager on the broker, then
            ConfigurationControlManager).
         2. A resource is changed as a whole or not at all; resources of one request do not depend on each other.
         3. While eligible leader replicas are on, as in every cluster formatted by 4.3, min.insync.replicas is a
            setting of the cluster and of topics, never of one broker, and its change clears them (ClearElr).
NOT HERE The tables (`storage/log_config.py`, `broker/broker_settings.py`), showing settings (DescribeConfigs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    CreatableTopic,
    CreatableTopicConfigs,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.stored import ClearElrRecord, ConfigRecord
from replication.controller.environment import Environment
from replication.image import MetadataImage, ResourceType
from replication.metadata_records import Versioned
from replication.record_versions import WITH_CORDONS
from replication.state_machine import Decision
from replication.topic_names import check_topic_name
from storage.log_config import (
    SYNONYMS,
    TOPIC_SETTINGS,
    check_topic_settings,
    topic_default,
)
from storage.settings import BadSetting, Kind, Setting, parse, to_text

MIN_ISR = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
CORDONED = "cordoned.log.dirs"
MAX_VALUE_LENGTH = 32_767
_NOT_KEPT = {
    ResourceType.BROKER_LOGGER: "loggers",
    ResourceType.CLIENT_METRICS: "client metrics",
    ResourceType.GROUP: "groups",
}


class Operation:
    """What is done to one setting, numbered as on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Source:
    """Where a value in force came from, numbered as on the wire."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    FILE = 4
    DEFAULT = 5


# ---- settings of a new topic -----------------------------------------------------------------------------


def new_topic_settings(
    image: MetadataImage, environment: Environment, topic: CreatableTopic
) -> tuple[dict[str, str], list[Versioned]]:
    """The settings that a new topic is given, and their records.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    settings: dict[str, str] = {}
    nulls = []
    for config in topic.configs:
        if config.value is None:
            nulls.append(config.name)
        else:
            settings[config.name] = config.value
    if nulls:
        raise _bad_setting(f"Null value not supported for topic configs: {','.join(nulls)}")
    if not settings:
        return settings, []
    _check_topic(image, environment, settings)
    return settings, _records(image, ResourceType.TOPIC, topic.name, settings)


def effective_topic_settings(
    image: MetadataImage, environment: Environment, own: Mapping[str, str]
) -> list[CreatableTopicConfigs]:
    """Every setting as a topic has it whose own ones are `own`, with where it came from."""
    layers = (
        (Source.BROKER, image.configs.get((ResourceType.BROKER, str(environment.node_id)), {})),
        (Source.CLUSTER, image.configs.get((ResourceType.BROKER, ""), {})),
        (Source.FILE, environment.settings),
    )
    found = []
    for name, setting in TOPIC_SETTINGS.items():
        if name in own:
            text: str | None = own[name]
            source = Source.TOPIC
        elif name == "internal.segment.bytes":
            continue
        else:
            text, source = _inherited(name, layers)
        value = to_text(parse(setting, text))
        found.append(
            CreatableTopicConfigs(name=name, value=value, read_only=False, config_source=source, is_sensitive=False)
        )
    return found


def setting_of(image: MetadataImage, environment: Environment, topic: str, name: str) -> str:
    """The text in force of a topic setting that is never unset."""
    text = image.topic_config(topic).get(name)
    if text is None:
        text, _ = topic_default(name, {**environment.settings, **image.broker_config(environment.node_id)})
    assert text is not None, f"{name} has no value"
    return text


def _inherited(name: str, layers: Iterable[tuple[int, Mapping[str, str]]]) -> tuple[str | None, int]:
    for source, texts in layers:
        if any(synonym in texts for synonym, _ in SYNONYMS.get(name, ())):
            return topic_default(name, texts)[0], source
    return TOPIC_SETTINGS[name].default, Source.DEFAULT


def _check_topic(image: MetadataImage, environment: Environment, settings: Mapping[str, str]) -> None:
    try:
        check_topic_settings(settings, {**environment.settings, **image.broker_config(environment.node_id)})
        if parse(TOPIC_SETTINGS["remote.storage.enable"], settings.get("remote.storage.enable")):
            raise _bad_setting(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )
    except ValueError as error:
        raise _bad_setting(str(error)) from None


def _bad_setting(sentence: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, sentence)


def _records(image: MetadataImage, kind: int, name: str, changes: Mapping[str, str | None]) -> list[Versioned]:
    records: list[Versioned] = [
        (ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value), 0)
        for key, value in changes.items()
    ]
    if MIN_ISR in changes and image.has_eligible_leaders:
        records.append((ClearElrRecord(topic_name=name if kind == ResourceType.TOPIC else ""), 0))
    return records


# ---- changes ---------------------------------------------------------------------------------------------


def alter_settings(
    image: MetadataImage, environment: Environment, request: IncrementalAlterConfigsRequest
) -> Decision[IncrementalAlterConfigsResponse]:
    """Decide on changes of single settings."""
    asked = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    records: list[Versioned] = []
    responses = []
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        response = AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE, error_message=None, resource_type=kind, resource_name=name
        )
        try:
            records += _alter(image, environment, resource, is_repeated=asked[kind, name] > 1)
        except KafkaError as error:
            response.error_code, response.error_message = error.code, error.message
        responses.append(response)
    return Decision([] if request.validate_only else records, IncrementalAlterConfigsResponse(responses=responses))


def _alter(
    image: MetadataImage, environment: Environment, resource: AlterConfigsResource, *, is_repeated: bool
) -> list[Versioned]:
    kind, name, wanted = resource.resource_type, resource.resource_name, resource.configs
    if is_repeated:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if len({config.name for config in wanted}) < len(wanted):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [c.name for c in wanted if c.value is None and c.config_operation != Operation.DELETE]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    if kind == ResourceType.TOPIC:
        return _alter_topic(image, environment, name, wanted)
    if kind == ResourceType.BROKER:
        return _alter_broker(image, environment, name, wanted)
    if kind in _NOT_KEPT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Settings of {_NOT_KEPT[kind]} cannot be altered in this broker.")
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _alter_topic(
    image: MetadataImage, environment: Environment, name: str, wanted: Iterable[AlterableConfig]
) -> list[Versioned]:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    if name not in image.topics_by_name:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    current = image.topic_config(name)
    changes = {config.name: _new_value(config, current, TOPIC_SETTINGS.get(config.name)) for config in wanted}
    after = {key: value for key, value in {**current, **changes}.items() if value is not None}
    _check_topic(image, environment, after)
    return _records(image, ResourceType.TOPIC, name, {k: v for k, v in changes.items() if current.get(k) != v})


def _alter_broker(
    image: MetadataImage, environment: Environment, name: str, wanted: Iterable[AlterableConfig]
) -> list[Versioned]:
    if name:
        _check_node(environment, name)
    rules = environment.rules
    given = sorted(config.name for config in wanted if config.config_operation != Operation.DELETE)
    _refuse_all("Cannot update these configs dynamically", filter(rules.is_fixed, given))
    current = image.configs.get((ResourceType.BROKER, name), {})
    changes = {config.name: _new_value(config, current, rules.setting(config.name)) for config in wanted}
    for key, value in changes.items():
        _check_value(rules.setting(key), value)
    if not name:
        sentence = "Cannot update these configs at default cluster level, broker id must be specified"
        _refuse_all(sentence, filter(rules.is_per_broker, given))
    _check_together(image, environment, name, changes)
    if CORDONED in changes and image.metadata_version < WITH_CORDONS:
        raise _bad_setting(f"{CORDONED} cannot be altered before metadata.version {WITH_CORDONS}.")
    if MIN_ISR in changes and image.has_eligible_leaders:
        if name:
            raise _bad_setting(f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled.")
        if changes[MIN_ISR] is None:
            raise _bad_setting(f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.")
    return _records(image, ResourceType.BROKER, name, changes)


def _refuse_all(sentence: str, names: Iterable[str]) -> None:
    found = ", ".join(names)
    if found:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{sentence}: [{found}]")


def _check_value(row: Setting | None, value: str | None) -> None:
    if row is None or value is None:
        return
    try:
        parse(row, value)
    except BadSetting as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _check_together(
    image: MetadataImage, environment: Environment, name: str, changes: Mapping[str, str | None]
) -> None:
    """Have this node's broker look at what would be in force: its own settings win over those of all brokers."""
    own = str(environment.node_id)
    layers = {key: image.configs.get((ResourceType.BROKER, key), {}) for key in ("", own)}
    before = {**layers[""], **layers[own]}
    changed = {**layers[name and own], **changes}
    layers[name and own] = {key: value for key, value in changed.items() if value is not None}
    found = environment.rules.why_not(before, {**layers[""], **layers[own]})
    if found is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, found)


def _check_node(environment: Environment, name: str) -> None:
    try:
        node_id = int(name)
    except ValueError:
        sentence = f"Node id must be an integer, but it is: {name}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, sentence) from None
    if node_id != environment.node_id:
        sentence = f"Unexpected broker id, expected {environment.node_id}, but received {name}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, sentence)


def _new_value(config: AlterableConfig, current: Mapping[str, str], row: Setting | None) -> str | None:
    operation, value = config.config_operation, config.value
    if operation == Operation.DELETE:
        return None
    assert value is not None, "nulls were refused before"
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        if row is None or row.kind is not Kind.LIST:
            verb = "APPEND" if operation == Operation.APPEND else "SUBTRACT"
            raise _bad_setting(f"Can't {verb} to key {config.name} because its type is not LIST.")
        value = _new_list(operation, value, current.get(config.name, row.default))
    elif operation != Operation.SET:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} on {config.name}")
    if len(value) > MAX_VALUE_LENGTH:
        raise _bad_setting(
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
