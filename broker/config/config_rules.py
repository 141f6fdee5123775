"""Validates combinations of settings, with Kafka's messages where Kafka has the rule.

RULES    1. A broker needs a client listener, a controller one of controller.listener.names; neither may have the other's.
         2. A combined node without other nodes needs no controller listener.
NOT HERE The other controllers (`quorum_config.py`).
"""

from __future__ import annotations

from broker.config.broker_config import ALL_LOG_DIRS, BrokerConfig
from protocol.compression import Compression
from storage.config.config_def import BadSetting
from storage.config.log_config import log_config

_MIN_DEDUPE_BUFFER_BYTES = 1024 * 1024
_NAMES = "controller.listener.names"
_BOTH = {"broker", "controller"}


def find_listener_error(node: BrokerConfig) -> str | None:
    """The first error; None if the listeners are valid."""
    listeners = [*node.listeners, *node.controller_listeners]
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        return "listeners: each listener needs a unique name"
    addresses = [(listener.host, listener.port) for listener in listeners]
    for host, port in sorted(addresses):
        if port and addresses.count((host, port)) > 1:
            return f"listeners: each listener must have a different port, and port {port} is named twice"
    return _role_error(node) or _advertised_error(node, names)


def _role_error(node: BrokerConfig) -> str | None:
    unknown = node.roles - _BOTH
    if unknown:
        return f"process.roles: {', '.join(sorted(unknown))} is not a role: use broker or controller"
    if node.roles == {"broker"}:
        return _broker_error(node)
    if node.roles == {"controller"}:
        return _controller_error(node)
    return None if node.listeners else _NO_BROKER_LISTENER


_NO_BROKER_LISTENER = (
    f"There must be at least one broker advertised listener. Perhaps all listeners appear in {_NAMES}? Such as "
    "PLAINTEXT://127.0.0.1:9092"
)


def _broker_error(node: BrokerConfig) -> str | None:
    if not node.controller_listener_names:
        return f'Missing required configuration "{_NAMES}" which has no default value.'
    if node.controller_listeners:
        return (
            f"{_NAMES} must not contain a value appearing in the 'listeners' configuration when running KRaft with just the "
            "broker role"
        )
    if not node.texts("controller.quorum.voters") and not node.texts("controller.quorum.bootstrap.servers"):
        return (
            "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of bootstrap controllers "
            "or controller.quorum.voters must contain a parseable set of controllers."
        )
    return None if node.listeners else _NO_BROKER_LISTENER


def _controller_error(node: BrokerConfig) -> str | None:
    if not node.controller_listeners:
        return (
            f"{_NAMES} must contain at least one value appearing in the 'listeners' configuration when running the KRaft "
            "controller role, such as CONTROLLER://127.0.0.1:9093"
        )
    if node.listeners:
        return (
            f"The listeners config must only contain KRaft controller listeners from {_NAMES} when "
            "process.roles=controller"
        )
    return None


def _advertised_error(node: BrokerConfig, names: list[str]) -> str | None:
    advertised = node.advertised_listeners
    if len(advertised) != len(node.texts("advertised.listeners")):
        return "advertised.listeners: each listener needs a unique name"
    if set(advertised) - set(names):
        return (
            "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. Found "
            f"{','.join(advertised)}. The valid options based on the current configuration are {','.join(names)}"
        )
    if any(listener.host == "0.0.0.0" for listener in advertised.values()):  # noqa: S104
        return "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address."
    clients = [listener.name for listener in node.listeners]
    if "broker" in node.roles and node.inter_broker_listener not in clients:
        return (
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options based on "
            f"currently configured listeners are {','.join(clients)}"
        )
    return None


def find_conflict(config: BrokerConfig) -> str | None:
    """Validates combinations of settings, with Kafka's messages; None if they are valid."""
    return (
        _check_node_id(config)
        or _check_metrics_listener(config)
        or _check_roll_time(config)
        or _check_retention(config)
        or find_cleaner_conflict(config)
        or _check_timeouts(config)
        or _check_sizes(config)
        or _check_cordoned_dirs(config)
        or _check_groups(config)
        or _check_classes(config)
    )


def _check_node_id(config: BrokerConfig) -> str | None:
    if int(config.given.get("broker.id", config.node_id)) != config.node_id:
        return "You must set `node.id` to the same value as `broker.id`."
    return None


def _check_metrics_listener(config: BrokerConfig) -> str | None:
    if config.metrics_listener is not None and config.metrics_listener.name != "HTTP":
        return "barnabas.metrics.listener: it speaks HTTP and nothing else, such as HTTP://127.0.0.1:9464"
    return None


def _check_roll_time(config: BrokerConfig) -> str | None:
    for name, lowest in (("log.roll.ms", 1), ("log.roll.jitter.ms", 0)):
        value = config.value(name)
        if isinstance(value, int) and value < lowest:
            return f"{name} must be greater than or equal to {lowest}"
    return None


def _check_retention(config: BrokerConfig) -> str | None:
    try:
        defaults = log_config({}, config.given)
    except BadSetting as invalid:  # a broker's value that no topic may have
        return str(invalid)
    if defaults.retention_ms == 0:
        return "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    return None


def find_cleaner_conflict(config: BrokerConfig) -> str | None:
    """Why the settings of compaction are invalid together; None if they are valid."""
    threads, _, _, resources = config.cleaner_settings()
    if threads and resources.memory_bytes <= _MIN_DEDUPE_BUFFER_BYTES:
        return "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
    return None


def _check_timeouts(config: BrokerConfig) -> str | None:
    wait = config.number("replica.fetch.wait.max.ms")
    if wait > config.number("replica.socket.timeout.ms"):
        return (
            "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary socket "
            "timeouts"
        )
    if wait > config.number("replica.lag.time.max.ms"):
        return (
            "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent frequent "
            "changes in ISR"
        )
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    if 0 <= config.number(idle) <= config.number(delay):
        return (
            f"{delay}={config.number(delay)} should always be less than {idle}={config.number(idle)} to prevent failed "
            "authentication responses from timing out"
        )
    return None


def _check_sizes(config: BrokerConfig) -> str | None:
    if 0 < config.number("queued.max.request.bytes") < config.number("socket.request.max.bytes"):
        return "queued.max.request.bytes must be larger or equal to socket.request.max.bytes"
    for name in ("offsets.topic.compression.codec", "share.coordinator.state.topic.compression.codec"):
        if config.number(name) not in set(Compression):
            return f"Unknown compression type id: {config.number(name)}"
    return None


def _check_cordoned_dirs(config: BrokerConfig) -> str | None:
    cordoned = config.cordoned_log_dirs()
    if ALL_LOG_DIRS in cordoned:
        return f"When cordoned.log.dirs is set to {ALL_LOG_DIRS}, it must not contain other values"
    missing = [path for path in dict.fromkeys(cordoned) if path not in config.log_dirs]
    if missing:
        return (
            "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}"
        )
    return None


_BOUNDED = (
    ("group.consumer.", "heartbeat.interval.ms"),
    ("group.consumer.", "session.timeout.ms"),
    ("group.consumer.", "assignment.interval.ms"),
    ("group.share.", "heartbeat.interval.ms"),
    ("group.share.", "session.timeout.ms"),
    ("group.share.", "record.lock.duration.ms"),
    ("group.share.", "delivery.count.limit"),
    ("group.share.", "partition.max.record.locks"),
    ("group.share.", "assignment.interval.ms"),
    ("group.streams.", "heartbeat.interval.ms"),
    ("group.streams.", "session.timeout.ms"),
    ("group.streams.", "assignment.interval.ms"),
)
"""Settings between a `min.` and a `max.` setting of the same prefix."""


def _check_groups(config: BrokerConfig) -> str | None:
    if "classic" not in config.texts("group.coordinator.rebalance.protocols"):
        return "Disabling the 'classic' protocol is not supported."
    for prefix, name in _BOUNDED:
        lowest, highest = f"{prefix}min.{name}", f"{prefix}max.{name}"
        for one, other in ((highest, lowest), (prefix + name, lowest)):
            if config.number(one) < config.number(other):
                return f"{one} must be greater than or equal to {other}"
        if config.number(prefix + name) > config.number(highest):
            return f"{prefix}{name} must be less than or equal to {highest}"
    for prefix in ("group.consumer.", "group.share.", "group.streams."):
        heartbeat, session = f"{prefix}heartbeat.interval.ms", f"{prefix}session.timeout.ms"
        if config.number(heartbeat) >= config.number(session):
            return f"{heartbeat} must be less than {session}"
    standbys, most = "group.streams.num.standby.replicas", "group.streams.max.standby.replicas"
    if config.number(standbys) > config.number(most):
        return f"{standbys} must be less than or equal to {most}"
    if config.number("group.share.max.share.sessions") < config.number("group.share.max.size"):
        return "group.share.max.share.sessions must be greater than or equal to group.share.max.size"
    return None


_KAFKA_CLASSES = "org.apache.kafka."
_LISTS_OF_CLASSES = {
    "group.share.assignors": ("simple",),
    "kafka.metrics.reporters": (),
    "metric.reporters": (),
}
"""Settings with the names of classes, and names that are none."""


def _check_classes(config: BrokerConfig) -> str | None:
    """Kafka's own classes need not be loaded; this broker has no others."""
    for name, others in _LISTS_OF_CLASSES.items():
        for value in config.texts(name):
            if value not in others and not value.startswith(_KAFKA_CLASSES):
                return f"{name}: Class {value} cannot be found"
    return None
