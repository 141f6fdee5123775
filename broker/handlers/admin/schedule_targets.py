"""Which topics may be the target of a schedule topic (`barnabas.deliver.to`).

RULES    1. The target exists, is not internal, and is no schedule topic; a topic that is a target does not become one. So
            records are delivered once, and never in a circle.
NOT HERE Authorization (`topics.py`), delivery (`broker/coordinators/delivery/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from protocol.errors import ErrorCode, KafkaError
from replication.controller.configs.config_changes import AlterConfigOp
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.topic_names import INTERNAL_TOPICS
from storage.config.log_config import DELIVER_TO


def target_of(configs: Iterable[Any]) -> str:
    """The target in the configs of a request; "" if it sets none."""
    for config in configs:
        if config.name == DELIVER_TO and getattr(config, "config_operation", AlterConfigOp.SET) == AlterConfigOp.SET:
            return config.value or ""
    return ""


def check_target(image: MetadataImage, topic: str, target: str, others: Mapping[str, str]) -> None:
    """Check the target of a topic that is created or changed; `others` are the targets of topics in the same request.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    reason = None
    if target == topic or target in INTERNAL_TOPICS:
        reason = "it cannot be a target"
    elif target not in image.topics_by_name:
        reason = "the target does not exist"
    elif image.topic_config(target).get(DELIVER_TO) or target in others:
        reason = "the target is a schedule topic itself"
    else:
        sources = [
            name
            for (kind, name), configs in image.configs.items()
            if kind == ResourceType.TOPIC and configs.get(DELIVER_TO) == topic
        ]
        sources += [name for name, other in others.items() if other == topic]
        if sources:
            reason = f"{topic} is the target of {sources[0]}"
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {target} for configuration {DELIVER_TO}: {reason}")
