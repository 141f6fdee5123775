"""The offsets of a round, and when a job must stop."""

from __future__ import annotations

import pytest

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.rounds import ContinuousSettings, RoundSettings, StartPosition, plan_round, start_positions

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
TOPIC = Topic("a", "id-1", 2)
TOPICS = {A0: TOPIC, A1: TOPIC}


def positions(
    archived: dict[TopicPartition, int], *, ids: str = "id-1", strict: bool = True
) -> dict[TopicPartition, StartPosition]:
    settings = RoundSettings(fail_on_data_loss=strict)
    return start_positions(
        settings, TOPICS, archived, {"a": ids} if archived else {}, {A0: 10, A1: 0}, {A0: 50, A1: 50}
    )


def test_a_round_reads_a_share_of_each_partition() -> None:
    waiting = {A0: StartPosition(100), A1: StartPosition(0), TopicPartition("a", 2): StartPosition(7)}
    ends = {A0: 1100, A1: 1, TopicPartition("a", 2): 7}
    assert plan_round(waiting, ends, 100) == {A0: Span(100, 199), A1: Span(0, 1)}
    assert plan_round(waiting, ends, 10_000) == {A0: Span(100, 1100), A1: Span(0, 1)}
    assert plan_round({A0: StartPosition(3)}, {A0: 3}, 10) == {}


def test_a_round_starts_at_the_manifests_end_or_the_log_start() -> None:
    assert positions({}) == {A0: StartPosition(10), A1: StartPosition(0)}
    assert positions({A0: 20}) == {A0: StartPosition(20), A1: StartPosition(0)}


def test_lost_records_stop_the_job_unless_data_loss_is_allowed() -> None:
    with pytest.raises(JobError, match="broker deleted the offsets 4 to 9 of a-0"):
        positions({A0: 4})
    assert positions({A0: 4}, strict=False)[A0] == StartPosition(10, lost_before=4)


@pytest.mark.parametrize("interval", [-1.0, float("nan")])
def test_an_interval_that_is_no_time_is_refused(interval: float) -> None:
    with pytest.raises(JobError, match="--interval takes 0 seconds or more"):
        ContinuousSettings(interval=interval)


def test_another_topic_of_the_same_name_stops_the_job() -> None:
    with pytest.raises(JobError, match="deleted and created again"):
        positions({A0: 20}, ids="id-0", strict=False)
    with pytest.raises(JobError, match="ends at 50, but was read up to 51"):
        positions({A0: 51}, strict=False)
