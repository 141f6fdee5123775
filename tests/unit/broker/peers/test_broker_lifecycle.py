"""Registration and heartbeats (broker/peers/broker_lifecycle.py), and the channel (broker/peers/controller_channel.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from broker.peers.broker_lifecycle import BrokerLifecycle
from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages import quorum
from protocol.messages.admin import CreatableTopic, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.controller_client import Client
from replication.controller.error_responses import not_controller_response
from replication.timer_queue import TimerQueue

OWN, OTHER = 1, 2
INTERVAL_MS = 2000
TIMEOUT_MS = 60_000


class Rig:
    """A broker; the test plays the controllers."""

    def __init__(self) -> None:
        self.timers = TimerQueue()
        self.now_ms = 1000
        self.sent: list[tuple[int, Message, Completion[Any]]] = []
        clock: Any = SimpleNamespace(mono_ms=lambda: self.now_ms, wall_ms=lambda: 0)
        local: Any = SimpleNamespace(submit=self._submit)
        publisher: Any = SimpleNamespace(image=image())
        self.publisher = publisher
        self.envelopes: list[tuple[int, Completion[Any]]] = []
        self.channel = ControllerChannel(
            OWN, local, publisher, self._send_request, self._send_envelope, self.timers, clock
        )
        registration = quorum.BrokerRegistrationRequest(
            broker_id=OWN, cluster_id="cluster", incarnation_id=b"I" * 16, listeners=[], features=[], rack=None,
            log_dirs=[b"D" * 16],
        )  # fmt: skip
        self.lifecycle = BrokerLifecycle(self.channel, registration, self.timers, clock, BrokerConfig({}))
        self.active = 0
        self.lifecycle.on_active = self._is_active
        self.failures: list[str] = []
        self.lifecycle.on_failed = self.failures.append

    def _submit(self, request: Message, _client: object) -> Completion[Any]:
        return self._send_request(OWN, request)

    def _send_request(self, node: int, request: Message) -> Completion[Any]:
        response: Completion[Any] = Completion()
        self.sent.append((node, request, response))
        return response

    def _send_envelope(self, node: int, _: Message) -> Completion[Any]:
        response: Completion[Any] = Completion()
        self.envelopes.append((node, response))
        return response

    def _is_active(self) -> None:
        self.active += 1

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.timers.run_due(self.now_ms)

    def next(self) -> tuple[int, Any, Completion[Any]]:
        (one,) = self.sent
        self.sent.clear()
        return one

    def publish(self, **broker: Any) -> None:
        self.publisher.image = image(**broker)
        self.lifecycle.image_published(self.publisher.image)

    def register(self) -> None:
        self.channel.leader_changed(OTHER)
        self.lifecycle.register()

    def answer_registration(self, code: ErrorCode = ErrorCode.NONE, epoch: int = 7) -> None:
        self.next()[2].complete(quorum.BrokerRegistrationResponse(error_code=code, broker_epoch=epoch))

    def registered(self, epoch: int = 7) -> None:
        """Registers, up to the first heartbeat."""
        self.register()
        self.answer_registration(epoch=epoch)
        self.publish(epoch=epoch, is_active=False)

    def beat(self, **answer: Any) -> quorum.BrokerHeartbeatRequest:
        """Answers the heartbeat in flight; returns it."""
        _, request, response = self.next()
        assert isinstance(request, quorum.BrokerHeartbeatRequest)
        fields = {"error_code": ErrorCode.NONE, "is_caught_up": True, "is_fenced": False, **answer}
        response.complete(quorum.BrokerHeartbeatResponse(**fields))
        return request


def image(epoch: int = -1, *, is_active: bool = False) -> Any:
    brokers = {} if epoch < 0 else {OWN: SimpleNamespace(epoch=epoch, is_active=is_active)}
    offset = 40 if brokers else 0
    return SimpleNamespace(brokers=brokers, metadata_version=30, features={"metadata.version": 30}, offset=offset)


def new_topic() -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)])


@pytest.fixture
def rig() -> Rig:
    return Rig()


# ---- the channel -----------------------------------------------------------------------------------------


def test_a_request_waits_for_an_active_controller(rig: Rig) -> None:
    rig.lifecycle.register()
    assert rig.sent == []
    rig.channel.leader_changed(OWN)
    node, request, _ = rig.next()
    assert (node, type(request)) == (OWN, quorum.BrokerRegistrationRequest)


@pytest.mark.parametrize("answer", [None, quorum.BrokerRegistrationResponse(error_code=ErrorCode.NOT_CONTROLLER)])
def test_a_request_is_retried_with_the_next_active_controller(rig: Rig, answer: Message | None) -> None:
    rig.register()
    node, request, response = rig.next()
    assert node == OTHER
    response.complete(answer)
    rig.channel.leader_changed(3)
    rig.wait(50)
    assert rig.next()[:2] == (3, request)


# ---- the lifecycle --------------------------------------------------------------------------------------------


def test_it_asks_to_be_unfenced_after_its_registration_is_published(rig: Rig) -> None:
    rig.register()
    rig.publish()
    rig.answer_registration()
    assert rig.sent == [], "not in the metadata yet"
    rig.publish(epoch=7)
    request = rig.beat()
    assert (request.broker_epoch, request.want_fence, request.want_shut_down) == (7, False, False)
    assert rig.active == 0
    rig.publish(epoch=7, is_active=True)
    rig.publish(epoch=7, is_active=True)
    assert rig.active == 1


def test_it_asks_to_be_fenced_while_a_disk_is_full(rig: Rig) -> None:
    rig.registered()
    assert not rig.beat().want_fence
    rig.lifecycle.has_space = lambda: False
    rig.lifecycle.heartbeat_now()
    assert rig.beat(is_fenced=True).want_fence
    rig.wait(INTERVAL_MS - 1)
    assert rig.sent == []
    rig.lifecycle.has_space = lambda: True
    rig.lifecycle.heartbeat_now()
    assert not rig.beat(is_fenced=True).want_fence
    rig.wait(50)
    assert not rig.beat().want_fence


def test_fencing_for_a_full_disk_is_reported_until_it_is_unfenced(rig: Rig) -> None:
    fenced: list[bool] = []
    rig.lifecycle.on_fenced_for_full_disk = fenced.append
    rig.registered()
    rig.beat(is_fenced=True)
    assert fenced == [], "fenced for another reason"
    rig.lifecycle.has_space = lambda: False
    rig.lifecycle.heartbeat_now()
    rig.wait(50)
    rig.beat()
    rig.wait(INTERVAL_MS)
    for is_fenced in (True, True):
        rig.beat(is_fenced=is_fenced)
        rig.wait(INTERVAL_MS)
    assert fenced == [True]
    rig.lifecycle.has_space = lambda: True
    rig.beat(is_fenced=True)
    rig.wait(50)
    assert fenced == [True], "still fenced"
    rig.beat()
    assert fenced == [True, False]


def test_a_registration_of_an_earlier_process_is_ignored(rig: Rig) -> None:
    rig.register()
    rig.publish(epoch=3, is_active=True)
    assert rig.active == 0


def test_heartbeats_are_sent_periodically_and_after_changes(rig: Rig) -> None:
    rig.registered()
    rig.beat()
    rig.wait(INTERVAL_MS - 1)
    assert rig.sent == []
    rig.wait(1)
    rig.lifecycle.directory_failed(b"D" * 16)
    request = rig.beat()
    assert list(request.offline_log_dirs) == [], "the heartbeat was sent before"
    rig.wait(0)
    assert list(rig.beat().offline_log_dirs) == [b"D" * 16]


def test_a_stale_broker_epoch_registers_again(rig: Rig) -> None:
    rig.registered()
    rig.beat()
    rig.wait(INTERVAL_MS)
    rig.beat(error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert isinstance(rig.sent[0][1], quorum.BrokerRegistrationRequest)
    rig.answer_registration(epoch=9)
    rig.publish(epoch=9)
    assert rig.beat().broker_epoch == 9


def test_an_unregistered_broker_registers_again_immediately(rig: Rig) -> None:
    """Without waiting for the next heartbeat: a node of its own leads nothing until then."""
    rig.registered()
    rig.beat()
    rig.publish(epoch=7, is_active=True)
    assert rig.sent == []
    rig.publisher.image = SimpleNamespace(**{**vars(image(epoch=7)), "brokers": {}})
    rig.lifecycle.image_published(rig.publisher.image)
    assert rig.beat(error_code=ErrorCode.STALE_BROKER_EPOCH).broker_epoch == 7
    assert isinstance(rig.sent[0][1], quorum.BrokerRegistrationRequest)


def test_heartbeats_are_sent_when_an_earlier_process_registers_later(rig: Rig) -> None:
    """A controller that pauses may read the request of the ended process after that of the new one."""
    rig.register()
    rig.answer_registration(epoch=7)
    rig.publish(epoch=9)
    assert rig.beat(error_code=ErrorCode.STALE_BROKER_EPOCH).broker_epoch == 7
    assert isinstance(rig.next()[1], quorum.BrokerRegistrationRequest)


def test_a_duplicate_registration_is_retried(rig: Rig) -> None:
    rig.register()
    rig.answer_registration(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    rig.wait(500)
    assert isinstance(rig.next()[1], quorum.BrokerRegistrationRequest)


def test_a_fatal_registration_error_ends_the_broker(rig: Rig) -> None:
    rig.register()
    rig.answer_registration(ErrorCode.INCONSISTENT_CLUSTER_ID)
    assert rig.failures == ["the controller refuses this broker: INCONSISTENT_CLUSTER_ID; see its log"]


def test_registration_times_out_without_a_controller(rig: Rig) -> None:
    rig.lifecycle.start()
    rig.wait(TIMEOUT_MS - 1)
    assert rig.failures == []
    rig.wait(1)
    assert [text.partition(":")[0] for text in rig.failures] == [
        "no controller that leads this cluster was found within 60 s"
    ]


def test_registration_times_out_when_another_process_has_the_id(rig: Rig) -> None:
    rig.channel.leader_changed(OTHER)
    rig.lifecycle.start()
    while not rig.failures:
        rig.answer_registration(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        rig.wait(500)
    assert rig.failures == ["another process is node 1: end it, or set another node.id here"]
    assert rig.now_ms == 1000 + TIMEOUT_MS


def test_a_registered_broker_does_not_time_out(rig: Rig) -> None:
    rig.channel.leader_changed(OTHER)
    rig.lifecycle.start()
    rig.answer_registration(epoch=5)
    rig.channel.leader_changed(-1)
    rig.wait(2 * TIMEOUT_MS)
    assert rig.failures == []


def test_a_controlled_shutdown_waits_for_the_controller(rig: Rig) -> None:
    on_shutdown_allowed: list[str] = []
    rig.registered()
    rig.beat()
    rig.lifecycle.begin_controlled_shutdown().then(lambda _: on_shutdown_allowed.append("ended"))
    assert rig.beat().want_shut_down
    assert on_shutdown_allowed == []
    rig.wait(50)
    rig.beat(should_shut_down=True, is_fenced=True)
    assert on_shutdown_allowed == ["ended"]


def test_a_controlled_shutdown_ends_without_a_controller(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    ended: list[int] = []
    rig.registered()
    rig.beat()
    rig.channel.leader_changed(-1)
    began_ms = rig.now_ms
    rig.lifecycle.begin_controlled_shutdown().then(lambda _: ended.append(rig.now_ms - began_ms))
    rig.wait(1499)
    assert ended == []
    rig.wait(1)
    assert ended == [1500]
    assert "no active controller: shutting down without moving leaders" in caplog.text


def test_a_controlled_shutdown_ends_after_30_s(rig: Rig) -> None:
    ended: list[int] = []
    rig.registered()
    rig.beat()
    began_ms = rig.now_ms
    rig.lifecycle.begin_controlled_shutdown().then(lambda _: ended.append(rig.now_ms - began_ms))
    while not ended:
        rig.beat(is_fenced=True)
        rig.wait(50)
    assert ended == [30_000]


def test_not_controller_in_the_topics_of_a_response_is_retried(rig: Rig) -> None:
    rig.channel.leader_changed(OTHER)
    request = new_topic()
    answer = rig.channel.submit(request)
    rig.next()[2].complete(not_controller_response(request))
    assert not answer.is_done
    rig.wait(1000)
    _, again, response = rig.next()
    assert again is request
    created = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=ErrorCode.NONE)])
    response.complete(created)
    assert answer.result() is created


def test_a_request_to_an_earlier_controller_is_sent_to_the_next_one_if_it_is_not_answered(rig: Rig) -> None:
    """The earlier one may be cut off."""
    rig.channel.leader_changed(OTHER)
    request = new_topic()
    answer = rig.channel.submit(request)
    _, _, late = rig.next()
    rig.channel.leader_changed(-1)
    rig.channel.leader_changed(3)
    rig.wait(1_999)
    assert rig.sent == []
    rig.wait(1)
    node, again, response = rig.next()
    assert (node, again) == (3, request)
    late.complete(not_controller_response(request))
    response.complete(CreateTopicsResponse(topics=[]))
    rig.wait(10_000)
    assert answer.result() is response.value
    assert rig.sent == []


def test_requests_of_clients_have_a_connection_of_their_own(rig: Rig) -> None:
    """A heartbeat does not wait for them, and its shorter timeout does not send them twice."""
    rig.channel.leader_changed(OTHER)
    rig.channel.submit(new_topic(), Client("User:a", "127.0.0.1"))
    assert [node for node, _ in rig.envelopes] == [OTHER]
    assert rig.sent == []


@pytest.mark.parametrize("leader_id", [-1, OTHER])
def test_a_client_s_request_expires_when_no_controller_answers(rig: Rig, leader_id: int) -> None:
    """Otherwise it would change the cluster hours later, when there is a controller again."""
    rig.channel.leader_changed(leader_id)
    answer = rig.channel.submit(new_topic(), Client("User:a", "127.0.0.1"))
    own = rig.channel.submit(new_topic())
    rig.wait(59_999)
    assert not answer.is_done
    rig.wait(1)
    assert answer.result().topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert not own.is_done
    for _, response in rig.envelopes:
        response.complete(None)
    rig.channel.leader_changed(3)
    rig.wait(5_000)
    assert [node for node, _ in rig.envelopes if node == 3] == []
    assert [node for node, _, _ in rig.sent if node == 3] == [3]


def test_the_request_of_a_client_that_is_gone_expires_too(rig: Rig) -> None:
    rig.channel.submit(new_topic(), Client("User:a", "127.0.0.1")).cancel()
    rig.wait(60_000)
    assert not rig.channel._queue
    rig.channel.leader_changed(OTHER)
    assert rig.envelopes == []


def test_an_answered_request_with_a_timeout_of_its_own_leaves_no_timer(rig: Rig) -> None:
    rig.channel.leader_changed(OWN)
    answer = rig.channel.submit(new_topic(), Client("User:a", "127.0.0.1"))
    answer.expire_at(rig.timers, rig.now_ms + 100, lambda: None)
    rig.next()[2].complete(CreateTopicsResponse(topics=[]))
    assert (answer.is_done, len(rig.timers)) == (True, 0)
