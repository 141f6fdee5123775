"""Validates changes of broker configs on the broker, before the controller gets them.

RULES    1. A broker validates its own configs and the cluster-wide defaults, as Apache Kafka's ConfigAdminManager does:
            it knows which configs are dynamic and whether the new values are valid together.
         2. Key and trust stores are read in a thread, after all other checks.
         3. The controller validates all other resources. Requests sent to the controller itself are not validated here.
NOT HERE The controller's checks (`replication/controller/configs/config_changes.py`), applying changes
         (`broker/node/dynamic_config_applier.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import (
    DynamicBrokerConfig,
    apply_dynamic_configs,
    is_per_broker,
    static_broker_setting,
)
from broker.config.security_configs import find_unenforced_value
from broker.config.ssl_configs import STORE_SETTINGS
from broker.security.node_tls import NodeTls, StoreCheck
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import AlterableConfig, AlterConfigsResource, ReplacedConfigsResource
from replication.completion import Completion
from replication.controller.configs.config_changes import (
    AlterConfigOp,
    new_value,
    replacement_as_changes,
    validate_changes,
)
from replication.io_executor import IoResult, Run
from replication.metadata.image import MetadataImage, ResourceType
from storage.config.config_def import BadSetting, Kind, Setting, java_integer, parse

_LIST_OPERATIONS: Final = {AlterConfigOp.APPEND: "append", AlterConfigOp.SUBTRACT: "subtract"}


class BrokerConfigValidator:
    """Validates the configs of one broker."""

    def __init__(self, config: BrokerConfig, tls: NodeTls, run_in_thread: Callable[[Run], IoResult]) -> None:
        self._config = config
        self._run_in_thread = run_in_thread
        self._tls = tls
        self._node_id = config.node_id
        self._rules = DynamicBrokerConfig(config)

    def check(
        self, image: MetadataImage, requested: AlterConfigsResource | ReplacedConfigsResource, *, is_repeated: bool
    ) -> Completion[str | None] | None:
        """Check a change of configs; returns why changed key or trust stores cannot be used, None if none changes.

        Raises:
            KafkaError: INVALID_REQUEST or INVALID_CONFIG.
        """
        if requested.resource_type != ResourceType.BROKER:
            return None
        changed = (
            replacement_as_changes(image, requested) if isinstance(requested, ReplacedConfigsResource) else requested
        )
        validate_changes(changed.configs, is_repeated=is_repeated)
        check_stores = self._check(image, changed.resource_name, changed.configs)
        if check_stores is None:
            return None
        found: list[str | None] = []
        return self._run_in_thread(lambda: found.append(check_stores())).map(lambda _: found[0])

    def _check(self, image: MetadataImage, name: str, requested: Iterable[AlterableConfig]) -> StoreCheck | None:
        if name:
            check_node_id(name, self._node_id, "Node", f"broker id, expected {self._node_id}, but")
        rules = self._rules
        requested = list(requested)
        _check_list_operations(requested)
        updated = sorted(config.name for config in requested if config.config_operation != AlterConfigOp.DELETE)
        _reject("Cannot update these configs dynamically", filter(rules.is_fixed, updated))
        current = image.configs.get((ResourceType.BROKER, name), {})
        changes = {config.name: new_value(config, current, rules.setting(config.name)) for config in requested}
        for key, value in changes.items():
            _check_value(rules.setting(key), value)
        _reject(
            "These security configs can be dynamically updated only per-listener using the listener prefix",
            filter(STORE_SETTINGS.__contains__, updated),
        )
        if not name:
            sentence = "Cannot update these configs at default cluster level, broker id must be specified"
            _reject(sentence, filter(is_per_broker, updated))
        unenforced = find_unenforced_value({key: value for key, value in changes.items() if value is not None})
        if unenforced is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, unenforced)
        return self._check_together(image, name, changes)

    def _check_together(self, image: MetadataImage, name: str, changes: Mapping[str, str | None]) -> StoreCheck | None:
        """Check the resulting configs; a broker's own configs override the cluster-wide defaults."""
        node_name = str(self._node_id)
        layers = {key: image.configs.get((ResourceType.BROKER, key), {}) for key in ("", node_name)}
        before = {**layers[""], **layers[node_name]}
        changed = {**layers[name and node_name], **changes}
        layers[name and node_name] = {key: value for key, value in changed.items() if value is not None}
        after = {**layers[""], **layers[node_name]}
        error = self._rules.validation_error(before, after)
        if error is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, error)
        return self._tls.store_check(*(apply_dynamic_configs(self._config, texts) for texts in (before, after)))


def check_node_id(name: str, node_id: int, kind: str, expected: str) -> None:
    """Check that a resource is this node; `kind` and `expected` word the errors, which differ as in Apache Kafka.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    try:
        is_this_node = java_integer(name) == node_id
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{kind} id must be an integer, but it is: {name}") from None
    if not is_this_node:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected {expected} received {name}")


def _check_list_operations(requested: Iterable[AlterableConfig]) -> None:
    """Reject elements appended to or subtracted from a config that is no list, or that only exists dynamically."""
    for config in requested:
        verb = _LIST_OPERATIONS.get(config.config_operation)
        if verb is None:
            continue
        setting = static_broker_setting(config.name)
        if setting is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {config.name}")
        if setting.kind is not Kind.LIST:
            sentence = f"Config value {verb} is not allowed for config key: {config.name}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, sentence)


def _reject(sentence: str, names: Iterable[str]) -> None:
    rejected = ", ".join(names)
    if rejected:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{sentence}: [{rejected}]")


def _check_value(row: Setting | None, value: str | None) -> None:
    if row is None or value is None:
        return
    try:
        parse(row, value)
    except BadSetting as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
