"""The client instances that report metrics: their subscriptions and intervals (Kafka: ClientMetricsManager).

RULES    1. A client is identified by its instance id, which it keeps across brokers. It is removed when its connection is
            closed, after three silent intervals (at least a minute), and when there are too many newer ones.
         2. When subscriptions change, every client starts over: metrics, intervals, terminating push.
         3. A client may get its subscription and push once per interval. The first push may follow immediately, since clients
            add jitter; after a retriable error the client may ask again.
         4. Order of checks and error codes are those of Apache Kafka 4.3.
NOT HERE The contents of a subscription (`replication/metadata/client_metrics.py`), of a report (`received_metrics.py`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.errors import ErrorCode
from protocol.primitives import ZERO_UUID
from replication.metadata.client_metrics import (
    ClientAttributes,
    ClientSubscription,
    Subscription,
    client_subscription,
    subscription,
)
from replication.metadata.image import MetadataImage, ResourceType

_log = logging.getLogger("barnabas.telemetry")

MAX_INSTANCES: Final = 16_384
MIN_EXPIRY_MS: Final = 60_000
_RETRIABLE_ERRORS: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_NEVER: Final = -(2**62)


@dataclass(slots=True, eq=False)
class ClientInstance:
    """One client."""

    instance_id: bytes
    facts: ClientAttributes
    subscriptions: list[Subscription]
    """All subscriptions when this instance was created."""
    is_ending: bool = False
    """It has sent its terminating push."""
    error: ErrorCode = ErrorCode.NONE
    """The error of its last push."""
    connection_id: int = 0
    expires_ms: int = 0
    """Without a request until then, the client is removed."""
    wanted: ClientSubscription = field(init=False)
    """Its effective subscription, and the id of that."""
    subscription_id: int = field(init=False)
    _last_get_ms: int = _NEVER
    _last_push_ms: int = _NEVER

    def __post_init__(self) -> None:
        self.wanted = client_subscription(self.facts, self.subscriptions)
        self.subscription_id = self.wanted.subscription_id(self.instance_id)

    def touch(self, connection_id: int, now_ms: int) -> None:
        """Records a request on a connection."""
        self.connection_id = connection_id
        self.expires_ms = now_ms + max(MIN_EXPIRY_MS, 3 * self.wanted.interval_ms)

    def may_get_subscription(self, now_ms: int) -> bool:
        """Whether GetTelemetrySubscriptions is within the rate limit."""
        if now_ms - max(self._last_get_ms, self._last_push_ms) < self.wanted.interval_ms:
            return self.error in _RETRIABLE_ERRORS
        self._last_get_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        """Whether PushTelemetry is within the rate limit."""
        if self._last_get_ms <= self._last_push_ms and now_ms - self._last_push_ms < self.wanted.interval_ms:
            return False
        self._last_push_ms = now_ms
        return True


class ClientInstances:
    """All client instances; `new_id` generates an instance id."""

    def __init__(self, image: Callable[[], MetadataImage], new_id: Callable[[], bytes]) -> None:
        self._image = image
        self._new_id = new_id
        self._instances: OrderedDict[bytes, ClientInstance] = OrderedDict()
        self._configs: Mapping[tuple[int, str], dict[str, str]] | None = None
        self._settings: dict[str, dict[str, str]] = {}
        self._subscriptions: list[Subscription] = []

    def of(
        self, instance_id: bytes, connection_id: int, facts: Callable[[bytes], ClientAttributes], now_ms: int
    ) -> ClientInstance:
        """The client with an id, known or new; the zero id gets a new one. `facts` returns the labels of a new client."""
        self._refresh_subscriptions()
        self._remove_expired(now_ms)
        if instance_id == ZERO_UUID:
            instance_id = self._new_id()
        known = self._instances.get(instance_id)
        if known is None:
            known = self._create(instance_id, facts(instance_id))
        elif known.subscriptions is not self._subscriptions:
            known = self._create(instance_id, known.facts)
        known.touch(connection_id, now_ms)
        self._instances.move_to_end(instance_id)
        return known

    def forget(self, instance_id: bytes, connection_id: int) -> None:
        """Its connection is closed; the client may have another one by now."""
        known = self._instances.get(instance_id)
        if known is not None and known.connection_id == connection_id:
            del self._instances[instance_id]

    def _create(self, instance_id: bytes, facts: ClientAttributes) -> ClientInstance:
        instance = self._instances[instance_id] = ClientInstance(instance_id, facts, self._subscriptions)
        return instance

    def _remove_expired(self, now_ms: int) -> None:
        instances = self._instances
        while instances:
            oldest = next(iter(instances.values()))
            if len(instances) <= MAX_INSTANCES and oldest.expires_ms > now_ms:
                return
            del instances[oldest.instance_id]

    def _refresh_subscriptions(self) -> None:
        configs = self._image().configs
        if configs is self._configs:
            return
        self._configs = configs
        settings = {name: texts for (kind, name), texts in configs.items() if kind == ResourceType.CLIENT_METRICS}
        if settings != self._settings:
            self._settings = settings
            self._subscriptions = list(_usable(settings))


def _usable(settings: Mapping[str, Mapping[str, str]]) -> Iterator[Subscription]:
    """The valid subscriptions; an invalid one, written by another broker, matches no client."""
    for name, configs in settings.items():
        try:
            yield subscription(configs)
        except ValueError as error:
            _log.warning("ignoring the client metrics subscription %s: %s", name, error)
