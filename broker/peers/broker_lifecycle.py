"""The life of this node's broker, as it tells it to the controller: registered, active, leaving (KIP-631).

RULES    1. It registers once for each process; again when the controller forgot it, or when the cluster's metadata.version
            allows to say more.
         2. When it has seen its own registration it wants to be active. When it is, and has seen that, it serves (`on_active`).
         3. It is heard of every broker.heartbeat.interval.ms, and at once when it has something to say. One heartbeat is
            under way at a time.
         4. It leaves when the controller says that nobody needs it any more.
         5. While one of its directories is full it wants to be fenced, so that others lead: what is written here waits.
            When it is, it stands aside until it is no more (`on_aside`).
         6. Whom no controller has taken within initial.broker.registration.timeout.ms gives up, and says why.
NOT HERE What the controller thinks of it (`replication/controller/brokers/broker_heartbeats.py`), the way there (`controller_channel.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from protocol.messages.stored_records import BrokerEndpoint, BrokerFeature
from replication.controller.brokers.registration import Registration
from replication.metadata.feature_levels import features_for
from replication.metadata.image import MetadataImage
from replication.metadata_log.kraft_replica import Clock
from replication.timer_queue import Deadline, Deadlines

_log = logging.getLogger("barnabas.life")

_UNREGISTERED: Final = -1
_FINAL: Final = (
    ErrorCode.INCONSISTENT_CLUSTER_ID,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_REGISTRATION,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
"""Refusals that will not become another answer by waiting."""
_NOBODY: Final = (
    "no controller that leads this cluster was found within {0:g} s: see where controller.quorum.voters or "
    "controller.quorum.bootstrap.servers say that the controllers are, and that most of them run"
)
_LEAVING_MS: Final = 50
"""How soon the controller is asked again whether this broker may end."""
_RETRY_MS: Final = 500


class BrokerLife:
    """One process of one broker."""

    def __init__(
        self,
        channel: ControllerChannel,
        registration: Registration,
        deadlines: Deadlines,
        clock: Clock,
        interval_ms: int,
        timeout_ms: int | None = None,
    ) -> None:
        """Unregistered.

        Args:
            channel: to the controller.
            registration: what it says of itself; the features are those of the cluster when it says so.
            deadlines: where heartbeats wait.
            clock: the time.
            interval_ms: broker.heartbeat.interval.ms.
            timeout_ms: initial.broker.registration.timeout.ms; None: it does not give up.
        """
        self._channel = channel
        self._registration = registration
        self._deadlines = deadlines
        self._clock = clock
        self._interval_ms = interval_ms
        self._timeout_ms = timeout_ms
        self._registered_level = 0
        self._refusal = ErrorCode.NONE
        self._is_known = False
        self._is_asking = False
        self._is_urgent = False
        self._next: Deadline | None = None
        self._offline: tuple[bytes, ...] = ()
        self._is_active = False
        self._is_aside = False
        self._ended: Callable[[], None] | None = None
        self.cordoned: Callable[[], Sequence[bytes]] = tuple
        """Directories that take no new replicas."""
        self.has_room: Callable[[], bool] = _always
        """Whether no directory is full."""
        self.epoch = _UNREGISTERED
        """The epoch of its registration."""
        self.on_active: Callable[[], None] = _nothing
        """It may serve."""
        self.on_aside: Callable[[bool], None] = _ignore
        """It is fenced for a full disk; or it is told False, and is no more (`disk_full_policy.py`)."""
        self.on_failed: Callable[[str], None] = _ignore
        """It cannot take part in this cluster; told why."""

    def start(self) -> None:
        """Register, and give up some time (rule 6)."""
        if self._timeout_ms is not None:
            self._deadlines.schedule(self._clock.mono_ms() + self._timeout_ms, partial(self._give_up, self._timeout_ms))
        self.register()

    def _give_up(self, timeout_ms: int) -> None:
        if self._is_known or self._ended is not None:
            return
        if self._refusal == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            why = f"another process is node {self._registration.broker_id}: end it, or set another node.id here"
        elif self._refusal != ErrorCode.NONE:
            why = f"the controllers refuse this broker: {self._refusal.name}; their logs say why"
        else:
            why = _NOBODY.format(timeout_ms / 1000)
        self.on_failed(why)

    # ------------------------------------------------------------ what it says
    def register(self) -> None:
        """Say who it is."""
        image, own = self._channel.image, self._registration
        self._registered_level = image.metadata_version
        features = features_for(image.features)
        request = BrokerRegistrationRequest(
            broker_id=own.broker_id,
            cluster_id=own.cluster_id,
            incarnation_id=own.incarnation_id,
            listeners=[
                BrokerEndpoint(name=e.listener, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for e in own.endpoints
            ],
            features=[
                BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in features.items()
            ],
            rack=own.rack,
            log_dirs=[directory for directory in own.directories if directory not in self._offline],
            previous_broker_epoch=own.previous_epoch,
        )
        self._channel.submit(request, wall_ms=self._clock.wall_ms(), reply=self._registered)

    def _registered(self, answer: BrokerRegistrationResponse) -> None:
        code = ErrorCode(answer.error_code)
        if code in _FINAL:
            self.on_failed(f"the controller refuses this broker: {code.name}; its log says why")
        elif code != ErrorCode.NONE:
            if code != self._refusal:
                _log.warning("this broker is not registered yet: %s", code.name)
            self._refusal = code
            self._deadlines.schedule(self._clock.mono_ms() + _RETRY_MS, self.register)
        else:
            self.epoch, self._is_known = answer.broker_epoch, True
            self.image_published(self._channel.image)

    def image_published(self, image: MetadataImage) -> None:
        """The metadata have moved on."""
        broker = image.brokers.get(self._registration.broker_id)
        if broker is None or broker.epoch != self.epoch:
            return
        if self._next is None and not self._is_asking:
            self._beat()
        if not self._is_active and broker.is_active:
            self._is_active = True
            self.on_active()
        if image.metadata_version > self._registered_level > 0:
            self.register()
        self._registered_level = max(self._registered_level, image.metadata_version)

    def tell(self) -> None:
        """There is something new to say: directories that failed or are cordoned, are full or have room again."""
        if self._is_asking:
            self._is_urgent = True
        elif self.epoch != _UNREGISTERED:
            self._beat()

    def failed(self, directory: bytes) -> None:
        """A log directory is out of service."""
        self._offline = (*self._offline, directory)
        self.tell()

    def end(self, ended: Callable[[], None]) -> None:
        """Leave; `ended` is told when nobody needs this broker any more."""
        self._ended = ended
        if self.epoch == _UNREGISTERED:
            ended()
        else:
            self.tell()

    # ------------------------------------------------------------ heartbeats
    def _beat(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._is_asking, self._is_urgent = True, False
        request = BrokerHeartbeatRequest(
            broker_id=self._registration.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._channel.image.offset,
            want_fence=not self.has_room(),
            want_shut_down=self._ended is not None,
            offline_log_dirs=list(self._offline),
            cordoned_log_dirs=list(self.cordoned()),
        )
        self._channel.submit(request, wall_ms=self._clock.wall_ms(), reply=self._heard)

    def _heard(self, answer: BrokerHeartbeatResponse) -> None:
        self._is_asking = False
        if answer.error_code == ErrorCode.STALE_BROKER_EPOCH:
            _log.warning("the controller does not know this broker any more: it registers again")
            self.epoch = _UNREGISTERED
            self.register()
            return
        if self._ended is not None and answer.should_shut_down:
            self._ended()
            return
        if answer.is_fenced is not self._is_aside and (self._is_aside or not self.has_room()):
            self._is_aside = answer.is_fenced
            _log.warning(
                "fenced for a full disk: it leads nothing" if self._is_aside else "fenced no more: it may lead again"
            )
            self.on_aside(self._is_aside)
        delay_ms = self._interval_ms
        if self._is_urgent:
            delay_ms = 0
        elif self._ended is not None or (answer.is_fenced and self.has_room()):
            delay_ms = _LEAVING_MS
        self._next = self._deadlines.schedule(self._clock.mono_ms() + delay_ms, self._beat)


def _always() -> bool:
    return True


def _nothing() -> None:
    pass


def _ignore(_news: object) -> None:
    pass
