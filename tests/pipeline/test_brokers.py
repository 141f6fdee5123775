"""The driver's requests while brokers move or restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from barnabas import Broker
from barnabas.admin import groups
from barnabas.admin.errors import refusal
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import brokers as brokers_module
from barnabas.pipeline.brokers import Brokers, Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.settings import BrokerSettings
from tests.pipeline.topics import create, minutes, send


def test_a_commit_waits_for_a_broker_that_restarts() -> None:
    with Broker() as broker:
        brokers = Brokers(BrokerSettings(bootstrap=broker.bootstrap))
        brokers.create_topic("t", 1, 1, {})
        tp = TopicPartition("t", 0)
        brokers.commit("g", {tp: 0})
        broker.kill()
        with ThreadPoolExecutor(1) as pool:
            commit = pool.submit(brokers.commit, "g", {tp: 5})
            with pytest.raises(FutureTimeout):
                commit.result(1)
            broker.start()
            commit.result(60)
        assert brokers.committed("g", [tp]) == {tp: 5}


def test_a_refused_commit_names_the_reason(kafka_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = create(kafka_broker.bootstrap, "committed", partitions=1)
    with pytest.raises(JobError, match="group g could not be committed: Cannot set offsets of group g at nowhere-0"):
        brokers.commit("g", {TopicPartition("nowhere", 0): 5})

    def deny(*_: Any) -> None:
        raise refusal(30, None, "set offsets of group g", "Read on group g")

    monkeypatch.setattr(groups, "commit_offsets", deny)
    with pytest.raises(JobError, match="denies the job Read on group g"):
        brokers.commit("g", {TopicPartition("committed", 0): 5})


def test_offsets_are_found_after_a_restart() -> None:
    """librdkafka keeps stale leader epochs; the same happens with Apache Kafka."""
    with Broker() as broker:
        brokers = Brokers(BrokerSettings(bootstrap=broker.bootstrap))
        brokers.create_topic("t", 2, 1, {})
        partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
        assert brokers.end_offsets(partitions) == dict.fromkeys(partitions, 0)
        broker.kill()
        broker.start()
        assert brokers.end_offsets(partitions) == dict.fromkeys(partitions, 0)


def test_requests_are_repeated_when_their_broker_dies_before_it_answers() -> None:
    with Broker() as broker:
        brokers = Brokers(BrokerSettings(bootstrap=broker.bootstrap))
        brokers.create_topic("t", 1, 1, {})
        requests: list[Callable[[], Any]] = [
            brokers.cluster_id,
            lambda: brokers.find_topics(["t"])["t"].partitions,
            lambda: brokers.exists("t"),
            lambda: brokers.topic_configs("t")["cleanup.policy"],
            lambda: brokers.leader(TopicPartition("t", 0))[1],
        ]
        expected = [request() for request in requests]
        os.kill(broker.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(len(requests)) as pool:
            answers = [pool.submit(request) for request in requests]
            with pytest.raises(FutureTimeout):
                answers[0].result(1)
            broker.kill()
            broker.start()
            assert [answer.result(60) for answer in answers] == expected


def test_records_are_deleted_when_the_leader_is_known_again(kafka_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers_module, "RETRY_PAUSE_S", 0.001)
    brokers = create(kafka_broker.bootstrap, "no-leader", partitions=1)
    send(kafka_broker.bootstrap, "no-leader", minutes(3, partitions=1))
    tp = TopicPartition("no-leader", 0)
    really = brokers._admin.delete_records
    errors = [KafkaError._NOENT, KafkaError.NOT_LEADER_FOR_PARTITION]

    def lose_leaders(deletions: Any, **options: Any) -> dict[Any, Future[Any]]:
        if not errors:
            return really(deletions, **options)
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(errors.pop())))
        return dict.fromkeys(deletions, answer)

    monkeypatch.setattr(brokers._admin, "delete_records", lose_leaders)
    brokers.delete_records({tp: 2})
    assert brokers.beginning_offsets([tp]) == {tp: 2}


@pytest.mark.parametrize("code", [KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_offsets_are_asked_again_until_a_new_leader_knows_them(
    kafka_broker: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A leader that was just elected has no high watermark yet; one of a new partition may not know it yet."""
    monkeypatch.setattr(brokers_module, "RETRY_PAUSE_S", 0.001)
    brokers = create(kafka_broker.bootstrap, f"new-leader-{code}", partitions=1)
    tp = TopicPartition(f"new-leader-{code}", 0)
    really = brokers._admin.list_offsets
    refused: list[Any] = []

    def refuse_once(specs: Any, **options: Any) -> dict[Any, Future[Any]]:
        if refused:
            return really(specs, **options)
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(code)))
        refused.append(answer)
        return dict.fromkeys(specs, answer)

    monkeypatch.setattr(brokers._admin, "list_offsets", refuse_once)
    assert brokers.end_offsets([tp]) == {tp: 0}


def test_an_empty_topic_name_is_refused(kafka_broker: Any) -> None:
    brokers = Brokers(BrokerSettings(bootstrap=kafka_broker.bootstrap))
    with pytest.raises(JobError, match="The name of a topic is empty"):
        brokers.find_topics([""])


def test_offsets_are_asked_again_after_a_lost_connection(kafka_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's result has no error then, and the offset OFFSET_INVALID."""
    monkeypatch.setattr(brokers_module, "RETRY_PAUSE_S", 0.001)
    brokers = create(kafka_broker.bootstrap, "lost-connection", partitions=1)
    send(kafka_broker.bootstrap, "lost-connection", minutes(3, partitions=1))
    tp = TopicPartition("lost-connection", 0)
    really = brokers._admin.list_offsets
    results = [OFFSET_INVALID, OFFSET_INVALID]

    def lose_connections(specs: Any, **options: Any) -> dict[Any, Future[Any]]:
        if not results:
            return really(specs, **options)
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=results.pop()))
        return dict.fromkeys(specs, answer)

    monkeypatch.setattr(brokers._admin, "list_offsets", lose_connections)
    assert brokers.spans([Topic("lost-connection", "", 1)]) == {tp: Span(0, 3)}
    monkeypatch.setattr(brokers_module, "REQUEST_TIMEOUT_S", -1.0)
    results.append(OFFSET_INVALID)
    with pytest.raises(
        JobError, match=r"does not answer \(Broker: Broker disconnected before response received\): run the job again"
    ):
        brokers.end_offsets([tp])


def test_a_broker_without_an_answer_has_not_refused(kafka_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(BrokerSettings(bootstrap=kafka_broker.bootstrap))

    def answer_with(code: int) -> None:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(code)))
        monkeypatch.setattr(brokers, "_admin", SimpleNamespace(describe_cluster=lambda **_: answer))

    answer_with(KafkaError._TIMED_OUT)
    with pytest.raises(JobError, match=r"does not answer \(Local: Timed out\): run the job again when it is available"):
        brokers.cluster_id()
    answer_with(KafkaError.INVALID_REQUEST)
    with pytest.raises(JobError, match="refused: Broker: Invalid request"):
        brokers.cluster_id()


def test_records_above_deleted_ones_are_consumed(kafka_broker: Any) -> None:
    """A start below the log start is no reason to skip what is left."""
    brokers = create(kafka_broker.bootstrap, "trimmed", partitions=1)
    send(kafka_broker.bootstrap, "trimmed", minutes(10, partitions=1))
    tp = TopicPartition("trimmed", 0)
    brokers.delete_records({tp: 4})
    assert [message.offset() for message in brokers.consume({tp: Span(0, 10)})] == [*range(4, 10)]


def test_a_missing_topic_is_an_error_at_once(kafka_broker: Any) -> None:
    brokers = Brokers(BrokerSettings(bootstrap=kafka_broker.bootstrap))
    with pytest.raises(JobError, match="There is no topic nowhere at "):
        brokers.end_offsets([TopicPartition("nowhere", 0)])


def test_settings_that_only_java_knows_do_not_reach_librdkafka(kafka_broker: Any) -> None:
    def connect(setting: str) -> Brokers:
        return Brokers(BrokerSettings(bootstrap=kafka_broker.bootstrap, kafka=(setting, "client.id=job")))

    brokers = connect("default.api.timeout.ms=60000")
    assert brokers.cluster_id()
    assert brokers.client_settings["client.id"] == "job"
    assert "default.api.timeout.ms" not in brokers.client_settings
    with pytest.raises(JobError, match=r"A setting of the Kafka clients cannot be used: .*socket\.timeout\.ms"):
        connect("socket.timeout.ms=soon")
