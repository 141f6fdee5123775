"""The settings of topics, as decisions need them: those of a new topic, their records, what is in force.

RULES    1. Checks, their order, codes and sentences are Apache Kafka 4.3's (ConfigurationControlManager).
         2. While eligible leader replicas are on, as in every cluster formatted by 4.3, a change of min.insync.replicas
            clears them (ClearElr).
NOT HERE Changing settings (`config_changes.py`), the tables (`storage/config/log_config.py`), showing them (DescribeConfigs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import CreatableTopic, CreatableTopicConfigs
from protocol.messages.stored_records import ClearElrRecord, ConfigRecord
from replication.controller.decision_context import Environment
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.metadata_records import Versioned
from storage.config.config_def import parse, to_text
from storage.config.log_config import (
    SYNONYMS,
    TOPIC_SETTINGS,
    check_topic_settings,
    topic_default,
)

MIN_ISR = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"


class Source:
    """Where a value in force came from, numbered as on the wire."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    FILE = 4
    DEFAULT = 5


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
        raise bad_setting(f"Null value not supported for topic configs: {','.join(nulls)}")
    if not settings:
        return settings, []
    check_topic(image, environment, settings)
    return settings, setting_records(image, ResourceType.TOPIC, topic.name, settings)


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


def check_topic(image: MetadataImage, environment: Environment, settings: Mapping[str, str]) -> None:
    """Refuse what a topic may not be told.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    try:
        check_topic_settings(settings, {**environment.settings, **image.broker_config(environment.node_id)})
        if parse(TOPIC_SETTINGS["remote.storage.enable"], settings.get("remote.storage.enable")):
            raise bad_setting(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )
    except ValueError as error:
        raise bad_setting(str(error)) from None


def bad_setting(sentence: str) -> KafkaError:
    """A value that cannot be."""
    return KafkaError(ErrorCode.INVALID_CONFIG, sentence)


def setting_records(image: MetadataImage, kind: int, name: str, changes: Mapping[str, str | None]) -> list[Versioned]:
    """The records of changed settings; None takes one back."""
    records: list[Versioned] = [
        (ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value), 0)
        for key, value in changes.items()
    ]
    if MIN_ISR in changes and image.has_eligible_leaders:
        records.append((ClearElrRecord(topic_name=name if kind == ResourceType.TOPIC else ""), 0))
    return records
