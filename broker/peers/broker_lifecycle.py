"""The broker's registration and heartbeats (KIP-631; Kafka: BrokerLifecycleManager).

RULES    1. It registers once per process; again if the controller does not know it any more, or if a new metadata.version adds
            fields to the registration.
         2. When the image has reached its registration, it asks to be unfenced. When the image shows it unfenced, it accepts
            clients (`on_active`).
         3. It sends a heartbeat every broker.heartbeat.interval.ms, and immediately after a change. One heartbeat is in flight.
         4. It shuts down when the controller allows it, when that takes too long, or when there is no active controller, so
            that no other broker can take over its partitions.
         5. While a log directory is full it asks to be fenced, so that other brokers lead: writes here would wait. While it is
            fenced for that, it leads nothing (`on_fenced_for_full_disk`).
         6. If no controller accepts the registration within initial.broker.registration.timeout.ms, startup fails with the
            reason.
NOT HERE The controller's side (`replication/controller/brokers/broker_heartbeats.py`), sending (`controller_channel.py`).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from replication.completion import Completion
from replication.metadata.feature_levels import features_for
from replication.metadata.image import MetadataImage
from replication.metadata.image_records import stored_features
from replication.timer_queue import Clock, Timer, TimerQueue

_log = logging.getLogger("barnabas.lifecycle")

_UNREGISTERED: Final = -1
_FATAL: Final = (
    ErrorCode.INCONSISTENT_CLUSTER_ID,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_REGISTRATION,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
"""Errors that do not go away by waiting."""
_NO_CONTROLLER: Final = (
    "no controller that leads this cluster was found within {0:g} s: see where controller.quorum.voters or "
    "controller.quorum.bootstrap.servers say that the controllers are, and that most of them run"
)
_SHUTDOWN_POLL_MS: Final = 50
"""How often the controller is asked whether the shutdown may complete."""
_SHUTDOWN_TIMEOUT_MS: Final = 30_000
"""The longest controlled shutdown."""
_NO_CONTROLLER_TIMEOUT_MS: Final = 1_500
"""How long a controlled shutdown waits for the election of a controller."""
_RETRY_MS: Final = 500


class BrokerLifecycle:
    """The registration of one broker process."""

    def __init__(
        self,
        channel: ControllerChannel,
        registration: BrokerRegistrationRequest,
        timers: TimerQueue,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        """`registration` lacks the features."""
        self._channel = channel
        self._registration = registration
        self._timers = timers
        self._clock = clock
        self._interval_ms = config.number("broker.heartbeat.interval.ms")
        self._timeout_ms = config.number("initial.broker.registration.timeout.ms")
        self._registered_level = 0
        self._refusal = ErrorCode.NONE
        self._is_registered = False
        self._is_in_flight = False
        self._is_heartbeat_due = False
        self._next_heartbeat: Timer | None = None
        self._offline_dirs: tuple[bytes, ...] = ()
        self._is_active = False
        self._is_fenced = False
        self._shutdown: Completion[None] | None = None  # completed when the controller allows it
        self.cordoned: Callable[[], Sequence[bytes]] = tuple
        """The ids of the cordoned log directories."""
        self.has_space: Callable[[], bool] = lambda: True
        """Whether no directory is full."""
        self.epoch = _UNREGISTERED
        """The broker epoch."""
        self.on_active: Callable[[], None] = lambda: None
        """The broker is unfenced."""
        self.on_fenced_for_full_disk: Callable[[bool], None] = lambda _: None
        """Called when the broker is fenced for a full disk, or no longer is (`disk_full_policy.py`)."""
        self.on_failed: Callable[[str], None] = lambda _: None
        """The broker cannot join this cluster; called with the reason."""

    def start(self) -> None:
        """Registers, with a timeout (rule 6)."""
        self._timers.schedule(self._clock.mono_ms() + self._timeout_ms, self._on_registration_timeout)
        self.register()

    def _on_registration_timeout(self) -> None:
        if self._is_registered or self._shutdown is not None:
            return
        if self._refusal == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            why = f"another process is node {self._registration.broker_id}: end it, or set another node.id here"
        elif self._refusal != ErrorCode.NONE:
            why = f"the controllers refuse this broker: {self._refusal.name}; see their logs"
        else:
            why = _NO_CONTROLLER.format(self._timeout_ms / 1000)
        self.on_failed(why)

    # ------------------------------------------------------------ registration
    def register(self) -> None:
        """Sends the registration."""
        image = self._channel.image
        self._registered_level = image.metadata_version
        request = copy.copy(self._registration)
        request.features = stored_features(features_for(image.features))
        request.log_dirs = [directory for directory in request.log_dirs if directory not in self._offline_dirs]
        self._channel.submit(request).then(self._on_registration_response)

    def _on_registration_response(self, done: Completion[BrokerRegistrationResponse]) -> None:
        response = done.result()
        code = ErrorCode(response.error_code)
        if code in _FATAL:
            self.on_failed(f"the controller refuses this broker: {code.name}; see its log")
        elif code != ErrorCode.NONE:
            if code != self._refusal:
                _log.warning("this broker is not registered yet: %s; retrying", code.name)
            self._refusal = code
            self._timers.schedule(self._clock.mono_ms() + _RETRY_MS, self.register)
        else:
            self.epoch, self._is_registered = response.broker_epoch, True
            self.image_published(self._channel.image)

    def image_published(self, image: MetadataImage) -> None:
        """A new metadata image is published."""
        if self.epoch == _UNREGISTERED or image.offset < self.epoch:
            return
        # Also if the image has another epoch: a request of an earlier process may have registered after this one's.
        if self._next_heartbeat is None and not self._is_in_flight:
            self._send_heartbeat()
        broker = image.brokers.get(self._registration.broker_id)
        if broker is None and self._is_active:
            self.heartbeat_now()  # an operator has unregistered this broker: the response makes it register again
        if broker is None or broker.epoch != self.epoch:
            return
        if not self._is_active and broker.is_active:
            self._is_active = True
            self.on_active()
        if image.metadata_version > self._registered_level > 0:
            self.register()
        self._registered_level = max(self._registered_level, image.metadata_version)

    def heartbeat_now(self) -> None:
        """Sends a heartbeat without waiting for the interval: the state of a directory has changed."""
        if self._is_in_flight:
            self._is_heartbeat_due = True
        elif self.epoch != _UNREGISTERED:
            self._send_heartbeat()

    def directory_failed(self, directory: bytes) -> None:
        """A log directory is offline."""
        self._offline_dirs = (*self._offline_dirs, directory)
        self.heartbeat_now()

    def begin_controlled_shutdown(self) -> Completion[None]:
        """Starts the controlled shutdown; completes when the broker may stop (rule 4)."""
        shutdown = self._shutdown = Completion()
        if self.epoch == _UNREGISTERED:
            shutdown.complete(None)
            return shutdown
        deadline_ms = self._clock.mono_ms() + _SHUTDOWN_TIMEOUT_MS
        shutdown.expire_at(self._timers, deadline_ms, lambda: shutdown.complete(None))
        self.heartbeat_now()
        self._check_controller(shutdown)
        return shutdown

    def _check_controller(self, shutdown: Completion[None]) -> None:
        if shutdown.is_done:
            return
        if self._channel.leaderless_ms >= _NO_CONTROLLER_TIMEOUT_MS:
            _log.warning("no active controller: shutting down without moving leaders")
            shutdown.complete(None)
        else:
            again = partial(self._check_controller, shutdown)
            self._timers.schedule(self._clock.mono_ms() + _NO_CONTROLLER_TIMEOUT_MS, again)

    # ------------------------------------------------------------ heartbeats
    def _send_heartbeat(self) -> None:
        if self._next_heartbeat is not None:
            self._next_heartbeat.cancel()
        self._is_in_flight, self._is_heartbeat_due = True, False
        request = BrokerHeartbeatRequest(
            broker_id=self._registration.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._channel.image.offset,
            want_fence=not self.has_space(),
            want_shut_down=self._shutdown is not None,
            offline_log_dirs=list(self._offline_dirs),
            cordoned_log_dirs=list(self.cordoned()),
        )
        self._channel.submit(request).then(self._on_heartbeat_response)

    def _on_heartbeat_response(self, done: Completion[BrokerHeartbeatResponse]) -> None:
        response = done.result()
        self._is_in_flight = False
        if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
            _log.warning("the controller does not know this broker epoch; registering again")
            self.epoch, self._next_heartbeat = _UNREGISTERED, None
            self.register()
            return
        if self._shutdown is not None and response.should_shut_down:
            self._shutdown.complete(None)
            return
        if response.is_fenced is not self._is_fenced and (self._is_fenced or not self.has_space()):
            self._is_fenced = response.is_fenced
            _log.warning(
                "fenced for a full log directory: this broker leads no partition; free some space"
                if self._is_fenced
                else "unfenced: this broker may lead partitions again"
            )
            self.on_fenced_for_full_disk(self._is_fenced)
        delay_ms = self._interval_ms
        if self._is_heartbeat_due:
            delay_ms = 0
        elif self._shutdown is not None or (response.is_fenced and self.has_space()):
            delay_ms = _SHUTDOWN_POLL_MS
        self._next_heartbeat = self._timers.schedule(self._clock.mono_ms() + delay_ms, self._send_heartbeat)
