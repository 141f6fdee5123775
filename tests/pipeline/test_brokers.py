"""What a driver tells the brokers, when they cannot hear it yet."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException

from barnabas import Broker
from barnabas.pipeline import brokers as asking
from barnabas.pipeline.brokers import Brokers, Place
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.settings import BrokerSettings


class Moving:
    """A cluster whose group coordinator is on its way: each commit gets the next answer."""

    def __init__(self, *answers: int | None) -> None:
        self._answers = list(answers)

    def alter_consumer_group_offsets(self, requests: list[Any], **_: Any) -> dict[str, Future[Any]]:
        [request] = requests
        code = self._answers.pop(0)
        answer: Future[Any] = Future()
        if code in (KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError._TIMED_OUT):
            answer.set_exception(KafkaException(KafkaError(code)))
        else:
            told = SimpleNamespace(error=None if code is None else KafkaError(code))
            answer.set_result(SimpleNamespace(topic_partitions=[told]))
        return {request.group_id: answer}

    def left(self) -> int:
        return len(self._answers)


def test_a_commit_waits_for_its_coordinator(kafka_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """brokers.py: the first group of a cluster is refused until there is `__consumer_offsets`; other refusals are said."""
    monkeypatch.setattr(asking, "LOOK_EVERY_S", 0.001)
    brokers = Brokers(BrokerSettings(bootstrap=kafka_broker.bootstrap))
    moving = Moving(
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        None,
    )
    monkeypatch.setattr(brokers, "_admin", moving)
    brokers.commit("g", {Place("t", 0): 5})
    assert not moving.left()
    monkeypatch.setattr(brokers, "_admin", Moving(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(JobError, match="The group g could not be set"):
        brokers.commit("g", {Place("t", 0): 5})
    monkeypatch.setattr(asking, "LIMIT_S", -1.0)
    monkeypatch.setattr(brokers, "_admin", Moving(KafkaError.NOT_COORDINATOR))
    with pytest.raises(JobError, match="could not be set: Broker: Not coordinator"):
        brokers.commit("g", {Place("t", 0): 5})


def test_offsets_are_known_after_a_restart_or_a_move() -> None:
    """brokers.py: librdkafka remembers leaders, and their epochs, that are none any more; so it does with Apache Kafka."""
    with Broker() as broker:
        brokers = Brokers(BrokerSettings(bootstrap=broker.bootstrap))
        brokers.create_topic("t", 2, 1, {})
        places = [Place("t", 0), Place("t", 1)]
        assert brokers.ends(places) == dict.fromkeys(places, 0)
        broker.kill()
        broker.start()
        assert brokers.ends(places) == dict.fromkeys(places, 0)


def test_a_topic_that_is_not_there_is_not_waited_for(kafka_broker: Any) -> None:
    """brokers.py rule 1."""
    brokers = Brokers(BrokerSettings(bootstrap=kafka_broker.bootstrap))
    with pytest.raises(JobError, match="There is no topic nowhere at "):
        brokers.ends([Place("nowhere", 0)])
