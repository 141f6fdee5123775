"""Rounds whose topic changes after they were planned: deleted records, and another topic of the same name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import AggregateSettings, ArchiveSettings, TableSettings, aggregate, archive, table
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.errors import JobError, describe_failure
from barnabas.pipeline.jobs import table as table_module
from barnabas.pipeline.jobs.aggregate import aggregate as aggregate_module
from barnabas.pipeline.jobs.archive import archive as archive_module
from barnabas.pipeline.settings import BrokerSettings
from tests.pipeline.topics import create, minutes, send

pytestmark = pytest.mark.long

Run = Callable[..., Any]


@pytest.fixture(params=["archive", "table", "aggregate"])
def job(request: pytest.FixtureRequest, spark: Any, kafka_broker: Any, topic: str, tmp_path: Path) -> tuple[Any, Run]:
    """The module of a job, and a function that runs it."""
    common = {"bootstrap": kafka_broker.bootstrap, "into": tmp_path / "out"}

    def run(**more: Any) -> Any:
        settings = {**common, **more}
        if request.param == "archive":
            return archive(spark, ArchiveSettings(topic=(topic,), **settings))
        if request.param == "table":
            return table(spark, TableSettings(topic=topic, **settings))
        return aggregate(spark, AggregateSettings(topic=topic, window="1 hour", **settings))

    return {"archive": archive_module, "table": table_module, "aggregate": aggregate_module}[request.param], run


def after_the_plan(monkeypatch: pytest.MonkeyPatch, module: Any, change: Callable[[], None]) -> None:
    """Calls `change` once, when a round has been planned."""
    really = module.plan_round
    changes = [change]

    def plan(*arguments: Any) -> Any:
        planned = really(*arguments)
        if planned and changes:
            changes.pop()()
        return planned

    monkeypatch.setattr(module, "plan_round", plan)


def test_a_round_continues_behind_records_that_are_deleted_while_it_reads(
    kafka_broker: Any, topic: str, job: tuple[Any, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, run = job
    brokers = Brokers(BrokerSettings(bootstrap=kafka_broker.bootstrap))
    sent = minutes(40)
    send(kafka_broker.bootstrap, topic, sent[:20])
    assert run().records == 20

    def delete(before: int) -> Callable[[], None]:
        return lambda: brokers.delete_records({TopicPartition(topic, 0): before})

    send(kafka_broker.bootstrap, topic, sent[20:])
    after_the_plan(monkeypatch, module, delete(12))
    with pytest.raises((PySparkException, Py4JJavaError)) as failure:
        run()
    assert describe_failure(failure.value) == "The broker deleted records while Spark read them: run the job again."
    after_the_plan(monkeypatch, module, delete(14))
    report = run(fail_on_data_loss=False)
    assert report.records == 20 - 4
    assert getattr(report, "lost", 4) == 4
    assert run().records == 0


def test_records_of_a_topic_that_is_created_again_while_it_is_read_are_not_committed(
    kafka_broker: Any, topic: str, job: tuple[Any, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, run = job
    brokers = Brokers(BrokerSettings(bootstrap=kafka_broker.bootstrap))
    send(kafka_broker.bootstrap, topic, minutes(20))
    assert run().records == 20

    def replace_topic() -> None:
        brokers.delete_topic(topic)
        create(kafka_broker.bootstrap, topic)
        send(kafka_broker.bootstrap, topic, minutes(60))

    send(kafka_broker.bootstrap, topic, minutes(20))
    after_the_plan(monkeypatch, module, replace_topic)
    with pytest.raises(JobError, match=f"The topic {topic} was deleted and created again while it was read"):
        run()
    with pytest.raises(JobError, match=f"The topic {topic} was deleted and created again since it was read"):
        run()
