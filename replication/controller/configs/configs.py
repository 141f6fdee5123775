"""Topic configurations in decisions: validation, records, effective values.

RULES    1. The checks, their order, codes and messages are Apache Kafka 4.3's (ConfigurationControlManager).
         2. With eligible leader replicas, the default in 4.3, a change of min.insync.replicas clears them (ClearElrRecord),
            except those of partitions without a replica in sync: no other replica could lead these.
NOT HERE Changes (`config_changes.py`), the definitions (`storage/config/log_config.py`), DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import CreatableTopic, CreatableTopicConfigs
from protocol.messages.stored_records import ClearElrRecord, ConfigRecord, PartitionChangeRecord
from replication.controller.decision_context import DecisionContext
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import MetadataImage, ResourceType, TopicImage
from replication.metadata.metadata_records import Versioned
from storage.config.config_def import parse, to_text
from storage.config.log_config import (
    OPTIONAL_TOPIC_SETTINGS,
    SYNONYMS,
    TOPIC_SETTINGS,
    check_topic_settings,
    topic_default,
)

MIN_ISR = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"


class ConfigSource:
    """The source of an effective value, as on the wire."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    FILE = 4
    DEFAULT = 5


def new_topic_configs(context: DecisionContext, topic: CreatableTopic) -> tuple[dict[str, str], list[Versioned]]:
    """The configurations of a new topic, and their records.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    configs: dict[str, str] = {}
    nulls = []
    for config in topic.configs:
        if config.value is None:
            nulls.append(config.name)
        else:
            configs[config.name] = config.value
    if nulls:
        raise invalid_config(f"Null value not supported for topic configs: {','.join(nulls)}")
    if not configs:
        return configs, []
    validate_topic_configs(context, configs)
    return configs, config_records(context.image, ResourceType.TOPIC, topic.name, configs)


def effective_topic_configs(context: DecisionContext, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
    """All effective configurations of a topic with the given overrides, and their sources."""
    layers = (
        (ConfigSource.BROKER, context.image.own_topic_defaults(str(context.node_id))),
        (ConfigSource.CLUSTER, context.image.own_topic_defaults("")),
        (ConfigSource.FILE, context.static_configs),
    )
    results = []
    for name, setting in TOPIC_SETTINGS.items():
        if name in overrides:
            text: str | None = overrides[name]
            source = ConfigSource.TOPIC
        elif name in OPTIONAL_TOPIC_SETTINGS:
            continue
        else:
            text, source = _inherited_value(name, layers)
        value = to_text(parse(setting, text))
        results.append(
            CreatableTopicConfigs(name=name, value=value, read_only=False, config_source=source, is_sensitive=False)
        )
    return results


def topic_config_value(context: DecisionContext, topic: str, name: str) -> str:
    """The effective value of a topic configuration that always has one."""
    text = context.image.topic_config(topic).get(name)
    if text is None:
        text, _ = topic_default(name, {**context.static_configs, **context.image.topic_defaults(context.node_id)})
    assert text is not None, f"{name} has no value"
    return text


def _inherited_value(name: str, layers: Iterable[tuple[int, Mapping[str, str]]]) -> tuple[str | None, int]:
    for source, texts in layers:
        if any(synonym in texts for synonym, _ in SYNONYMS.get(name, ())):
            return topic_default(name, texts)[0], source
    return TOPIC_SETTINGS[name].default, ConfigSource.DEFAULT


def validate_topic_configs(context: DecisionContext, configs: Mapping[str, str]) -> None:
    """Reject invalid topic configurations.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    try:
        check_topic_settings(configs, {**context.static_configs, **context.image.topic_defaults(context.node_id)})
        if parse(TOPIC_SETTINGS["remote.storage.enable"], configs.get("remote.storage.enable")):
            raise invalid_config(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )
    except ValueError as error:
        raise invalid_config(str(error)) from None


def invalid_config(message: str) -> KafkaError:
    """The error for an invalid configuration."""
    return KafkaError(ErrorCode.INVALID_CONFIG, message)


def config_records(image: MetadataImage, kind: int, name: str, changes: Mapping[str, str | None]) -> list[Versioned]:
    """The records of changed configurations; None deletes one."""
    records: list[Versioned] = [
        (ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value), 0)
        for key, value in changes.items()
    ]
    if MIN_ISR in changes and image.has_eligible_leaders:
        is_topic = kind == ResourceType.TOPIC
        records.append((ClearElrRecord(topic_name=name if is_topic else ""), 0))
        topics = image.topics_by_name
        of_topic = [topics[name]] if name in topics else []
        version = partition_version(image.metadata_version)
        records += [(change, version) for change in _kept_candidates(of_topic if is_topic else topics.values())]
    return records


def _kept_candidates(topics: Iterable[TopicImage]) -> Iterator[PartitionChangeRecord]:
    """Restore the candidates of partitions without a replica in sync (rule 2): nothing was committed since then."""
    for topic in topics:
        for index, state in topic.partitions.items():
            if not state.isr and (state.eligible_leaders or state.last_known_leaders):
                yield PartitionChangeRecord(
                    partition_id=index,
                    topic_id=topic.topic_id,
                    eligible_leader_replicas=list(state.eligible_leaders),
                    last_known_elr=list(state.last_known_leaders),
                )
