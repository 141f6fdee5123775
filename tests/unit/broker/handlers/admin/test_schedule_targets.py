"""Which topics may be targets of schedule topics (broker/handlers/admin/schedule_targets.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.handlers.admin.schedule_targets import check_target
from protocol.errors import ErrorCode, KafkaError
from replication.metadata.image import ResourceType
from storage.config.log_config import DELIVER_TO


def image(**targets: str) -> Any:
    """Topics a to d; some have a target."""
    configs = {(ResourceType.TOPIC, name): {DELIVER_TO: target} for name, target in targets.items()}
    return SimpleNamespace(
        topics_by_name=dict.fromkeys("abcd"),
        configs=configs,
        topic_config=lambda name: configs.get((ResourceType.TOPIC, name), {}),
    )


@pytest.mark.parametrize(
    ("before", "in_request", "reason"),
    [
        ({}, {}, None),
        ({}, {"c": "d"}, None),
        ({}, {"c": "b"}, None),
        ({"b": "c"}, {}, "the target is a schedule topic itself"),
        ({}, {"b": "c"}, "the target is a schedule topic itself"),
        ({"c": "a"}, {}, "a is the target of c"),
        ({}, {"c": "a"}, "a is the target of c"),
    ],
)
def test_a_target_of_the_cluster_or_of_the_same_request_does_not_deliver(
    before: dict[str, str], in_request: dict[str, str], reason: str | None
) -> None:
    if reason is None:
        check_target(image(**before), "a", "b", in_request)
        return
    with pytest.raises(KafkaError, match=reason) as caught:
        check_target(image(**before), "a", "b", in_request)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
