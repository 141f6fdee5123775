"""Which topics may be the target of a schedule topic (`barnabas.deliver.to`).

RULES    1. The target exists, is not internal, and is no schedule topic; a topic that is a target does not become one. So
            records are delivered once, and never in a circle.
         2. The controller decides this on its newest image, so of two requests at a time the second one sees the first.
NOT HERE Authorization (`broker/handlers/admin/topics.py`), delivery (`broker/coordinators/delivery/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.errors import ErrorCode, KafkaError
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.topic_names import INTERNAL_TOPICS
from storage.config.log_config import DELIVER_TO


class ScheduleTargets:
    """The targets of the cluster, and of the topics that a request has created or changed so far."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._in_request: dict[str, str] = {}

    def check(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Check the configs that a topic gets, if they set a target.

        Raises:
            KafkaError: INVALID_CONFIG.
        """
        target = configs.get(DELIVER_TO)
        if not target:
            return
        reason = self._reason(topic, target)
        if reason is not None:
            message = f"Invalid value {target} for configuration {DELIVER_TO}: {reason}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)

    def add(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """The request gives these configs to a topic."""
        target = configs.get(DELIVER_TO)
        if target:
            self._in_request[topic] = target

    def _reason(self, topic: str, target: str) -> str | None:
        """Why a topic cannot be the target of another one; None if it can."""
        image = self._image
        if target == topic or target in INTERNAL_TOPICS:
            return "it cannot be a target"
        if target not in image.topics_by_name:
            return "the target does not exist"
        if image.topic_config(target).get(DELIVER_TO) or target in self._in_request:
            return "the target is a schedule topic itself"
        is_target = topic in self._targets()
        # The client may not know the schedule topic's name.
        return f"{topic} is the target of another schedule topic" if is_target else None

    def _targets(self) -> Iterable[str | None]:
        for (kind, _), configs in self._image.configs.items():
            if kind == ResourceType.TOPIC:
                yield configs.get(DELIVER_TO)
        yield from self._in_request.values()
