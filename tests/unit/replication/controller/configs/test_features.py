"""Levels of features: what is written when they change, who has to know them. (Sentences: tests/conformance.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import stored_records
from protocol.messages.admin import AlterConfigsResource, IncrementalAlterConfigsRequest
from protocol.messages.quorum import BrokerRegistrationRequest
from protocol.messages.stored_records import BrokerEndpoint, BrokerFeature
from replication.controller.brokers.registration import controller_registration_request
from replication.controller.configs.features import raised_kraft_version, update_features
from replication.controller.decision_context import KraftVersion
from replication.metadata.feature_levels import SUPPORTED_FEATURES, WITH_CONTROLLERS
from replication.metadata_log.metadata_log_open import OpenedMetadataLog
from tests.support.config_cases import BROKER, SET, resource
from tests.support.controller_harness import CLUSTER_ID, CONTROLLER_ENDPOINTS, ControllerWorld
from tests.support.feature_cases import ELIGIBLE, GROUP, KRAFT, METADATA, SAFE, UP, Update, updates


class OldWorld(ControllerWorld):
    """A cluster that begins at 3.4."""

    def open(self) -> OpenedMetadataLog:
        first = stored_records.FeatureLevelRecord(name=METADATA, feature_level=8)
        return super().open()._replace(bootstrap=[(first, 0)])


def change(world: ControllerWorld, *wanted: Update) -> Any:
    before = world.image.metadata_version
    answer = world.ask(updates(*wanted))
    if world.image.metadata_version > before:
        world.register(world.registration())  # as brokers do, and controllers
        own = controller_registration_request(1, world.incarnation, CONTROLLER_ENDPOINTS, world.image.features)
        if world.image.metadata_version >= WITH_CONTROLLERS:
            world.ask(own)
    return answer


def other_broker(**levels: tuple[int, int]) -> BrokerRegistrationRequest:
    known = {**SUPPORTED_FEATURES, **{name.replace("_", "."): level for name, level in levels.items()}}
    features = [
        BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in known.items()
    ]
    listeners = [BrokerEndpoint(name="PLAINTEXT", host="h", port=9, security_protocol=0)]
    return BrokerRegistrationRequest(
        broker_id=2, cluster_id=CLUSTER_ID, incarnation_id=b"I" * 16, listeners=listeners, features=features,
        rack=None, log_dirs=[b"D" * 16],
    )  # fmt: skip


def test_this_node_registers_anew_where_more_can_be_written_of_it(tmp_path: Path) -> None:
    """Directories from 17 on, the controller from 15 on; the broker stays the same process under its epoch."""
    world = OldWorld(tmp_path).start()
    before = world.image.brokers[1]
    assert (before.directories, world.image.controllers) == ((), {})
    assert change(world, (METADATA, 16, UP)).error_code == ErrorCode.NONE
    assert (world.image.brokers[1].directories, list(world.image.controllers)) == ((), [1])
    assert change(world, (METADATA, 30, UP)).error_code == ErrorCode.NONE
    after = world.image.brokers[1]
    assert after.directories == tuple(world.identity.directory_ids.values())
    assert after._replace(directories=(), cordoned_directories=None) == before
    versions = [message for message in world.records() if isinstance(message, stored_records.RegisterBrokerRecord)]
    assert [len(message.log_dirs) for message in versions] == [0, 0, 1]


def test_nothing_is_written_for_levels_that_are_there(tmp_path: Path) -> None:
    """A request that changes nothing, and one that is refused in its second half."""
    world = ControllerWorld(tmp_path).start()
    end = world.log.next_offset
    assert change(world, (METADATA, 30, UP), (KRAFT, 1, UP), (GROUP, 1, SAFE)).error_code == ErrorCode.NONE
    assert change(world, (GROUP, 0, SAFE), (GROUP, 2, UP)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert change(world, (GROUP, 0, SAFE), ("nope", 1, UP)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert world.log.next_offset == end
    assert world.node.features == {**world.image.features, KRAFT: 1}


def test_every_broker_has_to_know_the_level(tmp_path: Path) -> None:
    """Rule 2: also one that is fenced; what it does not name it knows at 0."""
    world = ControllerWorld(tmp_path).start()
    assert change(world, (GROUP, 0, SAFE), ("transaction.version", 1, SAFE)).error_code == ErrorCode.NONE
    assert world.register(other_broker(group_version=(0, 0), transaction_version=(1, 1))).error_code == ErrorCode.NONE
    for feature, level, why in (
        (GROUP, 1, "Broker 2 does not support this feature."),
        ("transaction.version", 2, "Broker 2 only supports versions 1"),
    ):
        told = change(world, (feature, level, UP)).error_message
        assert told.endswith(f"Invalid update version {level} for feature {feature}. {why}")


def test_eligible_leaders_take_the_setting_away_from_single_brokers(tmp_path: Path) -> None:
    """Rule 4; what was set for the cluster stays."""
    world = ControllerWorld(tmp_path, settings={"min.insync.replicas": "2"}).start()
    assert world.image.configs[BROKER, ""] == {"min.insync.replicas": "2"}
    change(world, (ELIGIBLE, 0, SAFE))
    wanted: list[AlterConfigsResource] = [resource(BROKER, "1", ("min.insync.replicas", SET, "3"))]
    world.ask(IncrementalAlterConfigsRequest(resources=wanted))
    assert world.image.configs[BROKER, "1"] == {"min.insync.replicas": "3"}
    change(world, (ELIGIBLE, 1, UP))
    assert world.image.has_eligible_leaders
    assert (BROKER, "1") not in world.image.configs
    assert world.image.configs[BROKER, ""] == {"min.insync.replicas": "2"}


@pytest.mark.parametrize("refusal", [None, KafkaError(ErrorCode.INVALID_UPDATE_VERSION, "not now")])
def test_the_quorum_says_whether_its_version_can_be_raised(tmp_path: Path, refusal: KafkaError | None) -> None:
    """Rule 5; what was only tried is not done."""
    world = ControllerWorld(tmp_path).start()
    context = world.context()._replace(kraft_version=KraftVersion(lambda: 0, lambda level: refusal))
    request = updates((KRAFT, 1, UP))
    decision = update_features(world.image, context, request)
    assert not decision.records
    assert (decision.reply.error_code == ErrorCode.NONE) == (refusal is None)
    assert raised_kraft_version(request, decision.reply) == (1 if refusal is None else None)
    assert raised_kraft_version(updates((KRAFT, 1, UP), validate_only=True), decision.reply) is None
