"""The quotas of partitions that clients create, add and delete (KIP-599; Kafka: ControllerMutationQuotaManager).

RULES    1. Only the active controller counts, with a token bucket for each quota; another controller starts with full buckets.
         2. Strict, for clients that know THROTTLING_QUOTA_EXCEEDED: a topic is refused while the bucket is overdrawn. For
            others the topic is changed, and the client must wait.
         3. One topic may overdraw the bucket. Requests that only validate count too.
         4. A sensor that was not used for an hour is not shown. At `_MAX_SENSORS` the least recently used one is deleted.
NOT HERE Which topics are changed (`partitions/topics.py`), muting (`broker/handlers/admin/topics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import admin
from protocol.schema import Message
from replication.controller.controller_client import Client
from replication.metadata.client_quotas import Quotas, find_quota
from replication.quota_rates import METRIC_WINDOWS, AverageTime, QuotaWindows, SampledRate, TokenBucket

KEY: Final = "controller_mutation_rate"
STRICT_SINCE: Final[Mapping[type[Message], int]] = {
    admin.CreateTopicsRequest: 6,
    admin.DeleteTopicsRequest: 5,
    admin.CreatePartitionsRequest: 3,
}
"""The first versions whose clients know the error."""
_MAX_SENSORS: Final = 10_000
_EXPIRATION_MS: Final = 3_600_000


class MutationSensor:
    """What the clients that share a quota have changed."""

    __slots__ = ("_bucket", "_rate", "bound", "client_id", "throttle_times", "used_mono_ms", "user")

    def __init__(self, user: str, client_id: str, windows: QuotaWindows) -> None:
        self.user = user
        self.client_id = client_id
        self.bound = 0.0
        """The quota, in partitions per second."""
        self.used_mono_ms = 0
        self.throttle_times = AverageTime()
        """How long clients must wait, by the decisions about their requests."""
        self._bucket = TokenBucket(windows)
        self._rate = SampledRate(METRIC_WINDOWS)

    def record(self, partitions: int, mono_ms: int) -> None:
        """Count changed partitions."""
        self._bucket.record(partitions, self.bound, mono_ms)
        self._rate.record(partitions, mono_ms)

    def tokens(self, mono_ms: int) -> float:
        """How many partitions may be changed at once; below zero while the quota is exceeded."""
        return self._bucket.tokens(self.bound, mono_ms)

    def throttle_ms(self, mono_ms: int) -> int:
        """The time until the quota is no longer exceeded."""
        return self._bucket.throttle_ms(self.bound, mono_ms)

    def rate(self, mono_ms: int) -> float:
        """Changed partitions per second in the last minute."""
        return self._rate.measure(mono_ms)


class MutationQuota:
    """The quota of one request."""

    def __init__(self, sensor: MutationSensor, now_ms: Callable[[], int], *, is_strict: bool) -> None:
        self._sensor = sensor
        self._now_ms = now_ms
        self._is_strict = is_strict
        self._is_exceeded = False

    def charge(self, partitions: int) -> None:
        """Count changed partitions of a topic.

        Raises:
            KafkaError: the quota is exceeded, and the client knows the error.
        """
        now_ms = self._now_ms()
        if self._is_strict and self._sensor.tokens(now_ms) < 0:
            self._is_exceeded = True
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._sensor.record(partitions, now_ms)
        if not self._is_strict and self._sensor.tokens(now_ms) < 0:
            self._is_exceeded = True

    def throttle(self) -> int:
        """Decide how long the client must wait, in milliseconds; called once, after all topics."""
        if not self._is_exceeded:
            return 0
        now_ms = self._now_ms()
        throttle_ms = self._sensor.throttle_ms(now_ms)
        self._sensor.throttle_times.record(throttle_ms, now_ms)
        return throttle_ms


class MutationQuotas:
    """The quotas of all clients, on one controller."""

    def __init__(self, static_configs: Mapping[str, str], now_ms: Callable[[], int]) -> None:
        """`now_ms` returns monotonic milliseconds."""
        samples = int(static_configs.get("controller.quota.window.num", "11"))
        self._windows = QuotaWindows(
            samples, int(static_configs.get("controller.quota.window.size.seconds", "1")) * 1000
        )
        self._now_ms = now_ms
        self._sensors: dict[tuple[str, str], MutationSensor] = {}  # least recently used first

    def find(self, quotas: Quotas, request: Message, client: Client | None) -> MutationQuota | None:
        """The quota of a request; None: it has none. `quotas` are those of the image."""
        strict_since = STRICT_SINCE.get(type(request))
        if strict_since is None or client is None:
            return None
        quota = find_quota(quotas, KEY, client.principal.partition(":")[2], client.client_id or "")
        if quota is None:
            return None
        key = quota.user, quota.client_id
        sensor = self._sensors.pop(key, None) or MutationSensor(*key, self._windows)
        self._sensors[key] = sensor
        if len(self._sensors) > _MAX_SENSORS:
            del self._sensors[next(iter(self._sensors))]
        sensor.bound = quota.bound
        sensor.used_mono_ms = self._now_ms()
        is_strict = client.api_version is None or client.api_version >= strict_since
        return MutationQuota(sensor, self._now_ms, is_strict=is_strict)

    def sensors(self) -> list[MutationSensor]:
        """The sensors that were used in the last hour."""
        oldest_ms = self._now_ms() - _EXPIRATION_MS
        return [sensor for sensor in self._sensors.values() if sensor.used_mono_ms > oldest_ms]
