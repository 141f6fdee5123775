"""What clients with quotas have used: bytes produced and fetched, and time of requests (Kafka: ClientQuotaManager).

RULES    1. A client without a quota has no sensors and costs nothing; Apache Kafka measures it too, for its metrics.
         2. Quotas can change at any time: a sensor keeps what it measured.
         3. A sensor that was not used for an hour is deleted, and at `MAX_SENSORS` the least recently used tenth: clients
            choose their client ids. All sensors are compared for that, so once a minute, or for as many new ones. The look-ups
            of `MAX_SENSORS` clients are cached, whether these share a sensor or have none.
NOT HERE The arithmetic (`replication/quota_rates.py`), precedence (`replication/metadata/client_quotas.py`), what a request
         used (`request_meter.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from replication.metadata.client_quotas import Quotas, find_quota
from replication.quota_rates import AverageTime, QuotaWindows, SampledRate

PRODUCE: Final = "producer_byte_rate"
FETCH: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
KINDS: Final = (PRODUCE, FETCH, REQUEST)
MAX_SENSORS: Final = 10_000
EXPIRATION_MS: Final = 3_600_000
_CHECK_MS: Final = 60_000


class QuotaSensor:
    """What the clients that share a quota have used."""

    __slots__ = ("bound", "client_id", "rate", "throttle_times", "used_mono_ms", "user", "windows")

    def __init__(self, user: str, client_id: str, windows: QuotaWindows) -> None:
        self.user = user
        self.client_id = client_id
        self.windows = windows
        self.rate = SampledRate(windows)
        self.bound = 0.0
        """The quota, in units per second."""
        self.used_mono_ms = 0
        self.throttle_times = AverageTime()
        """How long clients were made to wait."""

    def record(self, value: float, mono_ms: int) -> int:
        """Count a use; returns how many milliseconds the client must wait."""
        self.used_mono_ms = mono_ms
        self.rate.record(value, mono_ms)
        return self.rate.throttle_ms(self.bound, mono_ms)

    def take_back(self, value: float, mono_ms: int) -> None:
        """Undo a use: its response is not sent."""
        self.rate.record(-value, mono_ms)

    @property
    def max_value(self) -> float:
        """The most that can be used at once."""
        return self.windows.max_value(self.bound)


class ClientSensors(NamedTuple):
    """The sensors of one client; None where it has no quota."""

    produce: QuotaSensor | None
    fetch: QuotaSensor | None
    request: QuotaSensor | None


class ClientQuotaManager:
    """The quotas of the clients of this broker."""

    def __init__(self, windows: QuotaWindows) -> None:
        self._windows = windows
        self._quotas: Quotas = {}
        self._sensors: dict[tuple[str, str, str], QuotaSensor] = {}
        self._check_mono_ms = 0  # when to look for expired sensors
        self._clients: dict[tuple[str, str | None], ClientSensors | None] = {}
        self.is_enabled = False
        """Whether there is any quota of these kinds."""

    def update(self, quotas: Quotas) -> None:
        """Use the quotas of a new image."""
        if quotas is self._quotas:
            return
        self._quotas = quotas
        self._clients.clear()
        self.is_enabled = any(key in KINDS for values in quotas.values() for key in values)

    def find(self, principal: str, client_id: str | None, mono_ms: int) -> ClientSensors | None:
        """The sensors of a client; None: it has no quota. `principal` is "User:name"."""
        try:
            return self._clients[principal, client_id]
        except KeyError:
            pass
        user = principal.partition(":")[2]
        sensors = ClientSensors(*(self._sensor(kind, user, client_id or "", mono_ms) for kind in KINDS))
        found = sensors if any(sensors) else None
        if len(self._clients) >= MAX_SENSORS:
            self._clients.clear()
        self._clients[principal, client_id] = found
        return found

    def sensors(self) -> list[tuple[str, QuotaSensor]]:
        """All sensors, with their kinds."""
        return [(kind, sensor) for (kind, _, _), sensor in self._sensors.items()]

    def _sensor(self, kind: str, user: str, client_id: str, mono_ms: int) -> QuotaSensor | None:
        quota = find_quota(self._quotas, kind, user, client_id)
        if quota is None:
            return None
        key = (kind, quota.user, quota.client_id)
        sensor = self._sensors.get(key)
        if sensor is None:
            self._make_room(mono_ms)
            sensor = self._sensors[key] = QuotaSensor(quota.user, quota.client_id, self._windows)
        sensor.used_mono_ms = mono_ms
        sensor.bound = quota.bound
        return sensor

    def _make_room(self, mono_ms: int) -> None:
        """Delete sensors before another one is created (rule 3)."""
        sensors = self._sensors
        surplus = MAX_SENSORS // 10 if len(sensors) >= MAX_SENSORS else 0
        if not surplus and mono_ms < self._check_mono_ms:
            return
        self._check_mono_ms = mono_ms + _CHECK_MS
        expired = [key for key, sensor in sensors.items() if mono_ms - sensor.used_mono_ms >= EXPIRATION_MS]
        if len(expired) < surplus:
            expired = sorted(sensors, key=lambda key: sensors[key].used_mono_ms)[:surplus]
        for key in expired:
            del sensors[key]
        if expired:
            self._clients.clear()
