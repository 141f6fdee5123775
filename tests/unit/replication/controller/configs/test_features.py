"""Tests of features.py: records and validation. (Messages: tests/conformance.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import stored_records
from protocol.messages.admin import AlterConfigsResource, IncrementalAlterConfigsRequest
from replication.controller.brokers.registration import controller_registration_request
from replication.controller.configs.features import raised_kraft_version, update_features
from replication.controller.decision_context import KraftVersion
from replication.metadata.feature_levels import WITH_CONTROLLERS
from replication.metadata_log.metadata_log_open import OpenedMetadataLog
from tests.support.config_cases import BROKER, SET, resource
from tests.support.controller_harness import CONTROLLER_ENDPOINTS, ControllerHarness, registration
from tests.support.feature_cases import ELIGIBLE, GROUP, KRAFT, METADATA, SAFE, UP, Update, updates
from tests.support.follower import features


class OldClusterHarness(ControllerHarness):
    """A cluster formatted with metadata.version 3.4."""

    def open(self) -> OpenedMetadataLog:
        first = stored_records.FeatureLevelRecord(name=METADATA, feature_level=8)
        return super().open()._replace(bootstrap=[(first, 0)])


def change(harness: ControllerHarness, *wanted: Update) -> Any:
    before = harness.image.metadata_version
    answer = harness.ask(updates(*wanted))
    if harness.image.metadata_version > before:
        harness.ask(harness.registration())  # as brokers and controllers do
        if harness.image.metadata_version >= WITH_CONTROLLERS:
            levels = harness.image.features
            harness.ask(controller_registration_request(1, harness.incarnation, CONTROLLER_ENDPOINTS, levels))
    return answer


def test_nodes_register_again_after_a_metadata_version_upgrade(tmp_path: Path) -> None:
    """Directories since level 17, controllers since 15; the broker epoch stays."""
    harness = OldClusterHarness(tmp_path).start()
    before = harness.image.brokers[1]
    assert (before.directories, harness.image.controllers) == ((), {})
    assert change(harness, (METADATA, 16, UP)).error_code == ErrorCode.NONE
    assert (harness.image.brokers[1].directories, list(harness.image.controllers)) == ((), [1])
    assert change(harness, (METADATA, 30, UP)).error_code == ErrorCode.NONE
    after = harness.image.brokers[1]
    assert after.directories == tuple(harness.identity.directory_ids.values())
    assert after._replace(directories=(), cordoned_directories=None) == before
    versions = [message for message in harness.records() if isinstance(message, stored_records.RegisterBrokerRecord)]
    assert [len(message.log_dirs) for message in versions] == [0, 0, 1]


def test_unchanged_and_rejected_levels_write_no_record(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path).start()
    end = harness.log.next_offset
    assert change(harness, (METADATA, 30, UP), (KRAFT, 1, UP), (GROUP, 1, SAFE)).error_code == ErrorCode.NONE
    assert change(harness, (GROUP, 0, SAFE), (GROUP, 2, UP)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert change(harness, (GROUP, 0, SAFE), ("nope", 1, UP)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert harness.log.next_offset == end
    assert harness.node.features == {**harness.image.features, KRAFT: 1}


def test_every_broker_must_support_the_level(tmp_path: Path) -> None:
    """Fenced brokers too; a missing feature means level 0."""
    harness = ControllerHarness(tmp_path).start()
    assert change(harness, (GROUP, 0, SAFE), ("transaction.version", 1, SAFE)).error_code == ErrorCode.NONE
    limited = registration(features=features(group_version=(0, 0), transaction_version=(1, 1)))
    assert harness.ask(limited).error_code == ErrorCode.NONE
    for feature, level, reason in (
        (GROUP, 1, "Broker 2 does not support this feature."),
        ("transaction.version", 2, "Broker 2 only supports versions 1"),
    ):
        message = change(harness, (feature, level, UP)).error_message
        assert message.endswith(f"Invalid update version {level} for feature {feature}. {reason}")


def test_enabling_elr_deletes_min_isr_of_single_brokers(tmp_path: Path) -> None:
    """The cluster config stays."""
    harness = ControllerHarness(tmp_path, settings={"min.insync.replicas": "2"}).start()
    assert harness.image.configs[BROKER, ""] == {"min.insync.replicas": "2"}
    change(harness, (ELIGIBLE, 0, SAFE))
    wanted: list[AlterConfigsResource] = [resource(BROKER, "1", ("min.insync.replicas", SET, "3"))]
    harness.ask(IncrementalAlterConfigsRequest(resources=wanted))
    assert harness.image.configs[BROKER, "1"] == {"min.insync.replicas": "3"}
    change(harness, (ELIGIBLE, 1, UP))
    assert harness.image.has_eligible_leaders
    assert (BROKER, "1") not in harness.image.configs
    assert harness.image.configs[BROKER, ""] == {"min.insync.replicas": "2"}


@pytest.mark.parametrize("error", [None, KafkaError(ErrorCode.INVALID_UPDATE_VERSION, "not now")])
def test_the_quorum_validates_kraft_version(tmp_path: Path, error: KafkaError | None) -> None:
    """validate_only does not raise it."""
    harness = ControllerHarness(tmp_path).start()
    context = harness.context()._replace(kraft_version=KraftVersion(lambda: 0, lambda level: error))
    request = updates((KRAFT, 1, UP))
    decision = update_features(context, request)
    assert not decision.records
    assert (decision.reply.error_code == ErrorCode.NONE) == (error is None)
    assert raised_kraft_version(request, decision.reply) == (1 if error is None else None)
    assert raised_kraft_version(updates((KRAFT, 1, UP), validate_only=True), decision.reply) is None
