"""What a broker says when it says no: the codes and sentences of Apache Kafka, asked of any broker."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce_fetch import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import BatchBuilder
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until


@pytest.fixture
def client(kafka_broker):
    with RawClient(kafka_broker.bootstrap) as raw:
        yield raw


def batch(value: bytes = b"value", **fields) -> bytearray:
    """One batch with one record."""
    builder = BatchBuilder(**fields)
    builder.append(RECENT_MS, b"key", value)
    return builder.build()


def produce(client: RawClient, topic: str, records: bytes | bytearray, partition: int = 0, acks: int = -1):
    """Produce one batch to one partition; its answer. Apache Kafka is no leader yet right after CreateTopics."""
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=bytes(records))])
        ],
    )
    for _ in range(1000):
        answer = client.ask(request, 9).responses[0].partition_responses[0]
        if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            break
    return answer


def create(client: RawClient, name: str, partitions: int = 1, replicas: int = 1, **configs: str):
    """Create one topic; its answer."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    return client.ask(CreateTopicsRequest(topics=[topic]), 7).topics[0]


def described(client: RawClient, name: str, *, may_make: bool, version: int = 9):
    """What Metadata says of one topic."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=may_make)
    return client.ask(request, version).topics[0]


# ------------------------------------------------------------ producing
def test_a_batch_with_a_flipped_bit_is_corrupt(client, kafka_topic) -> None:
    """The CRC is checked before anything is written, and the partition goes on."""
    broken = batch()
    broken[-1] ^= 1
    assert produce(client, kafka_topic, broken).error_code == ErrorCode.CORRUPT_MESSAGE
    answer = produce(client, kafka_topic, batch())
    assert (answer.error_code, answer.base_offset) == (0, 0)


def test_a_batch_above_max_message_bytes_is_too_large(client, kafka_topic) -> None:
    """max.message.bytes of the topic counts the whole batch."""
    name = f"{kafka_topic}.small"
    assert create(client, name, max_message_bytes="1000").error_code == 0
    assert produce(client, name, batch(b"x" * 1000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(client, name, batch(b"x" * 900)).error_code == 0


def test_librdkafka_reports_a_record_above_the_brokers_limit(kafka_broker, kafka_topic) -> None:
    """What a user of a client sees."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka_broker.bootstrap, "message.max.bytes": 3_000_000})
    reported = []
    producer.produce(kafka_topic, b"x" * 2_000_000, on_delivery=lambda error, _: reported.append(error.code()))
    producer.flush(30)
    assert reported == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]


def test_an_unknown_topic_and_an_unknown_partition_are_unknown(client, kafka_topic) -> None:
    """Produce does not create topics."""
    assert produce(client, f"{kafka_topic}.nowhere", batch()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client, kafka_topic, batch(), partition=99).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_acks_other_than_minus_one_zero_and_one_are_refused(client, kafka_topic) -> None:
    """acks=2 was once allowed."""
    assert produce(client, kafka_topic, batch(), acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_a_compacted_topic_refuses_a_record_without_key(client, kafka_topic) -> None:
    """The records of a compacted topic are opened for this."""
    name = f"{kafka_topic}.compacted"
    assert create(client, name, cleanup_policy="compact").error_code == 0
    builder = BatchBuilder()
    builder.append(RECENT_MS, None, b"value")
    answer = produce(client, name, builder.build())
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [0]


def test_a_sequence_gap_of_an_idempotent_producer_is_out_of_order_and_a_repeat_is_a_duplicate(
    client, kafka_topic
) -> None:
    """KIP-98: five batches are remembered; the duplicate gets its first offset back."""
    identity = {"producer_id": 987_654, "producer_epoch": 0}
    assert produce(client, kafka_topic, batch(base_sequence=0, **identity)).base_offset == 0
    assert produce(client, kafka_topic, batch(base_sequence=1, **identity)).base_offset == 1
    again = produce(client, kafka_topic, batch(base_sequence=1, **identity))
    assert (again.error_code, again.base_offset) == (0, 1)
    gap = produce(client, kafka_topic, batch(base_sequence=3, **identity))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    old = produce(client, kafka_topic, batch(base_sequence=0, producer_id=987_654, producer_epoch=1))
    assert (old.error_code, old.base_offset) == (0, 2)
    fenced = produce(client, kafka_topic, batch(base_sequence=2, **identity))
    assert fenced.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


# ------------------------------------------------------------ administration
@pytest.mark.parametrize(
    ("partitions", "replicas", "configs", "code", "sentence"),
    [
        (0, 1, {}, ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."),
        (
            1, 2, {}, ErrorCode.INVALID_REPLICATION_FACTOR,
            ("Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because "
            "only 1 broker(s) are registered or some brokers have all their log directories cordoned."),
        ),
        (
            1, 0, {}, ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            1, 1, {"retention_ms": "soon"}, ErrorCode.INVALID_CONFIG,
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        (1, 1, {"no_such": "1"}, ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such"),
    ],
)  # fmt: skip
def test_a_topic_that_cannot_be_is_refused_with_kafkas_sentence(
    client, kafka_topic, partitions: int, replicas: int, configs: dict[str, str], code: ErrorCode, sentence: str
) -> None:
    """CreateTopics: the codes and the sentences."""
    answer = create(client, f"{kafka_topic}.new", partitions, replicas, **configs)
    assert (answer.error_code, answer.error_message) == (code, sentence)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        ("a b", ("Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, "
                "'.', '_' and '-'")),
        ("x" * 250, f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed length 249"),
    ],
    ids=["empty", "dots", "blank", "long"],
)  # fmt: skip
def test_a_name_that_no_topic_can_have_is_refused(client, name: str, sentence: str) -> None:
    """CreateTopics: INVALID_TOPIC_EXCEPTION."""
    answer = create(client, name)
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_TOPIC_EXCEPTION, sentence)


def test_a_topic_that_makes_itself_is_unknown_until_it_is_asked_for_again(client, kafka_topic) -> None:
    """Metadata does not wait for the topic it has made, and makes none that it is not allowed to."""
    name = f"{kafka_topic}.itself"
    for may_make in (False, True):
        first = described(client, name, may_make=may_make)
        assert (first.error_code, first.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
    found = until(lambda: described(client, name, may_make=False).partitions, f"{name} makes itself")
    assert found[0].leader_id >= 0


@pytest.mark.parametrize("may_make", [False, True])
@pytest.mark.parametrize("version", [4, 9, 12])
@pytest.mark.parametrize("name", ["", "..", "a b", "x" * 250], ids=["empty", "dots", "blank", "long"])
def test_a_name_that_no_topic_can_have_is_invalid_and_not_only_unknown(client, name, version, may_make) -> None:
    """Metadata says so whether or not the topic was to make itself: clients give up instead of asking again."""
    answer = described(client, name, may_make=may_make, version=version)
    assert (answer.error_code, answer.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)


def test_a_topic_that_is_there_and_one_that_collides_are_refused(client, kafka_topic) -> None:
    """CreateTopics: names that differ in dot and underscore only collide."""
    answer = create(client, kafka_topic)
    assert answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert answer.error_message == f"Topic '{kafka_topic}' already exists."
    assert create(client, f"{kafka_topic}.a_b").error_code == 0
    collision = create(client, f"{kafka_topic}.a.b")
    assert collision.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "collides with existing topic" in collision.error_message


def test_deleting_what_is_not_there_is_an_error_per_topic(client, kafka_topic) -> None:
    """DeleteTopics by name and by id."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=f"{kafka_topic}.no"), DeleteTopicState(name=None, topic_id=b"x" * 16)],
        timeout_ms=30_000,
    )
    codes = {answer.name: answer.error_code for answer in client.ask(request, 6).responses}
    assert codes == {
        f"{kafka_topic}.no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        None: ErrorCode.UNKNOWN_TOPIC_ID,
    }


def test_partitions_can_only_become_more(client, kafka_topic) -> None:
    """CreatePartitions: the topic has four."""
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=kafka_topic, count=2)], timeout_ms=30_000)
    answer = client.ask(request, 3).results[0]
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.INVALID_PARTITIONS,
        f"The topic {kafka_topic} currently has 4 partition(s); 2 would not be an increase.",
    )


def test_a_bad_value_is_no_setting(client, kafka_topic) -> None:
    """IncrementalAlterConfigs: INVALID_CONFIG with the reason, and nothing is changed."""
    change = AlterableConfig(name="retention.ms", config_operation=0, value="-7")
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=2, resource_name=kafka_topic, configs=[change])]
    )
    answer = client.ask(request, 1).responses[0]
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.INVALID_CONFIG,
        "Invalid value -7 for configuration retention.ms: Value must be at least -1",
    )


def test_the_admin_client_of_librdkafka_sees_the_same_refusals(kafka_broker, kafka_topic) -> None:
    """What a user of a client sees."""
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    future = admin.create_topics([NewTopic(f"{kafka_topic}.lib", 0, 1)])[f"{kafka_topic}.lib"]
    with pytest.raises(confluent_kafka.KafkaException) as refusal:
        future.result(30)
    assert refusal.value.args[0].code() == confluent_kafka.KafkaError.INVALID_PARTITIONS
