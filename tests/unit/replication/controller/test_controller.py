"""Guards replication/controller/controller.py, topics.py, settings.py, assignments.py and brokers.py, on one node."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import stored_records
from protocol.messages.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.cluster import UnregisterBrokerRequest
from protocol.messages.quorum import AllocateProducerIdsRequest
from protocol.messages.quotas_scram import (
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from protocol.primitives import uuid_from_text
from protocol.schema import Message
from replication.controller.brokers.registration import Registration, register
from replication.cooperative_tasks import STEPS_PER_SLICE
from replication.metadata.image import NO_LEADER, MetadataDelta, MetadataImage, ResourceType
from replication.metadata.metadata_records import read_batches
from storage.io.disk import StorageError
from tests.support.admin_cases import CASES, normalised, topic
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
from tests.support.controller_harness import WALL_MS, ControllerWorld, partition_changes
from tests.unit.replication.kafka_bytes import METADATA_LOG

ALL = CASES | SETTINGS_CASES | CLUSTER_CASES


@pytest.fixture
def world(tmp_path: Path) -> ControllerWorld:
    return ControllerWorld(tmp_path).start()


def create(*topics: Any, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=validate_only)


def delete(*names: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=10_000)


def alter(*resources: Any, validate_only: bool = False) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)


# ---- answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ALL)
def test_answers_are_kafka_s_word_for_word(world: ControllerWorld, api: str) -> None:
    """Checks, order, codes and sentences (tests/conformance/test_admin_answers.py asks Kafka the same)."""
    made = world.ask(
        create(topic("t1", 3), topic("t2", 2, configs=[("cleanup.policy", "compact,delete")]), topic("c.c"))
    )
    assert [code for _, code, _ in normalised(made)] == [0, 0, 0]
    published = world.image
    for case in ALL[api]:
        answer = normalised(world.ask_as_client(case.request))
        expected = case.answer if case.ours is None else case.ours
        assert answer == expected, f"{case.request}"
    assert world.image is published, "none of them changes anything"


def test_a_new_topic_s_answer_tells_its_shape_and_settings(world: ControllerWorld) -> None:
    """Version 5 and up: counts, settings in force, and where each came from."""
    world.ask(alter(resource(BROKER, "1", ("log.retention.ms", SET, "600000"))))
    world.settings["log.segment.bytes"] = "2097152"
    world.settings["log.retention.hours"] = "1"
    (result,) = world.ask(create(topic("a", 3, configs=[("flush.messages", "1")]))).topics
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert result.topic_id == world.image.topics_by_name["a"].topic_id
    assert result.topic_config_error_code == ErrorCode.NONE
    found = {config.name: (config.value, config.config_source) for config in result.configs}
    assert found["flush.messages"] == ("1", 1)
    assert found["retention.ms"] == ("600000", 2)
    assert found["min.insync.replicas"] == ("1", 3)
    assert found["segment.bytes"] == ("2097152", 4)
    assert found["cleanup.policy"] == ("delete", 5)
    assert len(found) == 33
    assert "internal.segment.bytes" not in found
    (result,) = world.ask(create(topic("b", configs=[("internal.segment.bytes", "100")]))).topics
    assert len(result.configs) == 34


def test_settings_in_hours_are_told_in_milliseconds(world: ControllerWorld) -> None:
    """The broker's synonym counts in hours, the topic's setting in milliseconds."""
    world.settings["log.retention.hours"] = "2"
    (result,) = world.ask(create(topic("a"))).topics
    (retention,) = [config for config in result.configs if config.name == "retention.ms"]
    assert (retention.value, retention.config_source) == ("7200000", 4)


def test_validate_only_changes_nothing(world: ControllerWorld) -> None:
    """It answers as if, and writes no record."""
    end = world.log.next_offset
    world.ask(create(topic("a"), validate_only=True))
    assert world.log.next_offset == end
    world.ask(create(topic("a")))
    end = world.log.next_offset
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="a", count=3)], timeout_ms=10_000, validate_only=True
    )
    world.ask(grow)
    world.ask(alter(resource(TOPIC, "a", ("retention.ms", SET, "5")), validate_only=True))
    assert world.log.next_offset == end


def test_what_is_not_named_is_deleted_when_all_settings_are_replaced(world: ControllerWorld) -> None:
    """AlterConfigs: named ones are set, others go, and what stays as it is writes nothing."""
    world.ask(create(topic("a", configs=[("retention.ms", "5"), ("segment.ms", "6"), ("flush.ms", "7")])))
    end = len(world.records())
    wanted = replaced(TOPIC, "a", ("segment.ms", "6"), ("flush.ms", "8"))
    world.ask(AlterConfigsRequest(resources=[wanted], validate_only=False))
    assert world.image.topic_config("a") == {"segment.ms": "6", "flush.ms": "8"}
    assert [(r.name, r.value) for r in world.records()[end:]] == [("flush.ms", "8"), ("retention.ms", None)]


# ---- records ---------------------------------------------------------------------------------------------


def kafkas(first: int, last: int) -> list[Message]:
    """Data records of Kafka's log between two offsets, but for the pulse of its idle leader."""
    return [
        message
        for batch in read_batches(METADATA_LOG)
        if first <= batch.base_offset <= last and not batch.is_control
        for message in batch.messages
        if not isinstance(message, stored_records.NoOpRecord)
    ]


def test_the_same_requests_leave_the_same_records_as_in_kafka(tmp_path: Path) -> None:
    """Every data record of a real log, made again with the same ids: types, fields, order, batches."""
    theirs = kafkas(0, 1000)
    registrations = [r for r in theirs if isinstance(r, stored_records.RegisterBrokerRecord)]
    world = ControllerWorld(tmp_path)
    directory_id = registrations[0].log_dirs[0]
    world.identity = world.identity._replace(directory_ids={world.directory: directory_id})
    world.incarnations.append(registrations[0].incarnation_id)
    world.topic_ids.extend(r.topic_id for r in theirs if isinstance(r, stored_records.TopicRecord))
    world.start()
    world.ask(create(topic("t1", 3, configs=[("cleanup.policy", "compact"), ("retention.ms", "1000")])))
    configs = [("cleanup.policy", "compact,delete"), ("min.insync.replicas", "1"), ("retention.ms", "1")]
    world.ask(create(topic("t2", 2, configs=configs), topic("t3")))
    changes = [("cleanup.policy", SUBTRACT, "compact"), ("retention.ms", SET, "5")]
    world.ask(alter(resource(TOPIC, "t2", *changes)))
    world.ask(alter(resource(BROKER, "1", ("log.retention.ms", SET, "600000"))))
    world.ask(alter(resource(TOPIC, "t2", ("retention.ms", DELETE_SETTING, None))))
    grow = [CreatePartitionsTopic(name="t2", count=4)]
    world.ask(CreatePartitionsRequest(topics=grow, timeout_ms=10_000))
    world.ask(delete("t3"))
    world.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=world.broker_epoch))
    ours = world.records()
    ended = next(i for i, r in enumerate(theirs) if isinstance(r, stored_records.ProducerIdsRecord))
    assert [_comparable(record) for record in ours] == [_comparable(record) for record in theirs[: ended + 1]]


def _comparable(record: Message) -> str:
    """A record without what differs from start to start: an incarnation of the controller, the features' order."""
    if isinstance(record, stored_records.RegisterBrokerRecord | stored_records.RegisterControllerRecord):
        record.features.sort(key=lambda feature: feature.name)
    if isinstance(record, stored_records.RegisterControllerRecord):
        record.incarnation_id = b""
    return repr(record)


def test_a_topic_made_anew_has_another_id_and_old_settings_are_gone(world: ControllerWorld) -> None:
    """A client that knows the old id must learn that its topic is gone."""
    (first,) = world.ask(create(topic("a", configs=[("retention.ms", "5")]))).topics
    world.ask(delete("a"))
    assert "a" not in world.image.topics_by_name
    (second,) = world.ask(create(topic("a"))).topics
    assert first.topic_id != second.topic_id
    assert world.image.topic_config("a") == {}


def test_a_topic_is_deleted_by_its_id_too(world: ControllerWorld) -> None:
    """Version 6; its name is told."""
    (made,) = world.ask(create(topic("a"))).topics
    request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=made.topic_id)], timeout_ms=0)
    (gone,) = world.ask(request).responses
    assert (gone.name, gone.topic_id, gone.error_code) == ("a", made.topic_id, 0)
    assert not world.image.topics_by_id


def test_a_topic_named_and_given_by_id_goes_once(world: ControllerWorld) -> None:
    """The second mention is the mistake."""
    (made,) = world.ask(create(topic("a"))).topics
    states = [DeleteTopicState(name="a"), DeleteTopicState(topic_id=made.topic_id)]
    answer = world.ask(DeleteTopicsRequest(topics=states, timeout_ms=0)).responses
    assert [r.error_code for r in answer] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert answer[1].error_message == "The provided topic name maps to an ID that was already supplied."


def test_lists_are_appended_to_what_is_in_force(world: ControllerWorld) -> None:
    """APPEND and SUBTRACT start from the topic's value, else from the default; nothing is listed twice."""
    world.ask(create(topic("a")))
    for operation, value, expected in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
    ):
        world.ask(alter(resource(TOPIC, "a", ("cleanup.policy", operation, value))))
        assert world.image.topic_config("a") == {"cleanup.policy": expected}


def test_a_setting_that_is_so_already_leaves_no_record(world: ControllerWorld) -> None:
    """Of a topic; a broker's is written again, since that is how Kafka's brokers are told to look anew."""
    world.ask(create(topic("a", configs=[("retention.ms", "5")])))
    end = world.log.next_offset
    world.ask(alter(resource(TOPIC, "a", ("retention.ms", SET, "5"), ("nope", DELETE_SETTING, None))))
    assert world.log.next_offset == end
    for _ in range(2):
        world.ask(alter(resource(BROKER, "1", ("log.retention.ms", SET, "5"))))
    assert world.log.next_offset == end + 2


def test_a_value_grown_too_long_is_refused(world: ControllerWorld) -> None:
    """Only APPEND can do that: a string on the wire has the same limit."""
    world.ask(alter(resource(BROKER, "", ("log.cleanup.policy", SET, "delete"))))
    world.ask(create(topic("a")))
    value = ",".join(f"{i}:1" for i in range(5000))
    name = "leader.replication.throttled.replicas"
    world.ask(alter(resource(TOPIC, "a", (name, SET, value))))
    more = ",".join(f"{i}:2" for i in range(5000))
    (answer,) = world.ask(alter(resource(TOPIC, "a", (name, APPEND, more)))).responses
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "exceeds the maximum value size of 32767 bytes" in answer.error_message


def test_producer_ids_come_in_blocks_that_never_overlap(tmp_path: Path) -> None:
    """Also over a restart: what was handed out stays so."""
    starts = []
    for _ in range(2):
        world = ControllerWorld(tmp_path).start()
        for _ in range(2):
            epoch = world.broker_epoch
            block = world.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
            assert block.error_code == ErrorCode.NONE
            assert block.producer_id_len == 1000
            starts.append(block.producer_id_start)
        world.log.close()
    assert starts == [0, 1000, 2000, 3000]


def test_producer_ids_go_to_the_registered_broker_only(world: ControllerWorld) -> None:
    """An older process of the broker must not draw ids."""
    epoch = world.broker_epoch
    stale = world.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch - 1))
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
    unknown = world.ask(AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch))
    assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert world.image.next_producer_id == 0


# ---- commit, publish, answer -----------------------------------------------------------------------------


def test_the_answer_comes_after_the_image_and_the_image_after_the_sync(tmp_path: Path) -> None:
    """Rule 2: who gets the answer finds the partitions ready."""
    world = ControllerWorld(tmp_path).start()
    order: list[str] = []

    def follow(image: MetadataImage, _: MetadataDelta) -> Iterator[None]:
        order.append(f"image {sorted(image.topics_by_name)}")
        yield

    world.publisher.on_image = follow
    world.worker.is_held = True
    for name in "ab":
        world.controller.submit(create(topic(name)), wall_ms=WALL_MS, reply=lambda r: order.append(r.topics[0].name))
    assert order == []
    assert world.image.topics_by_name == {}
    world.worker.let_through()
    assert order == ["image ['a']", "a"]
    world.worker.let_through()
    assert order == ["image ['a']", "a", "image ['a', 'b']", "b"]


def test_large_decisions_are_encoded_and_followed_in_turns(tmp_path: Path) -> None:
    """Rule 2: nobody sees a part of an image, or has an answer before its partitions follow; the order stays."""
    world = ControllerWorld(tmp_path).start()
    turns: deque[Callable[[], None]] = deque()
    world.publisher.call_soon = world.log.call_soon = turns.append
    order: list[str] = []
    count = 2 * STEPS_PER_SLICE + 1

    def follow(image: MetadataImage, changes: MetadataDelta) -> Iterator[None]:
        for indexes in changes.partitions.values():
            for _ in indexes:
                assert world.image is not image, "not published yet"
                yield
        order.append(f"image {sorted(image.topics_by_name)}")

    def submit(name: str, partitions: int) -> None:
        request = create(topic(name, partitions))
        world.controller.submit(
            request, wall_ms=WALL_MS, reply=lambda r: order.append(ErrorCode(r.topics[0].error_code).name)
        )

    world.publisher.on_image = follow
    submit("large", count)
    submit("small", 1)
    submit("large", 1)
    assert order == []
    assert world.batches()[-1].last_offset < world.log.next_offset - count, "encoded in later turns"
    while turns and not order:
        assert world.image.topics_by_name == {}
        turns.popleft()()
    while turns:
        turns.popleft()()
    assert order == ["image ['large']", "NONE", "image ['large', 'small']", "NONE", "TOPIC_ALREADY_EXISTS"]
    assert [len(batch.messages) for batch in world.batches()[-2:]] == [count + 1, 2]
    assert len(world.image.topics_by_name["large"].partitions) == count


def test_a_refusal_waits_for_what_it_refers_to(tmp_path: Path) -> None:
    """Rule 2: "already exists" is true only when the topic is committed."""
    world = ControllerWorld(tmp_path).start()
    answers: list[tuple[str, int]] = []

    def note(response: Any) -> None:
        answers.append((response.topics[0].name, response.topics[0].error_code))

    world.worker.is_held = True
    for _ in range(2):
        world.controller.submit(create(topic("a")), wall_ms=WALL_MS, reply=note)
    assert answers == []
    world.worker.let_through()
    assert answers == [("a", ErrorCode.NONE), ("a", ErrorCode.TOPIC_ALREADY_EXISTS)]


def test_a_decision_builds_on_those_that_are_not_committed_yet(tmp_path: Path) -> None:
    """Rule 1: settings of a topic that is still on its way."""
    world = ControllerWorld(tmp_path).start()
    world.worker.is_held = True
    answers: list[Any] = []
    world.controller.submit(create(topic("a")), wall_ms=WALL_MS, reply=answers.append)
    change = alter(resource(TOPIC, "a", ("retention.ms", SET, "5")))
    world.controller.submit(change, wall_ms=WALL_MS, reply=answers.append)
    while world.worker.syncs:
        world.worker.let_through()
    assert answers[1].responses[0].error_code == ErrorCode.NONE
    assert world.image.topic_config("a") == {"retention.ms": "5"}


def test_after_a_failed_sync_nobody_is_answered(tmp_path: Path) -> None:
    """Rule 4: nothing acknowledged may be lost, so nothing is acknowledged."""
    world = ControllerWorld(tmp_path).start()
    world.worker.is_held = True
    answers: list[Any] = []
    world.controller.submit(create(topic("a")), wall_ms=WALL_MS, reply=answers.append)
    world.worker.let_through(StorageError("sync", "x", OSError(5, "Input/output error")))
    world.controller.submit(create(topic("a b")), wall_ms=WALL_MS, reply=answers.append)
    world.controller.submit(create(topic("c")), wall_ms=WALL_MS, reply=answers.append)
    assert answers == []
    assert not any(image.topics_by_id for image, _ in world.images)


def test_the_first_image_has_this_broker_active_and_names_everything(tmp_path: Path) -> None:
    """Rule 3: listeners start from it, the partitions of earlier starts included."""
    world = ControllerWorld(tmp_path).start()
    world.ask(create(topic("a", 2)))
    world.log.close()
    world = ControllerWorld(tmp_path).start()
    ((image, changes),) = world.images
    assert image.brokers[1].is_active
    assert image.brokers[1].endpoint("PLAINTEXT") is not None
    assert changes.partitions == {image.topics_by_name["a"].topic_id: {0, 1}}
    assert changes.features
    for slot in MetadataDelta.__slots__:
        assert getattr(changes, slot) == getattr(MetadataDelta.from_empty(image), slot)


# ---- starts and ends of this broker ----------------------------------------------------------------------


def epochs(world: ControllerWorld) -> list[tuple[int, int]]:
    return [(p.leader, p.leader_epoch) for t in world.image.topics_by_id.values() for p in t.partitions.values()]


def test_a_clean_restart_leaves_partitions_alone(tmp_path: Path) -> None:
    """A broker that held them alone and ended in peace leads on: no record per partition, no new epoch."""
    world = ControllerWorld(tmp_path).start()
    world.ask(create(topic("a", 3)))
    clean_epoch = world.broker_epoch
    world.stop_broker()
    assert world.image.brokers[1].is_fenced
    end = world.log.next_offset
    world.log.close()
    world = ControllerWorld(tmp_path).start(previous_epoch=clean_epoch)
    assert partition_changes(world.records(since=end)) == []
    assert epochs(world) == [(1, 0)] * 3
    assert world.broker_epoch > clean_epoch


def test_an_unclean_restart_begins_new_leader_epochs(tmp_path: Path) -> None:
    """Records may be gone that a client has read: its epoch must tell it."""
    world = ControllerWorld(tmp_path).start()
    world.ask(create(topic("a", 3)))
    end = world.log.next_offset
    world.log.close()
    world = ControllerWorld(tmp_path).start()
    assert len(partition_changes(world.records(since=end))) == 3
    assert epochs(world) == [(1, 1)] * 3


def test_partitions_that_kafka_left_without_leader_are_led_again(tmp_path: Path) -> None:
    """After Kafka's controlled shutdown leaders are -1 and this broker an eligible one: it is elected, as in Kafka."""
    left = ControllerWorld(tmp_path).adopt(METADATA_LOG).open().image
    assert {leader for leader, _ in _leaders(left)} == {NO_LEADER}
    world = ControllerWorld(tmp_path).adopt(METADATA_LOG)
    (directory,) = left.brokers[1].directories
    world.identity = world.identity._replace(directory_ids={world.directory: directory})
    world.start(previous_epoch=left.brokers[1].epoch)
    assert set(epochs(world)) == {(1, 2)}
    for a_topic in world.image.topics_by_id.values():
        for state in a_topic.partitions.values():
            assert (state.isr, state.eligible_leaders, state.last_known_leaders) == ((1,), (), ())


def _leaders(image: Any) -> list[tuple[int, int]]:
    return [(p.leader, p.leader_epoch) for t in image.topics_by_id.values() for p in t.partitions.values()]


def test_the_broker_epoch_is_the_offset_of_its_registration(tmp_path: Path) -> None:
    """Kafka's: the first offset of the batch that registers it, partition changes included."""
    world = ControllerWorld(tmp_path).start()
    world.ask(create(topic("a", 3)))
    world.log.close()
    world = ControllerWorld(tmp_path).start()
    (batch,) = [
        b
        for b in world.batches()
        if b.base_offset > 20 and isinstance(b.messages[-1], stored_records.RegisterBrokerRecord)
    ]
    assert len(batch.messages) == 4
    assert world.broker_epoch == batch.base_offset == world.image.brokers[1].epoch


UNSUPPORTED = (
    "Unable to register because the broker does not support finalized version {} of {}. "
    "The broker wants a version between {} and {}, inclusive."
)


def registration(**changes: Any) -> Registration:
    base = Registration(2, "AAAAAAAAAAAAAAAAAAAAAQ", b"I" * 16, (), (uuid_from_text("ncNHL0kMRKuhxs6LVjsQww"),))
    return base._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        (
            {"cluster_id": "x"},
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            "Expected cluster ID AAAAAAAAAAAAAAAAAAAAAQ, but got cluster ID x",
        ),
        ({"directories": ()}, ErrorCode.INVALID_REGISTRATION, "No directories specified in request"),
        ({"directories": (bytes(16),)}, ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request"),
        ({"directories": (b"D" * 16,) * 2}, ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request"),
        (
            {"features": {"metadata.version": (7, 29)}},
            ErrorCode.UNSUPPORTED_VERSION,
            UNSUPPORTED.format(30, "metadata.version", 7, 29),
        ),
        (
            {"features": {"metadata.version": (7, 30)}},
            ErrorCode.UNSUPPORTED_VERSION,
            UNSUPPORTED.format(1, "eligible.leader.replicas.version", 0, 0),
        ),
    ],
)
def test_a_broker_that_does_not_fit_is_refused(
    world: ControllerWorld, changes: dict[str, Any], code: ErrorCode, sentence: str
) -> None:
    """Checks and sentences of Kafka's ClusterControlManager."""
    with pytest.raises(KafkaError) as refusal:
        register(world.image, world.context(), registration(**changes), next_offset=100)
    assert (refusal.value.code, refusal.value.message) == (code, sentence)


def test_a_directory_of_another_broker_is_refused(world: ControllerWorld) -> None:
    """Two brokers on one directory would be two on its partitions."""
    (directory,) = world.image.brokers[1].directories
    with pytest.raises(KafkaError, match="Broker 1 is already registered with directory"):
        register(world.image, world.context(), registration(directories=(directory,)), next_offset=100)


def test_the_cluster_s_default_settings_reach_every_broker(world: ControllerWorld) -> None:
    """min.insync.replicas becomes a setting of the cluster when it begins, as eligible leaders need it."""
    assert world.image.configs[ResourceType.BROKER, ""] == {"min.insync.replicas": "1"}


# ---- users and brokers -----------------------------------------------------------------------------------


def test_a_password_is_kept_as_rfc_5802_says(world: ControllerWorld) -> None:
    """The example of RFC 7677: user "user", password "pencil"."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    wanted = ScramCredentialUpsertion(name="user", mechanism=1, iterations=4096, salt=salt, salted_password=salted)
    world.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[wanted]))
    record = world.records()[-1]
    assert isinstance(record, stored_records.UserScramCredentialRecord)
    assert base64.b64encode(record.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(record.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    assert record.salt == salt


def test_a_quota_that_is_so_already_is_not_written_again(world: ControllerWorld) -> None:
    """Nor is one taken back that was never given; the parts of an entity stand in one order."""
    rate = "producer_byte_rate"
    entity: dict[str, str | None] = {"user": "a", "client-id": None}

    def ask(*changes: tuple[str, float | None]) -> list[Message]:
        end = len(world.records())
        entry = altered(entity, *changes)
        world.ask(AlterClientQuotasRequest(entries=[entry], validate_only=False))
        return world.records()[end:]

    parts = [
        stored_records.EntityData(entity_type="client-id", entity_name=None),
        stored_records.EntityData(entity_type="user", entity_name="a"),
    ]
    assert ask((rate, 5.0)) == [stored_records.ClientQuotaRecord(entity=parts, key=rate, value=5.0, remove=False)]
    assert ask((rate, 5.0), ("request_percentage", None)) == []
    assert ask((rate, None)) == [stored_records.ClientQuotaRecord(entity=parts, key=rate, value=0.0, remove=True)]
    assert world.image.opaque_records == {}


def test_more_changes_than_one_batch_takes_are_written_in_several(world: ControllerWorld) -> None:
    """Who may alter the cluster cannot stop its controller with a large request."""
    wanted = [resource(BROKER, "", *((f"nobody.knows.{i}", SET, "x" * 32_000) for i in range(300)))]
    (answer,) = world.ask(alter(*wanted)).responses
    assert answer.error_code == ErrorCode.NONE
    assert len(world.image.broker_config(1)) >= 300


def test_a_node_does_not_give_up_its_own_broker(world: ControllerWorld) -> None:
    """Kafka does, and its broker registers again; ours is of one process with its controller."""
    answer = world.ask(UnregisterBrokerRequest(broker_id=1))
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Broker 1 is this node's own and runs.",
    )
    assert 1 in world.image.brokers
