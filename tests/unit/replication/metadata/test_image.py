"""The rules of `MetadataImage` and `MetadataDelta`."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from protocol.messages import stored_records
from protocol.schema import Message
from replication.metadata.image import (
    UNASSIGNED_DIRECTORY,
    Endpoint,
    MetadataDelta,
    MetadataImage,
    PartitionState,
    ResourceType,
)
from tests.support.metadata_histories import random_history

A = b"A" * 16
B = b"B" * 16
DIRECTORY = b"D" * 16


def topic(name: str, topic_id: bytes, partitions: int = 1) -> list[Message]:
    return [
        stored_records.TopicRecord(name=name, topic_id=topic_id),
        *(partition(topic_id, index) for index in range(partitions)),
    ]


def partition(topic_id: bytes, index: int) -> stored_records.PartitionRecord:
    return stored_records.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=[1],
        isr=[1],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=[DIRECTORY],
    )


def change(index: int = 0, **fields: Any) -> stored_records.PartitionChangeRecord:
    """A change of a partition of topic A."""
    return stored_records.PartitionChangeRecord(partition_id=index, topic_id=A, **fields)


def registration_change(**fields: Any) -> stored_records.BrokerRegistrationChangeRecord:
    """A change of the registration of broker 1."""
    return stored_records.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, **fields)


def setting(name: str, key: str, value: str | None) -> stored_records.ConfigRecord:
    return stored_records.ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=name, name=key, value=value)


def broker(broker_id: int = 1, epoch: int = 5) -> stored_records.RegisterBrokerRecord:
    return stored_records.RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=b"I" * 16,
        broker_epoch=epoch,
        end_points=[stored_records.BrokerEndpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
        features=[stored_records.BrokerFeature(name="f", min_supported_version=0, max_supported_version=2)],
        log_dirs=[DIRECTORY],
    )


def apply_records(*records: Message, image: MetadataImage | None = None) -> tuple[MetadataImage, MetadataDelta]:
    return (image or MetadataImage("cluster")).apply(records, offset=len(records), epoch=1)


def same(left: MetadataImage, right: MetadataImage) -> bool:
    return all(
        getattr(left, slot) == getattr(right, slot)
        for slot in MetadataImage.__slots__
        if slot not in ("offset", "epoch")
    )


def test_unchanged_parts_are_shared() -> None:
    first, _ = apply_records(*topic("a", A, 3))
    second, changes = apply_records(*topic("b", B), image=first)
    assert second.topics_by_name["a"] is first.topics_by_name["a"]
    assert second.configs is first.configs
    assert second.brokers is first.brokers
    assert changes.partitions == {B: {0}}
    assert changes.created_topics == {B}


def test_the_delta_names_exactly_what_changed() -> None:
    first, _ = apply_records(*topic("a", A, 3), *topic("b", B), broker())
    second, changes = apply_records(
        change(2, isr=[1]),
        partition(A, 3),
        setting("b", "retention.ms", "5"),
        stored_records.RemoveTopicRecord(topic_id=B),
        image=first,
    )
    assert changes.partitions == {A: {2, 3}}
    assert changes.removed_topics == {B: first.topics_by_id[B]}
    assert changes.configs == {(ResourceType.TOPIC, "b")}
    assert not changes.created_topics
    assert not changes.brokers
    assert not changes.features
    assert second.topics_by_name.keys() == {"a"}
    assert second.configs == {}
    nothing, changes = apply_records(stored_records.NoOpRecord(), image=second)
    assert changes == MetadataDelta()
    assert nothing.offset == 1


def test_the_delta_from_empty_equals_the_delta_of_the_records() -> None:
    image, changes = apply_records(
        *topic("a", A, 2),
        setting("a", "retention.ms", "5"),
        broker(),
        stored_records.FeatureLevelRecord(name="f", feature_level=1),
    )
    assert MetadataDelta.from_empty(image) == changes


def test_a_topic_created_and_removed_in_one_step_is_not_in_the_delta() -> None:
    image, changes = apply_records(*topic("a", A), stored_records.RemoveTopicRecord(topic_id=A))
    assert changes == MetadataDelta()
    assert not image.topics_by_id
    assert not image.topics_by_name


def test_removing_a_topic_removes_its_configs() -> None:
    """Kafka writes no records for them."""
    image, _ = apply_records(*topic("a", A), setting("a", "retention.ms", "5"))
    image, changes = apply_records(stored_records.RemoveTopicRecord(topic_id=A), *topic("a", B), image=image)
    assert image.topic_config("a") == {}
    assert image.topics_by_name["a"].topic_id == B
    assert changes.created_topics == {B}
    assert set(changes.removed_topics) == {A}


def test_a_leader_in_a_partition_change_increases_the_leader_epoch() -> None:
    image, _ = apply_records(*topic("a", A))
    image, _ = apply_records(change(isr=[]), image=image)
    state = image.topics_by_id[A].partitions[0]
    assert (state.isr, state.leader, state.leader_epoch, state.partition_epoch) == ((), 1, 0, 1)
    image, _ = apply_records(
        change(leader=1, isr=[1], eligible_leader_replicas=[2], last_known_elr=[3], leader_recovery_state=1),
        image=image,
    )
    assert image.topics_by_id[A].partitions[0] == PartitionState(
        (1,), (1,), 1, 1, 2, (DIRECTORY,), (), (), (2,), (3,), 1
    )
    image, changes = apply_records(stored_records.ClearElrRecord(topic_name="a"), image=image)
    state = image.topics_by_id[A].partitions[0]
    assert (state.eligible_leaders, state.last_known_leaders, state.partition_epoch) == ((), (), 3)
    assert changes.partitions == {A: {0}}
    _, changes = apply_records(stored_records.ClearElrRecord(topic_name=""), image=image)
    assert changes == MetadataDelta()


def test_without_leader_keeps_epochs_and_the_old_image() -> None:
    image, _ = apply_records(*topic("a", A, 2), *topic("b", B))
    image, _ = apply_records(change(1, leader=2), image=image)
    without, changes = image.without_leader(1)
    assert changes.partitions == {A: {0}, B: {0}}
    old = image.topics_by_id[A].partitions
    assert old[0].leader == 1
    assert without.topics_by_name["a"].partitions == {0: old[0]._replace(leader=-1), 1: old[1]}
    assert (without.offset, without.epoch) == (image.offset, image.epoch)


def test_a_change_of_replicas_keeps_the_directories_of_the_remaining_ones() -> None:
    image, _ = apply_records(*topic("a", A))
    image, _ = apply_records(change(replicas=[2, 1], adding_replicas=[2]), image=image)
    state = image.topics_by_id[A].partitions[0]
    assert state.replicas == (2, 1)
    assert state.directories == (UNASSIGNED_DIRECTORY, DIRECTORY)
    assert state.adding == (2,)


def test_brokers_and_the_cluster_have_configs_of_their_own() -> None:
    records = [
        stored_records.ConfigRecord(resource_type=ResourceType.BROKER, resource_name=name, name=key, value=value)
        for name, key, value in (("", "a", "1"), ("", "b", "1"), ("1", "b", "2"), ("2", "b", "3"))
    ]
    image, _ = apply_records(*records)
    assert image.own_broker_config("") == {"a": "1", "b": "1"}
    assert image.own_broker_config("1") == {"b": "2"}


def test_a_registration_change_keeps_the_other_fields() -> None:
    image, _ = apply_records(broker())
    image, changes = apply_records(registration_change(fenced=-1, cordoned_log_dirs=[]), image=image)
    registered = image.brokers[1]
    assert registered.is_active
    assert registered.cordoned_directories == ()
    assert registered.endpoint("PLAINTEXT") == Endpoint("PLAINTEXT", "h", 9092, 0)
    assert registered.endpoint("SSL") is None
    assert registered.features == {"f": (0, 2)}
    assert registered.directories == (DIRECTORY,)
    assert changes.brokers == {1}
    image, _ = apply_records(registration_change(in_controlled_shutdown=1), image=image)
    assert not image.brokers[1].is_active
    assert not image.brokers[1].is_fenced
    image, _ = apply_records(stored_records.UnregisterBrokerRecord(broker_id=1, broker_epoch=5), image=image)
    assert image.brokers == {}


@pytest.mark.parametrize(
    "record",
    [
        partition(A, 0),
        change(leader=1),
        stored_records.RemoveTopicRecord(topic_id=A),
        registration_change(fenced=-1),
        stored_records.ClearElrRecord(topic_name="a"),
    ],
)
def test_a_record_that_contradicts_the_image_is_an_assertion_error(record: Message) -> None:
    with pytest.raises(AssertionError):
        apply_records(record)


def test_the_image_does_not_depend_on_how_records_are_batched_and_never_changes() -> None:
    for seed in range(40):
        history = [message for message, _ in random_history(random.Random(seed), 60)]
        at_once, changes = apply_records(*history)
        one_by_one = MetadataImage("cluster")
        for record in history:
            kept = pickle.dumps(one_by_one)
            following, _ = apply_records(record, image=one_by_one)
            assert pickle.dumps(one_by_one) == kept, f"seed {seed}"
            one_by_one = following
        assert same(at_once, one_by_one), f"seed {seed}"
        assert changes.partitions.keys() <= at_once.topics_by_id.keys(), f"seed {seed}"
        assert changes.created_topics == set(at_once.topics_by_id), f"seed {seed}"
