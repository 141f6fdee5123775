"""Which topics may be targets of schedule topics (replication/controller/configs/schedule_targets.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages import admin
from storage.config.log_config import DELIVER_TO
from tests.support.config_cases import SET, TOPIC, replaced, resource
from tests.support.controller_harness import ControllerHarness
from tests.support.loading import topic

ITSELF = "the target is a schedule topic itself"
NO_TARGET = "it cannot be a target"


@pytest.fixture
def harness(tmp_path: Path) -> ControllerHarness:
    harness = ControllerHarness(tmp_path).start()
    harness.ask(create(*map(topic, "abcd")))
    return harness


def create(*topics: admin.CreatableTopic) -> admin.CreateTopicsRequest:
    return admin.CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=False)


def schedule(**targets: str) -> admin.IncrementalAlterConfigsRequest:
    resources = [resource(TOPIC, name, (DELIVER_TO, SET, target)) for name, target in targets.items()]
    return admin.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)


def refusal(target: str, reason: str) -> tuple[ErrorCode, str]:
    return ErrorCode.INVALID_CONFIG, f"Invalid value {target} for configuration {DELIVER_TO}: {reason}"


@pytest.mark.parametrize(
    ("before", "target", "reason"),
    [
        ({}, "b", None),
        ({"c": "d"}, "b", None),
        ({"c": "b"}, "b", None),
        ({"b": "c"}, "b", ITSELF),
        ({"c": "a"}, "b", "a is the target of another schedule topic"),
        ({}, "x", "the target does not exist"),
        ({}, "a", NO_TARGET),
        ({}, "__consumer_offsets", NO_TARGET),
    ],
)
def test_a_target_exists_and_does_not_deliver(
    harness: ControllerHarness, before: dict[str, str], target: str, reason: str | None
) -> None:
    """In the cluster and in the request; for both kinds of config changes."""
    expected = (ErrorCode.NONE, None) if reason is None else refusal(target, reason)
    together = harness.ask(schedule(**before, a=target)).responses[-1]
    assert (together.error_code, together.error_message) == expected
    harness.ask(schedule(a=""))
    alone = harness.ask(schedule(a=target)).responses[0]
    assert (alone.error_code, alone.error_message) == expected
    harness.ask(schedule(a=""))
    legacy = admin.AlterConfigsRequest(resources=[replaced(TOPIC, "a", (DELIVER_TO, target))], validate_only=False)
    (replacement,) = harness.ask(legacy).responses
    assert (replacement.error_code, replacement.error_message) == expected


def test_new_topics_have_such_targets_too(harness: ControllerHarness) -> None:
    results = harness.ask(
        create(
            topic("new", configs=[(DELIVER_TO, "b")]),
            topic("other", configs=[(DELIVER_TO, "new")]),
            topic("third", configs=[(DELIVER_TO, "x")]),
        )
    ).topics
    assert [(one.name, one.error_code) for one in results] == [
        ("new", ErrorCode.NONE),
        ("other", ErrorCode.INVALID_CONFIG),
        ("third", ErrorCode.INVALID_CONFIG),
    ]


def test_a_decision_sees_targets_that_are_not_committed_yet(harness: ControllerHarness) -> None:
    """Of two requests that would make a circle the second one is refused; a target that was just created is known."""
    harness.worker.is_held = True
    created = harness.submit(create(topic("new")))
    answers = [harness.submit(schedule(a="new")), harness.submit(schedule(new="a"))]
    assert not any(one.is_done for one in (created, *answers))
    harness.worker.is_held = False
    harness.worker.let_sync()
    codes = [one.result().responses[0].error_code for one in answers]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_CONFIG]
    assert harness.image.topic_config("a") == {DELIVER_TO: "new"}
