"""Guards broker/peers/alter_partition_manager.py: what the partitions led here want of the controller."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.peers.alter_partition_manager import IsrRequests
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
)
from replication.timer_queue import Deadlines

LATER_MS = 1000


class SlowChannel:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[AlterPartitionRequest, Callable[[AlterPartitionResponse], None]]] = []

    def submit(self, request: Any, *, wall_ms: int, reply: Callable[[Any], None]) -> None:
        self.asked.append((request, reply))


class Leader(SimpleNamespace):
    """As much of a partition as the requests look at."""

    __hash__ = object.__hash__

    def move_high_watermark(self) -> None:
        self.moved += 1


def leader(index: int = 4) -> Any:
    followers = {2: SimpleNamespace(broker_epoch=22), 3: SimpleNamespace(broker_epoch=-1)}
    return Leader(
        topic="t", index=index, is_leader=True, topic_id=b"T" * 16, leader_epoch=5, partition_epoch=7, followers=followers,
        wanted_isr=(1, 2, 3), moved=0,
    )  # fmt: skip


@pytest.fixture
def controller() -> SlowChannel:
    return SlowChannel()


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines()


@pytest.fixture
def requests(controller: SlowChannel, deadlines: Deadlines) -> IsrRequests:
    clock: Any = SimpleNamespace(wall_ms=lambda: 0, mono_ms=lambda: 0)
    channel: Any = controller
    life: Any = SimpleNamespace(epoch=11)
    return IsrRequests(channel, life, 1, deadlines, clock)


@pytest.fixture
def partition(requests: IsrRequests) -> Any:
    wishing = leader()
    requests.want(wishing, (1, 2, 3))
    return wishing


def answer(code: ErrorCode, top: ErrorCode = ErrorCode.NONE) -> AlterPartitionResponse:
    if top:
        return AlterPartitionResponse(error_code=top)
    partitions = [AlterPartitionResponsePartition(partition_index=4, error_code=code)]
    topics = [AlterPartitionResponseTopic(topic_id=b"T" * 16, partitions=partitions)]
    return AlterPartitionResponse(error_code=ErrorCode.NONE, topics=topics)


def test_a_wish_names_the_epochs_of_all(controller: SlowChannel, partition: Any) -> None:
    """The broker's, the leader's, the partition's, and of each member the one that it fetches with (KIP-903)."""
    ((request, _),) = controller.asked
    assert (request.broker_id, request.broker_epoch) == (1, 11)
    (wanted,) = request.topics[0].partitions
    assert (wanted.partition_index, wanted.leader_epoch, wanted.partition_epoch) == (4, 5, 7)
    assert [(m.broker_id, m.broker_epoch) for m in wanted.new_isr_with_epochs] == [(1, 11), (2, 22), (3, -1)]
    assert wanted.leader_recovery_state == 0
    assert partition.wanted_isr == (1, 2, 3)


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_wish_of_which_nothing_was_done_is_forgotten(
    controller: SlowChannel, partition: Any, deadlines: Deadlines, code: ErrorCode
) -> None:
    """Rule 3: and the high watermark need not wait any more for who was to join."""
    controller.asked[0][1](answer(code))
    assert (partition.wanted_isr, partition.moved) == (None, 1)
    deadlines.run_due(LATER_MS)
    assert len(controller.asked) == 1, "whoever still wants it asks"


@pytest.mark.parametrize("code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_wish_that_may_have_been_granted_stands_until_the_metadata_tell(
    controller: SlowChannel, partition: Any, deadlines: Deadlines, code: ErrorCode
) -> None:
    """Rule 4: the answer may be to the same request, asked again because the first answer was lost."""
    controller.asked[0][1](answer(code))
    assert (partition.wanted_isr, partition.moved) == ((1, 2, 3), 0)
    deadlines.run_due(LATER_MS)
    assert len(controller.asked) == 1


@pytest.mark.parametrize(
    ("code", "top"),
    [
        (ErrorCode.NOT_CONTROLLER, ErrorCode.NONE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE),
        (ErrorCode.NONE, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_a_wish_of_which_nothing_is_known_is_asked_for_again_unless_the_metadata_moved_on(
    controller: SlowChannel, partition: Any, deadlines: Deadlines, code: ErrorCode, top: ErrorCode
) -> None:
    """Rule 4: after a while."""
    for turn in (1, 2):
        controller.asked[-1][1](answer(code, top))
        assert (partition.wanted_isr, partition.moved, len(controller.asked)) == ((1, 2, 3), 0, turn)
        deadlines.run_due(LATER_MS)
        assert len(controller.asked) == turn + 1
    controller.asked[-1][1](answer(code, top))
    partition.wanted_isr = None
    deadlines.run_due(LATER_MS)
    assert len(controller.asked) == 3


def test_a_granted_wish_and_a_newer_one_are_left_alone(controller: SlowChannel, partition: Any) -> None:
    """Rule 2: what is granted comes by the image; a refusal is of the wish that it answers."""
    controller.asked[0][1](answer(ErrorCode.NONE))
    assert (partition.wanted_isr, partition.moved) == ((1, 2, 3), 0)
    partition.wanted_isr = (1,)
    controller.asked[0][1](answer(ErrorCode.INELIGIBLE_REPLICA))
    assert (partition.wanted_isr, partition.moved) == ((1,), 0)


def test_what_is_wanted_meanwhile_is_asked_for_together(
    controller: SlowChannel, requests: IsrRequests, partition: Any
) -> None:
    """Rule 1: but not what is not wanted any more, for the metadata have moved on."""
    later = [leader(index) for index in (5, 6, 7)]
    for one in later:
        requests.want(one, (1, 2, 3))
    later[1].wanted_isr = None
    later[2].is_leader = False
    assert len(controller.asked) == 1
    controller.asked[0][1](answer(ErrorCode.NONE))
    assert [one.partition_index for one in controller.asked[1][0].topics[0].partitions] == [5]
    controller.asked[1][1](answer(ErrorCode.NONE))
    assert later[0].wanted_isr == (1, 2, 3), "nothing was said of it"
    assert len(controller.asked) == 2
