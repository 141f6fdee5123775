"""ISR changes (broker/peers/alter_partition_manager.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from broker.peers.alter_partition_manager import AlterPartitionManager
from protocol.errors import ErrorCode
from protocol.messages import common, quorum
from replication.completion import Completion
from replication.timer_queue import TimerQueue

LATER_MS = 1000


class SlowChannel:
    """Records requests."""

    def __init__(self) -> None:
        self.requested: list[tuple[quorum.AlterPartitionRequest, Completion[quorum.AlterPartitionResponse]]] = []

    def submit(self, request: Any) -> Completion[quorum.AlterPartitionResponse]:
        self.requested.append((request, Completion()))
        return self.requested[-1][1]


class Leader(SimpleNamespace):
    """The attributes of a partition that the requests use."""

    __hash__: ClassVar[Any] = object.__hash__

    def move_high_watermark(self) -> None:
        self.moved += 1


def leader(index: int = 4) -> Any:
    followers = {2: SimpleNamespace(broker_epoch=22), 3: SimpleNamespace(broker_epoch=-1)}
    return Leader(
        topic="t", index=index, is_leader=True, topic_id=b"T" * 16, leader_epoch=5, partition_epoch=7, followers=followers,
        pending_isr=(1, 2, 3), moved=0,
    )  # fmt: skip


@pytest.fixture
def controller() -> SlowChannel:
    return SlowChannel()


@pytest.fixture
def timers() -> TimerQueue:
    return TimerQueue()


@pytest.fixture
def requests(controller: SlowChannel, timers: TimerQueue) -> AlterPartitionManager:
    clock: Any = SimpleNamespace(wall_ms=lambda: 0, mono_ms=lambda: 0)
    channel: Any = controller
    lifecycle: Any = SimpleNamespace(epoch=11)
    return AlterPartitionManager(channel, lifecycle, 1, timers, clock)


@pytest.fixture
def partition(requests: AlterPartitionManager) -> Any:
    proposing = leader()
    requests.submit(proposing, (1, 2, 3))
    return proposing


def answer(code: ErrorCode, top: ErrorCode = ErrorCode.NONE) -> quorum.AlterPartitionResponse:
    if top:
        return quorum.AlterPartitionResponse(error_code=top)
    partitions = [quorum.AlterPartitionResponsePartition(partition_index=4, error_code=code)]
    topics = [common.TopicById(topic_id=b"T" * 16, partitions=partitions)]
    return quorum.AlterPartitionResponse(error_code=ErrorCode.NONE, topics=topics)


def test_a_proposal_contains_all_epochs(controller: SlowChannel, partition: Any) -> None:
    ((request, _),) = controller.requested
    assert (request.broker_id, request.broker_epoch) == (1, 11)
    (wanted,) = request.topics[0].partitions
    assert (wanted.partition_index, wanted.leader_epoch, wanted.partition_epoch) == (4, 5, 7)
    assert [(m.broker_id, m.broker_epoch) for m in wanted.new_isr_with_epochs] == [(1, 11), (2, 22), (3, -1)]
    assert wanted.leader_recovery_state == 0
    assert partition.pending_isr == (1, 2, 3)


@pytest.mark.parametrize(
    ("code", "pending", "moved"),
    [
        pytest.param(ErrorCode.INELIGIBLE_REPLICA, None, 1, id="nothing changed: dropped"),
        pytest.param(ErrorCode.OPERATION_NOT_ATTEMPTED, None, 1, id="nothing attempted: dropped"),
        pytest.param(ErrorCode.INVALID_UPDATE_VERSION, (1, 2, 3), 0, id="other version: the metadata resolve it"),
        pytest.param(ErrorCode.FENCED_LEADER_EPOCH, (1, 2, 3), 0, id="fenced: the metadata resolve it"),
    ],
)
def test_a_refused_proposal_is_not_repeated_and_kept_only_if_it_may_be_committed(
    controller: SlowChannel, partition: Any, timers: TimerQueue, code: ErrorCode, pending: Any, moved: int
) -> None:
    controller.requested[0][1].complete(answer(code))
    assert (partition.pending_isr, partition.moved) == (pending, moved)
    timers.run_due(LATER_MS)
    assert len(controller.requested) == 1


@pytest.mark.parametrize(
    ("code", "top"),
    [
        (ErrorCode.NOT_CONTROLLER, ErrorCode.NONE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE),
        (ErrorCode.NONE, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_a_proposal_with_an_unknown_result_is_retried_unless_the_metadata_changed(
    controller: SlowChannel, partition: Any, timers: TimerQueue, code: ErrorCode, top: ErrorCode
) -> None:
    for turn in (1, 2):
        controller.requested[-1][1].complete(answer(code, top))
        assert (partition.pending_isr, partition.moved, len(controller.requested)) == ((1, 2, 3), 0, turn)
        timers.run_due(LATER_MS)
        assert len(controller.requested) == turn + 1
    controller.requested[-1][1].complete(answer(code, top))
    partition.pending_isr = None
    timers.run_due(LATER_MS)
    assert len(controller.requested) == 3


def test_a_response_does_not_touch_an_accepted_or_newer_proposal(controller: SlowChannel, partition: Any) -> None:
    controller.requested[0][1].complete(answer(ErrorCode.NONE))
    assert (partition.pending_isr, partition.moved) == ((1, 2, 3), 0)
    partition.pending_isr = (1,)
    controller.requested[0][1].complete(answer(ErrorCode.INELIGIBLE_REPLICA))
    assert (partition.pending_isr, partition.moved) == ((1,), 0)


def test_proposals_during_a_request_are_sent_together(
    controller: SlowChannel, requests: AlterPartitionManager, partition: Any
) -> None:
    later = [leader(index) for index in (5, 6, 7)]
    for one in later:
        requests.submit(one, (1, 2, 3))
    later[1].pending_isr = None
    later[2].is_leader = False
    assert len(controller.requested) == 1
    controller.requested[0][1].complete(answer(ErrorCode.NONE))
    assert [one.partition_index for one in controller.requested[1][0].topics[0].partitions] == [5]
    controller.requested[1][1].complete(answer(ErrorCode.NONE))
    assert later[0].pending_isr == (1, 2, 3), "not in the response"
    assert len(controller.requested) == 2
