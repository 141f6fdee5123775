"""The quotas of partitions that clients create, add and delete (KIP-599; Kafka: ControllerMutationQuotaManager).

RULES    1. Only the active controller counts, with a token bucket for each quota; another controller starts with full buckets.
         2. Strict, for clients that know THROTTLING_QUOTA_EXCEEDED: a topic is refused while the bucket is overdrawn. For
            others the topic is changed, and the client must wait.
         3. One topic may overdraw the bucket. Requests that only validate count too.
NOT HERE Which topics are changed (`partitions/topics.py`), muting (`broker/handlers/admin/topics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import admin
from protocol.schema import Message
from replication.controller.controller_client import Client
from replication.metadata.client_quotas import Entity, find_quota, quotas_of
from replication.quota_rates import QuotaWindows, TokenBucket

KEY: Final = "controller_mutation_rate"
STRICT_SINCE: Final[Mapping[type[Message], int]] = {
    admin.CreateTopicsRequest: 6,
    admin.DeleteTopicsRequest: 5,
    admin.CreatePartitionsRequest: 3,
}
"""The first versions whose clients know the error."""
_MAX_BUCKETS: Final = 10_000


class MutationQuota:
    """The quota of one request."""

    def __init__(self, bucket: TokenBucket, bound: float, now_ms: Callable[[], int], *, is_strict: bool) -> None:
        self._bucket = bucket
        self._bound = bound
        self._now_ms = now_ms
        self._is_strict = is_strict
        self._is_exceeded = False

    def charge(self, partitions: int) -> None:
        """Count changed partitions of a topic.

        Raises:
            KafkaError: the quota is exceeded, and the client knows the error.
        """
        now_ms = self._now_ms()
        if self._is_strict and self._bucket.tokens(self._bound, now_ms) < 0:
            self._is_exceeded = True
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._bucket.record(partitions, self._bound, now_ms)
        if not self._is_strict and self._bucket.tokens(self._bound, now_ms) < 0:
            self._is_exceeded = True

    @property
    def throttle_ms(self) -> int:
        """How long the client must wait."""
        return self._bucket.throttle_ms(self._bound, self._now_ms()) if self._is_exceeded else 0


class MutationQuotas:
    """The quotas of all clients, on one controller."""

    def __init__(self, static_configs: Mapping[str, str], now_ms: Callable[[], int]) -> None:
        """`now_ms` returns monotonic milliseconds."""
        samples = int(static_configs.get("controller.quota.window.num", "11"))
        self._windows = QuotaWindows(
            samples, int(static_configs.get("controller.quota.window.size.seconds", "1")) * 1000
        )
        self._now_ms = now_ms
        self._records: Mapping[tuple[object, ...], Message] = {}
        self._quotas: dict[Entity, dict[str, float]] = {}
        self._buckets: dict[tuple[str, str], TokenBucket] = {}  # least recently used first

    def find(
        self, records: Mapping[tuple[object, ...], Message], request: Message, client: Client | None
    ) -> MutationQuota | None:
        """The quota of a request; None: it has none. `records` are the `opaque_records` of the image."""
        strict_since = STRICT_SINCE.get(type(request))
        if strict_since is None or client is None:
            return None
        if records is not self._records:
            self._records, self._quotas = records, quotas_of(records)
        quota = find_quota(self._quotas, KEY, client.principal.partition(":")[2], client.client_id or "")
        if quota is None:
            return None
        bucket = self._buckets.pop((quota.user, quota.client_id), None) or TokenBucket(self._windows)
        self._buckets[quota.user, quota.client_id] = bucket
        if len(self._buckets) > _MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        is_strict = client.api_version is None or client.api_version >= strict_since
        return MutationQuota(bucket, quota.bound, self._now_ms, is_strict=is_strict)
