"""Guards broker/peers/broker_lifecycle.py and broker/peers/controller_channel.py: what a broker tells the active controller, and how it gets there."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.peers.broker_lifecycle import BrokerLife
from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.schema import Message
from replication.controller.brokers.registration import Registration
from replication.controller.error_responses import not_controller
from replication.timer_queue import Deadlines

OWN, OTHER = 1, 2
INTERVAL_MS = 2000
TIMEOUT_MS = 60_000


class Rig:
    """A broker whose controllers are played by the test."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.now_ms = 1000
        self.asked: list[tuple[int, Message, Callable[[Message | None], None]]] = []
        clock: Any = SimpleNamespace(mono_ms=lambda: self.now_ms, wall_ms=lambda: 0)
        local: Any = SimpleNamespace(submit=self._submit)
        self.publisher: Any = SimpleNamespace(image=image())
        self.channel = ControllerChannel(
            OWN, local, self.publisher, lambda *asked: self.asked.append(asked), self.deadlines, clock
        )
        registration = Registration(OWN, "cluster", b"I" * 16, (), (b"D" * 16,))
        self.life = BrokerLife(self.channel, registration, self.deadlines, clock, INTERVAL_MS, TIMEOUT_MS)
        self.active = 0
        self.life.on_active = self._is_active

    def _submit(self, request: Message, *, wall_ms: int, reply: Callable[[Any], None]) -> None:
        self.asked.append((OWN, request, reply))

    def _is_active(self) -> None:
        self.active += 1

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.deadlines.run_due(self.now_ms)

    def next(self) -> tuple[int, Any, Callable[[Message | None], None]]:
        (one,) = self.asked
        self.asked.clear()
        return one

    def publish(self, **broker: Any) -> None:
        self.publisher.image = image(**broker)
        self.life.image_published(self.publisher.image)

    def registered(self, epoch: int = 7) -> None:
        """As far as the first heartbeat."""
        self.channel.leader_changed(OTHER)
        self.life.register()
        self.next()[2](BrokerRegistrationResponse(error_code=ErrorCode.NONE, broker_epoch=epoch))
        self.publish(epoch=epoch, is_active=False)

    def beat(self, **answer: Any) -> BrokerHeartbeatRequest:
        """The heartbeat that was sent; answered so."""
        _, request, reply = self.next()
        assert isinstance(request, BrokerHeartbeatRequest)
        said = {"error_code": ErrorCode.NONE, "is_caught_up": True, "is_fenced": False, **answer}
        reply(BrokerHeartbeatResponse(**said))
        return request


def image(epoch: int = -1, *, is_active: bool = False) -> Any:
    brokers = {} if epoch < 0 else {OWN: SimpleNamespace(epoch=epoch, is_active=is_active)}
    return SimpleNamespace(brokers=brokers, metadata_version=30, features={"metadata.version": 30}, offset=40)


@pytest.fixture
def rig() -> Rig:
    return Rig()


# ---- the channel -----------------------------------------------------------------------------------------


def test_a_request_waits_until_somebody_is_active(rig: Rig) -> None:
    """Rule 1 of the channel; rule 3: a call where that is this process."""
    rig.life.register()
    assert rig.asked == []
    rig.channel.leader_changed(OWN)
    node, request, _ = rig.next()
    assert (node, type(request)) == (OWN, BrokerRegistrationRequest)


@pytest.mark.parametrize("answer", [None, BrokerRegistrationResponse(error_code=ErrorCode.NOT_CONTROLLER)])
def test_who_is_not_active_any_more_is_asked_no_longer(rig: Rig, answer: Message | None) -> None:
    """Rule 1: nor is a node that does not answer."""
    rig.channel.leader_changed(OTHER)
    rig.life.register()
    node, request, reply = rig.next()
    assert node == OTHER
    reply(answer)
    rig.channel.leader_changed(3)
    rig.wait(50)
    assert rig.next()[:2] == (3, request)


# ---- the life --------------------------------------------------------------------------------------------


def test_it_wants_to_be_active_when_it_has_seen_its_registration(rig: Rig) -> None:
    """Rule 2: and serves when it has seen that it is."""
    rig.channel.leader_changed(OTHER)
    rig.life.register()
    rig.publish()
    rig.next()[2](BrokerRegistrationResponse(error_code=ErrorCode.NONE, broker_epoch=7))
    assert rig.asked == [], "the metadata do not show it yet"
    rig.publish(epoch=7)
    request = rig.beat()
    assert (request.broker_epoch, request.want_fence, request.want_shut_down) == (7, False, False)
    assert rig.active == 0
    rig.publish(epoch=7, is_active=True)
    rig.publish(epoch=7, is_active=True)
    assert rig.active == 1


def test_it_wants_to_be_fenced_while_a_disk_is_full(rig: Rig) -> None:
    """Rule 5: said at once; while it is fenced for that, it is heard of no more often than else."""
    rig.registered()
    assert not rig.beat().want_fence
    rig.life.has_room = lambda: False
    rig.life.tell()
    assert rig.beat(is_fenced=True).want_fence
    rig.wait(INTERVAL_MS - 1)
    assert rig.asked == []
    rig.life.has_room = lambda: True
    rig.life.tell()
    assert not rig.beat(is_fenced=True).want_fence
    rig.wait(50)
    assert not rig.beat().want_fence


def test_it_stands_aside_while_it_is_fenced_for_a_full_disk(rig: Rig) -> None:
    """Rule 5: it begins so only where a disk is full, and ends it when it is fenced no more."""
    told: list[bool] = []
    rig.life.on_aside = told.append
    rig.registered()
    rig.beat(is_fenced=True)
    assert told == [], "that it is fenced otherwise, the metadata tell it"
    rig.life.has_room = lambda: False
    rig.life.tell()
    rig.wait(50)
    rig.beat()
    rig.wait(INTERVAL_MS)
    for is_fenced in (True, True):
        rig.beat(is_fenced=is_fenced)
        rig.wait(INTERVAL_MS)
    assert told == [True]
    rig.life.has_room = lambda: True
    rig.beat(is_fenced=True)
    rig.wait(50)
    assert told == [True], "who leads now is still to be heard"
    rig.beat()
    assert told == [True, False]


def test_an_older_registration_of_the_same_number_means_nothing(rig: Rig) -> None:
    """Rule 2: what the metadata say at the start is of the process before this one."""
    rig.channel.leader_changed(OTHER)
    rig.life.register()
    rig.publish(epoch=3, is_active=True)
    assert rig.active == 0


def test_it_is_heard_of_regularly_and_at_once_when_there_is_news(rig: Rig) -> None:
    """Rule 3."""
    rig.registered()
    rig.beat()
    rig.wait(INTERVAL_MS - 1)
    assert rig.asked == []
    rig.wait(1)
    rig.life.failed(b"D" * 16)
    request = rig.beat()
    assert list(request.offline_log_dirs) == [], "it was on its way already"
    rig.wait(0)
    assert list(rig.beat().offline_log_dirs) == [b"D" * 16]


def test_who_is_forgotten_registers_again(rig: Rig) -> None:
    """Rule 1: STALE_BROKER_EPOCH says that this registration counts no longer."""
    rig.registered()
    rig.beat(error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert isinstance(rig.next()[1], BrokerRegistrationRequest)


def test_a_taken_number_is_asked_for_again(rig: Rig) -> None:
    """The session of the process before this one may still have to end."""
    rig.channel.leader_changed(OTHER)
    rig.life.register()
    rig.next()[2](BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION))
    rig.wait(500)
    assert isinstance(rig.next()[1], BrokerRegistrationRequest)


def test_who_does_not_fit_ends(rig: Rig) -> None:
    """Waiting would change nothing."""
    said: list[str] = []
    rig.life.on_failed = said.append
    rig.channel.leader_changed(OTHER)
    rig.life.register()
    rig.next()[2](BrokerRegistrationResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))
    assert said == ["the controller refuses this broker: INCONSISTENT_CLUSTER_ID; its log says why"]


def test_it_gives_up_when_no_controller_is_found(rig: Rig) -> None:
    """Rule 6."""
    said: list[str] = []
    rig.life.on_failed = said.append
    rig.life.start()
    rig.wait(TIMEOUT_MS - 1)
    assert said == []
    rig.wait(1)
    assert [text.partition(":")[0] for text in said] == ["no controller that leads this cluster was found within 60 s"]


def test_it_gives_up_when_another_process_has_its_id(rig: Rig) -> None:
    """Rule 6: one that was killed is missed by then; this one is not. It is told of once."""
    said: list[str] = []
    rig.life.on_failed = said.append
    rig.channel.leader_changed(OTHER)
    rig.life.start()
    duplicate = BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    while not said:
        _, _, reply = rig.next()
        reply(duplicate)
        rig.wait(500)
    assert said == ["another process is node 1: end it, or set another node.id here"]
    assert rig.now_ms == 1000 + TIMEOUT_MS


def test_who_was_taken_once_does_not_give_up(rig: Rig) -> None:
    """Rule 6 is about the start."""
    said: list[str] = []
    rig.life.on_failed = said.append
    rig.channel.leader_changed(OTHER)
    rig.life.start()
    rig.next()[2](BrokerRegistrationResponse(error_code=ErrorCode.NONE, broker_epoch=5))
    rig.channel.leader_changed(-1)
    rig.wait(2 * TIMEOUT_MS)
    assert said == []


def test_it_leaves_when_nobody_needs_it(rig: Rig) -> None:
    """Rule 4: it asks often until then."""
    ended: list[str] = []
    rig.registered()
    rig.beat()
    rig.life.end(lambda: ended.append("ended"))
    assert rig.beat().want_shut_down
    assert ended == []
    rig.wait(50)
    rig.beat(should_shut_down=True, is_fenced=True)
    assert ended == ["ended"]


def test_a_refusal_that_stands_with_each_topic_is_asked_again(rig: Rig) -> None:
    """An answer to CreateTopics has no code of its own: who is active no longer says so of each topic."""
    rig.channel.leader_changed(OTHER)
    answers: list[Any] = []
    request = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)])
    rig.channel.submit(request, wall_ms=0, reply=answers.append)
    rig.next()[2](not_controller(request))
    assert answers == []
    rig.wait(1000)
    _, again, reply = rig.next()
    assert again is request
    created = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=ErrorCode.NONE)])
    reply(created)
    assert answers == [created]
