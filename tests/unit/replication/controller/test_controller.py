"""Tests of controller.py, topics.py, config_changes.py, assignments.py and registration.py on a single node."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages import admin, quotas_scram, stored_records
from protocol.messages.cluster import UnregisterBrokerRequest
from protocol.messages.quorum import AllocateProducerIdsRequest
from protocol.schema import Message
from replication.controller.error_responses import results_of
from replication.cooperative_tasks import STEPS_PER_SLICE
from replication.metadata.image import NO_LEADER, MetadataDelta, MetadataImage
from replication.metadata.metadata_records import read_batches
from storage.io.disk import StorageError
from tests.support.admin_cases import CASES, normalised
from tests.support.cluster_cases import CLUSTER_CASES, altered
from tests.support.config_cases import (
    APPEND,
    BROKER,
    DELETE_SETTING,
    SET,
    SETTINGS_CASES,
    SUBTRACT,
    TOPIC,
    replaced,
    resource,
)
from tests.support.controller_harness import ControllerHarness
from tests.support.loading import topic
from tests.unit.replication.kafka_bytes import METADATA_LOG

ALL = CASES | SETTINGS_CASES | CLUSTER_CASES


@pytest.fixture
def harness(tmp_path: Path) -> ControllerHarness:
    return ControllerHarness(tmp_path).start()


def create(*topics: Any, validate_only: bool = False) -> admin.CreateTopicsRequest:
    return admin.CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=validate_only)


def delete(*names: str) -> admin.DeleteTopicsRequest:
    return admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name=name) for name in names], timeout_ms=10_000)


def alter(*resources: Any, validate_only: bool = False) -> admin.IncrementalAlterConfigsRequest:
    return admin.IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)


# ---- responses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ALL)
def test_responses_equal_those_of_kafka(harness: ControllerHarness, api: str) -> None:
    """Checks, order, codes and messages; tests/conformance/test_admin_answers.py sends the same requests to Kafka."""
    made = harness.ask(
        create(topic("t1", 3), topic("t2", 2, configs=[("cleanup.policy", "compact,delete")]), topic("c.c"))
    )
    assert [code for _, code, _ in normalised(made)] == [0, 0, 0]
    published = harness.image
    for case in ALL[api]:
        response = normalised(harness.submit_through_broker(case.request))
        expected = case.answer if case.ours is None else case.ours
        assert response == expected, f"{case.request}"
    assert harness.image is published, "none of them changes the metadata"


def test_a_create_topics_response_contains_effective_configs(harness: ControllerHarness) -> None:
    """Since version 5: counts, effective values and their sources."""
    harness.ask(alter(resource(BROKER, "1", ("log.retention.ms", SET, "600000"))))
    harness.settings["log.segment.bytes"] = "2097152"
    harness.settings["log.retention.hours"] = "1"
    (result,) = harness.ask(create(topic("a", 3, configs=[("flush.messages", "1")]))).topics
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert result.topic_id == harness.image.topics_by_name["a"].topic_id
    assert result.topic_config_error_code == ErrorCode.NONE
    found = {config.name: (config.value, config.config_source) for config in result.configs}
    assert found["flush.messages"] == ("1", 1)
    assert found["retention.ms"] == ("600000", 2)
    assert found["min.insync.replicas"] == ("1", 3)
    assert found["segment.bytes"] == ("2097152", 4)
    assert found["cleanup.policy"] == ("delete", 5)
    assert len(found) == 34
    assert "internal.segment.bytes" not in found
    (result,) = harness.ask(create(topic("b", configs=[("internal.segment.bytes", "100")]))).topics
    assert len(result.configs) == 35


def test_configs_in_hours_are_returned_in_milliseconds(harness: ControllerHarness) -> None:
    """The broker config is in hours, the topic config in milliseconds."""
    harness.settings["log.retention.hours"] = "2"
    (result,) = harness.ask(create(topic("a"))).topics
    (retention,) = [config for config in result.configs if config.name == "retention.ms"]
    assert (retention.value, retention.config_source) == ("7200000", 4)


def test_validate_only_writes_no_record(harness: ControllerHarness) -> None:
    end = harness.log.next_offset
    harness.ask(create(topic("a"), validate_only=True))
    assert harness.log.next_offset == end
    harness.ask(create(topic("a")))
    end = harness.log.next_offset
    grow = admin.CreatePartitionsRequest(
        topics=[admin.CreatePartitionsTopic(name="a", count=3)], timeout_ms=10_000, validate_only=True
    )
    harness.ask(grow)
    harness.ask(alter(resource(TOPIC, "a", ("retention.ms", SET, "5")), validate_only=True))
    assert harness.log.next_offset == end


def test_alter_configs_deletes_configs_that_are_not_named(harness: ControllerHarness) -> None:
    """Unchanged values write no record."""
    harness.ask(create(topic("a", configs=[("retention.ms", "5"), ("segment.ms", "6"), ("flush.ms", "7")])))
    end = len(harness.records())
    wanted = replaced(TOPIC, "a", ("segment.ms", "6"), ("flush.ms", "8"))
    harness.ask(admin.AlterConfigsRequest(resources=[wanted], validate_only=False))
    assert harness.image.topic_config("a") == {"segment.ms": "6", "flush.ms": "8"}
    assert [(r.name, r.value) for r in harness.records()[end:]] == [("flush.ms", "8"), ("retention.ms", None)]


# ---- records ---------------------------------------------------------------------------------------------


def kafka_records(first: int, last: int) -> list[Message]:
    """The data records of Kafka's log between two offsets, without NoOp records."""
    return [
        message
        for batch in read_batches(METADATA_LOG)
        if first <= batch.base_offset <= last and not batch.is_control
        for message in batch.messages
        if not isinstance(message, stored_records.NoOpRecord)
    ]


def test_the_records_equal_those_of_kafka(tmp_path: Path) -> None:
    """The same requests with the same ids: types, fields, order, batches."""
    theirs = kafka_records(0, 1000)
    registrations = [r for r in theirs if isinstance(r, stored_records.RegisterBrokerRecord)]
    harness = ControllerHarness(tmp_path)
    directory_id = registrations[0].log_dirs[0]
    harness.identity = harness.identity._replace(directory_ids={harness.directory: directory_id})
    harness.incarnations.append(registrations[0].incarnation_id)
    harness.topic_ids.extend(r.topic_id for r in theirs if isinstance(r, stored_records.TopicRecord))
    harness.start()
    harness.ask(create(topic("t1", 3, configs=[("cleanup.policy", "compact"), ("retention.ms", "1000")])))
    configs = [("cleanup.policy", "compact,delete"), ("min.insync.replicas", "1"), ("retention.ms", "1")]
    harness.ask(create(topic("t2", 2, configs=configs), topic("t3")))
    changes = [("cleanup.policy", SUBTRACT, "compact"), ("retention.ms", SET, "5")]
    harness.ask(alter(resource(TOPIC, "t2", *changes)))
    harness.ask(alter(resource(BROKER, "1", ("log.retention.ms", SET, "600000"))))
    harness.ask(alter(resource(TOPIC, "t2", ("retention.ms", DELETE_SETTING, None))))
    grow = [admin.CreatePartitionsTopic(name="t2", count=4)]
    harness.ask(admin.CreatePartitionsRequest(topics=grow, timeout_ms=10_000))
    harness.ask(delete("t3"))
    harness.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=harness.broker_epoch))
    ours = harness.records()
    ended = next(i for i, r in enumerate(theirs) if isinstance(r, stored_records.ProducerIdsRecord))
    assert [_comparable(record) for record in ours] == [_comparable(record) for record in theirs[: ended + 1]]


def _comparable(record: Message) -> str:
    """A record without the controller incarnation and the order of features."""
    if isinstance(record, stored_records.RegisterBrokerRecord | stored_records.RegisterControllerRecord):
        record.features.sort(key=lambda feature: feature.name)
    if isinstance(record, stored_records.RegisterControllerRecord):
        record.incarnation_id = b""
    return repr(record)


def test_a_recreated_topic_has_a_new_id_and_no_configs(harness: ControllerHarness) -> None:
    """A client with the old id must notice the deletion."""
    (first,) = harness.ask(create(topic("a", configs=[("retention.ms", "5")]))).topics
    harness.ask(delete("a"))
    assert "a" not in harness.image.topics_by_name
    (second,) = harness.ask(create(topic("a"))).topics
    assert first.topic_id != second.topic_id
    assert harness.image.topic_config("a") == {}


def test_a_topic_can_be_deleted_by_id(harness: ControllerHarness) -> None:
    """Version 6; the response contains the name."""
    (made,) = harness.ask(create(topic("a"))).topics
    request = admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(topic_id=made.topic_id)], timeout_ms=0)
    (gone,) = harness.ask(request).responses
    assert (gone.name, gone.topic_id, gone.error_code) == ("a", made.topic_id, 0)
    assert not harness.image.topics_by_id


def test_a_topic_named_twice_is_deleted_once(harness: ControllerHarness) -> None:
    """By name and by id: the second one is an error."""
    (made,) = harness.ask(create(topic("a"))).topics
    states = [admin.DeleteTopicState(name="a"), admin.DeleteTopicState(topic_id=made.topic_id)]
    response = harness.ask(admin.DeleteTopicsRequest(topics=states, timeout_ms=0)).responses
    assert [r.error_code for r in response] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert response[1].error_message == "The provided topic name maps to an ID that was already supplied."


def test_append_and_subtract_start_from_the_effective_list(harness: ControllerHarness) -> None:
    """The topic's value or the default; elements are not repeated."""
    harness.ask(create(topic("a")))
    for operation, value, expected in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
    ):
        harness.ask(alter(resource(TOPIC, "a", ("cleanup.policy", operation, value))))
        assert harness.image.topic_config("a") == {"cleanup.policy": expected}


def test_all_described_configs_of_a_topic_may_be_set_before_it_is_compacted(harness: ControllerHarness) -> None:
    """Clients of the deprecated AlterConfigs send back what they read, the storage engine too (confluent-kafka-go's tests)."""
    harness.ask(create(topic("a", configs=[("barnabas.storage.engine", "commitlog")])))
    (response,) = harness.ask(alter(resource(TOPIC, "a", ("cleanup.policy", APPEND, "compact")))).responses
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    both = {"barnabas.storage.engine": "commitlog", "cleanup.policy": "delete,compact"}
    assert harness.image.topic_config("a") == both


def test_an_unchanged_topic_config_writes_no_record(harness: ControllerHarness) -> None:
    """A broker config is written again: Kafka brokers reload it then."""
    harness.ask(create(topic("a", configs=[("retention.ms", "5")])))
    end = harness.log.next_offset
    harness.ask(alter(resource(TOPIC, "a", ("retention.ms", SET, "5"), ("nope", DELETE_SETTING, None))))
    assert harness.log.next_offset == end
    for _ in range(2):
        harness.ask(alter(resource(BROKER, "1", ("log.retention.ms", SET, "5"))))
    assert harness.log.next_offset == end + 2


def test_a_config_value_that_grows_too_long_is_rejected(harness: ControllerHarness) -> None:
    """Only with APPEND: the protocol limits strings to the same length."""
    harness.ask(alter(resource(BROKER, "", ("log.cleanup.policy", SET, "delete"))))
    harness.ask(create(topic("a")))
    value = ",".join(f"{i}:1" for i in range(5000))
    name = "leader.replication.throttled.replicas"
    harness.ask(alter(resource(TOPIC, "a", (name, SET, value))))
    more = ",".join(f"{i}:2" for i in range(5000))
    (response,) = harness.ask(alter(resource(TOPIC, "a", (name, APPEND, more)))).responses
    assert response.error_code == ErrorCode.INVALID_CONFIG
    assert "exceeds the maximum value size of 32767 bytes" in response.error_message


def test_producer_id_blocks_never_overlap(tmp_path: Path) -> None:
    """Also after a restart."""
    starts = []
    for _ in range(2):
        harness = ControllerHarness(tmp_path).start()
        for _ in range(2):
            epoch = harness.broker_epoch
            block = harness.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
            assert block.error_code == ErrorCode.NONE
            assert block.producer_id_len == 1000
            starts.append(block.producer_id_start)
        harness.log.close()
    assert starts == [0, 1000, 2000, 3000]


def test_producer_ids_need_a_current_registration(harness: ControllerHarness) -> None:
    epoch = harness.broker_epoch
    stale = harness.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch - 1))
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
    unknown = harness.ask(AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch))
    assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert harness.image.next_producer_id == 0


# ---- commit, publish, respond ----------------------------------------------------------------------------


def test_a_response_follows_its_image_and_the_image_follows_the_flush(harness: ControllerHarness) -> None:
    """The partitions exist when the client receives the response."""
    order: list[str] = []

    def follow(image: MetadataImage, _: MetadataDelta) -> Iterator[None]:
        order.append(f"image {sorted(image.topics_by_name)}")
        yield

    harness.publisher.on_image = follow
    harness.worker.is_held = True
    for name in "ab":
        harness.submit(create(topic(name))).then(lambda done: order.append(done.value.topics[0].name))
    assert order == []
    assert harness.image.topics_by_name == {}
    harness.worker.let_sync()
    assert order == ["image ['a']", "a"]
    harness.worker.let_sync()
    assert order == ["image ['a']", "a", "image ['a', 'b']", "b"]


def test_large_decisions_are_processed_in_slices(harness: ControllerHarness) -> None:
    """No partial image is published, no response is early, and the order is kept."""
    turns: deque[Callable[[], None]] = deque()
    harness.publisher.call_soon = harness.log.call_soon = turns.append
    order: list[str] = []
    count = 2 * STEPS_PER_SLICE + 1

    def follow(image: MetadataImage, changes: MetadataDelta) -> Iterator[None]:
        for indexes in changes.partitions.values():
            for _ in indexes:
                assert harness.image is not image, "not published yet"
                yield
        order.append(f"image {sorted(image.topics_by_name)}")

    def submit(name: str, partitions: int) -> None:
        request = create(topic(name, partitions))
        response = harness.submit(request)
        response.then(lambda done: order.append(ErrorCode(done.value.topics[0].error_code).name))

    harness.publisher.on_image = follow
    submit("large", count)
    submit("small", 1)
    submit("large", 1)
    assert order == []
    assert harness.batches()[-1].last_offset < harness.log.next_offset - count, "encoded in later slices"
    while turns and not order:
        assert harness.image.topics_by_name == {}
        turns.popleft()()
    while turns:
        turns.popleft()()
    assert order == ["image ['large']", "NONE", "image ['large', 'small']", "NONE", "TOPIC_ALREADY_EXISTS"]
    assert [len(batch.messages) for batch in harness.batches()[-2:]] == [count + 1, 2]
    assert len(harness.image.topics_by_name["large"].partitions) == count


def test_an_error_response_waits_for_earlier_decisions(harness: ControllerHarness) -> None:
    """ "already exists" is true only after the commit."""
    harness.worker.is_held = True
    first, second = (harness.submit(create(topic("a"))) for _ in range(2))
    assert not first.is_done
    assert not second.is_done
    harness.worker.let_sync()
    codes = [response.result().topics[0].error_code for response in (first, second)]
    assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]


def test_a_decision_sees_uncommitted_records(harness: ControllerHarness) -> None:
    harness.worker.is_held = True
    harness.submit(create(topic("a")))
    change = harness.submit(alter(resource(TOPIC, "a", ("retention.ms", SET, "5"))))
    while harness.worker.syncs:
        harness.worker.let_sync()
    assert change.result().responses[0].error_code == ErrorCode.NONE
    assert harness.image.topic_config("a") == {"retention.ms": "5"}


def large_topics(count: int) -> list[Any]:
    """Topics whose configs need 32 KB each."""
    value = ",".join(["1000:1"] * 4_500)
    return [topic(f"large{i}", configs=[("leader.replication.throttled.replicas", value)]) for i in range(count)]


def large_credential(salt_bytes: int) -> quotas_scram.AlterUserScramCredentialsRequest:
    return quotas_scram.AlterUserScramCredentialsRequest(
        deletions=[],
        upsertions=[
            quotas_scram.ScramCredentialUpsertion(
                name="a", mechanism=1, iterations=4096, salt=bytes(salt_bytes), salted_password=b"p"
            )
        ],
    )


@pytest.mark.parametrize("request_", [create(*large_topics(300)), large_credential(9_000_000)])
def test_records_that_do_not_fit_into_a_batch_are_refused(harness: ControllerHarness, request_: Message) -> None:
    """Apache Kafka's code; its message is empty."""
    end = harness.log.next_offset
    results = results_of(request_, harness.ask(request_))
    assert {result.error_code for result in results} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert "8388608 bytes" in results[0].error_message
    assert harness.log.next_offset == end


def test_a_batch_of_nearly_the_largest_size_is_written(harness: ControllerHarness) -> None:
    results = harness.ask(create(*large_topics(260))).topics
    assert {result.error_code for result in results} == {ErrorCode.NONE}
    assert len(harness.image.topics_by_name) == 260


def test_after_a_failed_flush_no_request_is_answered(harness: ControllerHarness) -> None:
    harness.worker.is_held = True
    answers = [harness.submit(create(topic("a")))]
    harness.worker.let_sync(StorageError("sync", "x", OSError(5, "Input/output error")))
    answers += [harness.submit(create(topic(name))) for name in ("a b", "c")]
    assert not any(answer.is_done for answer in answers)
    assert not any(image.topics_by_id for image, _ in harness.images)


def test_the_first_published_image_contains_the_unfenced_local_broker(tmp_path: Path) -> None:
    """Its delta contains all existing partitions."""
    harness = ControllerHarness(tmp_path).start()
    harness.ask(create(topic("a", 2)))
    harness = harness.restart()
    ((image, changes),) = harness.images
    assert image.brokers[1].is_active
    assert image.brokers[1].endpoint("PLAINTEXT") is not None
    assert changes.partitions == {image.topics_by_name["a"].topic_id: {0, 1}}
    assert changes.features
    for slot in MetadataDelta.__slots__:
        assert getattr(changes, slot) == getattr(MetadataDelta.from_empty(image), slot)


# ---- restarts of the local broker ------------------------------------------------------------------------


def leaders(image: MetadataImage) -> list[tuple[int, int]]:
    """Leader and leader epoch of all partitions."""
    return [(p.leader, p.leader_epoch) for t in image.topics_by_id.values() for p in t.partitions.values()]


def changed_partitions(harness: ControllerHarness, since: int) -> int:
    return sum(isinstance(record, stored_records.PartitionChangeRecord) for record in harness.records(since))


def test_a_clean_restart_does_not_change_partitions(tmp_path: Path) -> None:
    """Single replicas of the only broker keep leader and epoch (decision 0013)."""
    harness = ControllerHarness(tmp_path).start()
    harness.ask(create(topic("a", 3)))
    clean_epoch = harness.broker_epoch
    harness.stop_broker()
    assert harness.image.brokers[1].is_fenced
    end = harness.log.next_offset
    harness = harness.restart(previous_epoch=clean_epoch)
    assert not changed_partitions(harness, end)
    assert leaders(harness.image) == [(1, 0)] * 3
    assert harness.broker_epoch > clean_epoch


def test_an_unclean_restart_starts_new_leader_epochs(tmp_path: Path) -> None:
    """Records that clients have read may be lost."""
    harness = ControllerHarness(tmp_path).start()
    harness.ask(create(topic("a", 3)))
    end = harness.log.next_offset
    harness = harness.restart()
    assert changed_partitions(harness, end) == 3
    assert leaders(harness.image) == [(1, 1)] * 3


def test_leaderless_partitions_of_a_kafka_log_get_leaders(tmp_path: Path) -> None:
    """After Kafka's controlled shutdown the broker is an eligible leader replica, which is elected."""
    kafka_image = ControllerHarness(tmp_path).use_log(METADATA_LOG).open().image
    assert {leader for leader, _ in leaders(kafka_image)} == {NO_LEADER}
    harness = ControllerHarness(tmp_path).use_log(METADATA_LOG)
    (directory,) = kafka_image.brokers[1].directories
    harness.identity = harness.identity._replace(directory_ids={harness.directory: directory})
    harness.start(previous_epoch=kafka_image.brokers[1].epoch)
    assert set(leaders(harness.image)) == {(1, 2)}
    for a_topic in harness.image.topics_by_id.values():
        for state in a_topic.partitions.values():
            assert (state.isr, state.eligible_leaders, state.last_known_leaders) == ((1,), (), ())


def test_the_broker_epoch_is_the_offset_of_its_registration(tmp_path: Path) -> None:
    """The first offset of the registration batch, which starts with partition changes, as in Kafka."""
    harness = ControllerHarness(tmp_path).start()
    harness.ask(create(topic("a", 3)))
    harness = harness.restart()
    (batch,) = [
        b
        for b in harness.batches()
        if b.base_offset > 20 and isinstance(b.messages[-1], stored_records.RegisterBrokerRecord)
    ]
    assert len(batch.messages) == 4
    assert harness.broker_epoch == batch.base_offset == harness.image.brokers[1].epoch


# ---- credentials, quotas, brokers ------------------------------------------------------------------------


def test_scram_keys_are_those_of_rfc_5802(harness: ControllerHarness) -> None:
    """The example of RFC 7677: user "user", password "pencil"."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    wanted = quotas_scram.ScramCredentialUpsertion(
        name="user", mechanism=1, iterations=4096, salt=salt, salted_password=salted
    )
    harness.ask(quotas_scram.AlterUserScramCredentialsRequest(deletions=[], upsertions=[wanted]))
    record = harness.records()[-1]
    assert isinstance(record, stored_records.UserScramCredentialRecord)
    assert base64.b64encode(record.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(record.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    assert record.salt == salt


def test_an_unchanged_quota_writes_no_record(harness: ControllerHarness) -> None:
    """Nor does deleting a missing one; the parts of an entity have a fixed order."""
    rate = "producer_byte_rate"
    entity: dict[str, str | None] = {"user": "a", "client-id": None}

    def ask(*changes: tuple[str, float | None]) -> list[Message]:
        end = len(harness.records())
        entry = altered(entity, *changes)
        harness.ask(quotas_scram.AlterClientQuotasRequest(entries=[entry], validate_only=False))
        return harness.records()[end:]

    parts = [
        stored_records.EntityData(entity_type="client-id", entity_name=None),
        stored_records.EntityData(entity_type="user", entity_name="a"),
    ]
    assert ask((rate, 5.0)) == [stored_records.ClientQuotaRecord(entity=parts, key=rate, value=5.0, remove=False)]
    assert ask((rate, 5.0), ("request_percentage", None)) == []
    assert ask((rate, None)) == [stored_records.ClientQuotaRecord(entity=parts, key=rate, value=0.0, remove=True)]
    assert harness.image.quotas == {}


def test_a_large_config_change_is_split_into_batches(harness: ControllerHarness) -> None:
    """A large request must not stop the controller."""
    wanted = [resource(BROKER, "", *((f"nobody.knows.{i}", SET, "x" * 32_000) for i in range(300)))]
    (response,) = harness.ask(alter(*wanted)).responses
    assert response.error_code == ErrorCode.NONE
    assert len(harness.image.own_broker_config("")) >= 300


def test_the_local_broker_can_be_unregistered(harness: ControllerHarness) -> None:
    response = harness.ask(UnregisterBrokerRequest(broker_id=1))
    assert response.error_code == ErrorCode.NONE
    assert 1 not in harness.image.brokers
