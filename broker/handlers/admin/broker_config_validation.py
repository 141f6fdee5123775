"""What this node's broker says of changes of brokers' settings before the controller hears of them.

RULES    1. A broker takes changes of its own settings and of those of all brokers, as Apache Kafka's ConfigAdminManager does:
            it alone knows which of them it can change while it runs, and whether they can be in force together.
         2. Other resources are the controller's alone. Who asks the controller itself is not checked here.
NOT HERE What the controller decides (`replication/controller/configs/config_changes.py`), obeying (`broker/node/dynamic_config_applier.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.config.dynamic_configs import BrokerRules
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import AlterableConfig, AlterConfigsResource, ReplacedConfigsResource
from replication.controller.configs.config_changes import Operation, as_changes, check_form, new_value
from replication.metadata.image import MetadataImage, ResourceType
from storage.config.config_def import BadSetting, Setting, parse


class OwnSettings:
    """The settings of one broker, as far as it is asked of them."""

    def __init__(self, node_id: int, rules: BrokerRules) -> None:
        self._node_id = node_id
        self._rules = rules

    def check(
        self, image: MetadataImage, wanted: AlterConfigsResource | ReplacedConfigsResource, *, is_repeated: bool
    ) -> None:
        """Refuse what this broker cannot have.

        Raises:
            KafkaError: INVALID_REQUEST, or INVALID_CONFIG.
        """
        if wanted.resource_type != ResourceType.BROKER:
            return
        changed = as_changes(image, wanted) if isinstance(wanted, ReplacedConfigsResource) else wanted
        check_form(changed.configs, is_repeated=is_repeated)
        self._check(image, changed.resource_name, changed.configs)

    def _check(self, image: MetadataImage, name: str, wanted: Iterable[AlterableConfig]) -> None:
        if name:
            self._check_node(name)
        rules = self._rules
        given = sorted(config.name for config in wanted if config.config_operation != Operation.DELETE)
        _refuse_all("Cannot update these configs dynamically", filter(rules.is_fixed, given))
        current = image.configs.get((ResourceType.BROKER, name), {})
        changes = {config.name: new_value(config, current, rules.setting(config.name)) for config in wanted}
        for key, value in changes.items():
            _check_value(rules.setting(key), value)
        if not name:
            sentence = "Cannot update these configs at default cluster level, broker id must be specified"
            _refuse_all(sentence, filter(rules.is_per_broker, given))
        self._check_together(image, name, changes)

    def _check_node(self, name: str) -> None:
        try:
            node_id = int(name)
        except ValueError:
            sentence = f"Node id must be an integer, but it is: {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, sentence) from None
        if node_id != self._node_id:
            sentence = f"Unexpected broker id, expected {self._node_id}, but received {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, sentence)

    def _check_together(self, image: MetadataImage, name: str, changes: Mapping[str, str | None]) -> None:
        """Look at what would be in force: the broker's own settings win over those of all brokers."""
        own = str(self._node_id)
        layers = {key: image.configs.get((ResourceType.BROKER, key), {}) for key in ("", own)}
        before = {**layers[""], **layers[own]}
        changed = {**layers[name and own], **changes}
        layers[name and own] = {key: value for key, value in changed.items() if value is not None}
        found = self._rules.why_not(before, {**layers[""], **layers[own]})
        if found is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, found)


def _refuse_all(sentence: str, names: Iterable[str]) -> None:
    found = ", ".join(names)
    if found:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{sentence}: [{found}]")


def _check_value(row: Setting | None, value: str | None) -> None:
    if row is None or value is None:
        return
    try:
        parse(row, value)
    except BadSetting as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
