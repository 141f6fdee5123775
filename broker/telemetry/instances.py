"""The clients that hand in metrics: what is wanted of each, and whether it may speak now.

RULES    1. A client is known by its instance id, which it keeps from broker to broker; it is forgotten when its connection
            ends, when it was silent for three intervals (a minute at least), and when too many others came after it.
         2. With another subscription everybody begins anew: what is wanted, the intervals, a farewell.
         3. A client asks and sends once in an interval. The first report may follow the question at once, for clients
            choose a part of the interval by chance, and who was told that it had something wrong may ask again.
         4. Order and codes are Apache Kafka 4.3's (ClientMetricsManager).
NOT HERE What a subscription wants (`replication/metadata/client_metrics.py`), what comes of a report (`received.py`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from protocol.errors import ErrorCode
from protocol.primitives import ZERO_UUID
from replication.metadata.client_metrics import Facts, Subscription, subscription, wanted_of
from replication.metadata.image import MetadataImage, ResourceType

_log = logging.getLogger("barnabas.telemetry")

MOST_INSTANCES: Final = 16_384
LEAST_EXPIRY_MS: Final = 60_000
_MAY_ASK_AGAIN: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_NEVER: Final = -(2**62)


class ClientInstance:
    """One client."""

    __slots__ = (
        "_asked_ms", "_sent_ms", "connection_id", "error", "facts", "instance_id", "is_ending", "number",
        "subscriptions", "until_ms", "wanted",
    )  # fmt: skip

    def __init__(self, instance_id: bytes, facts: Facts, subscriptions: list[Subscription]) -> None:
        self.instance_id = instance_id
        self.facts = facts
        self.subscriptions = subscriptions
        """All that there were when it was last seen to."""
        self.wanted = wanted_of(facts, subscriptions)
        self.number = self.wanted.subscription_id(instance_id)
        """Of its subscription."""
        self.is_ending = False
        """It has sent its last report."""
        self.error = ErrorCode.NONE
        """What its last report was answered with."""
        self.connection_id = 0
        self.until_ms = 0
        """Silent for so long, it is forgotten."""
        self._asked_ms = self._sent_ms = _NEVER

    def heard(self, connection_id: int, now_ms: int) -> None:
        """It lives, and this is its connection now."""
        self.connection_id = connection_id
        self.until_ms = now_ms + max(LEAST_EXPIRY_MS, 3 * self.wanted.interval_ms)

    def may_ask(self, now_ms: int) -> bool:
        """Whether it is time for a question."""
        if now_ms - max(self._asked_ms, self._sent_ms) < self.wanted.interval_ms:
            return self.error in _MAY_ASK_AGAIN
        self._asked_ms = now_ms
        return True

    def may_send(self, now_ms: int) -> bool:
        """Whether it is time for a report."""
        if self._asked_ms <= self._sent_ms and now_ms - self._sent_ms < self.wanted.interval_ms:
            return False
        self._sent_ms = now_ms
        return True


class ClientInstances:
    """All of them.

    Args:
        image: the metadata, with the subscriptions.
        new_id: makes an instance id.
    """

    def __init__(self, image: Callable[[], MetadataImage], new_id: Callable[[], bytes]) -> None:
        self._image = image
        self._new_id = new_id
        self._instances: OrderedDict[bytes, ClientInstance] = OrderedDict()
        self._configs: Mapping[tuple[int, str], dict[str, str]] | None = None
        self._settings: dict[str, dict[str, str]] = {}
        self._subscriptions: list[Subscription] = []

    def of(
        self, instance_id: bytes, connection_id: int, facts: Callable[[bytes], Facts], now_ms: int
    ) -> ClientInstance:
        """The client with an id, new or known; zero: it has none and gets one.

        Args:
            instance_id: what it says.
            connection_id: where it says so.
            facts: what is known of the client with an id, from its connection.
            now_ms: monotonic.
        """
        self._look_for_changes()
        self._forget_silent(now_ms)
        if instance_id == ZERO_UUID:
            instance_id = self._new_id()
        known = self._instances.get(instance_id)
        if known is None:
            known = self._make(instance_id, facts(instance_id))
        elif known.subscriptions is not self._subscriptions:
            known = self._make(instance_id, known.facts)
        known.heard(connection_id, now_ms)
        self._instances.move_to_end(instance_id)
        return known

    def forget(self, instance_id: bytes, connection_id: int) -> None:
        """A connection has ended; the client with the id may have another by now."""
        known = self._instances.get(instance_id)
        if known is not None and known.connection_id == connection_id:
            del self._instances[instance_id]

    def _make(self, instance_id: bytes, facts: Facts) -> ClientInstance:
        made = self._instances[instance_id] = ClientInstance(instance_id, facts, self._subscriptions)
        return made

    def _forget_silent(self, now_ms: int) -> None:
        instances = self._instances
        while instances:
            oldest = next(iter(instances.values()))
            if len(instances) <= MOST_INSTANCES and oldest.until_ms > now_ms:
                return
            del instances[oldest.instance_id]

    def _look_for_changes(self) -> None:
        configs = self._image().configs
        if configs is self._configs:
            return
        self._configs = configs
        settings = {name: own for (kind, name), own in configs.items() if kind == ResourceType.CLIENT_METRICS}
        if settings != self._settings:
            self._settings = settings
            self._subscriptions = list(_usable(settings))


def _usable(settings: Mapping[str, Mapping[str, str]]) -> Iterator[Subscription]:
    """The subscriptions; one that another broker took and that says nothing here means nobody."""
    for name, own in settings.items():
        try:
            yield subscription(own)
        except ValueError as error:
            _log.warning("the subscription %s to clients' metrics means nobody: %s", name, error)
