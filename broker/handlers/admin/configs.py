"""DescribeConfigs, ListConfigResources: every setting of whatever has settings, its value in force, and where that came
from (KIP-226, KIP-524, KIP-1142).

RULES    1. Sources from the strongest to the weakest: the topic's own, this broker's dynamic, all brokers' dynamic,
            the settings file, the default. Synonyms are listed in that order.
         2. A group's default is the broker setting with "group." before its name; one of a subscription to clients'
            metrics is its own.
         3. A topic's default is listed under the first broker setting that gives it, where that is set; a default that
            comes from another (log.retention.minutes) has no synonyms, as in Apache Kafka.
NOT HERE Changing settings (`topics.py`), the tables (`storage/config/log_config.py`, `broker/config/config_definitions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.config.config_definitions import BROKER_SETTINGS, INTERNAL_SETTINGS
from broker.config.dynamic_configs import DYNAMIC, NOT_IN_FILES
from broker.config.ignored_configs import unused_settings
from broker.handlers.router import RequestContext, Route
from broker.process.log_levels import log_levels
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import (
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from replication.metadata.client_metrics import SUBSCRIPTION_SETTINGS
from replication.metadata.group_configs import GROUP_SETTINGS
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.topic_names import check_topic_name
from storage.config.config_def import Kind, Setting, parse, to_text
from storage.config.log_config import SYNONYMS, TOPIC_SETTINGS, broker_synonyms, topic_default


class Source:
    """Where a value came from, numbered as on the wire."""

    TOPIC = 1
    THIS_BROKER = 2
    ALL_BROKERS = 3
    FILE = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class _Given(NamedTuple):
    """A value under a name, from one source."""

    name: str
    text: str | None
    source: int


_Layers = list[tuple[int, Mapping[str, str]]]
"""The settings of a broker by source, the strongest first."""

_REFUSALS = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
_LISTED = [
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
]
_HIDDEN = frozenset({"internal.segment.bytes"})


class ConfigHandlers:
    """The handler of this module and what it needs."""

    def __init__(self, image: Callable[[], MetadataImage], config: BrokerConfig, authorizer: Authorizer) -> None:
        self._image = image
        self._config = config
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.DESCRIBE_CONFIGS, 1, 4, self.describe_configs),
            Route(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, self.list_config_resources),
        ]

    def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse:
        """Name what has settings; version 0 asks for subscriptions to clients' metrics."""
        if not self._authorizer.authorize(
            context.principal, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER_NAME
        ):
            return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, config_resources=[])
        asked = [ResourceType.CLIENT_METRICS] if context.api_version == 0 else request.resource_types or _LISTED
        if not set(asked) <= set(_LISTED):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
        found = [
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in dict.fromkeys(asked)
            for name in _names(self._image(), kind)
        ]
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=found)

    def describe_configs(self, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """Describe each resource; one that cannot be described has its own error."""
        return DescribeConfigsResponse(
            results=[self._describe(context, request, resource) for resource in request.resources]
        )

    def _describe(
        self, context: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            error_code=0,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        try:
            wanted = resource.configuration_keys
            result.configs = [
                entry for entry in self._entries(context, resource) if wanted is None or entry.name in wanted
            ]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        if not request.include_synonyms:
            for entry in result.configs:
                entry.synonyms = []
        if not request.include_documentation:
            for entry in result.configs:
                entry.documentation = None
        return result

    def _entries(
        self, context: RequestContext, resource: DescribeConfigsResource
    ) -> Iterable[DescribeConfigsResourceResult]:
        kind, name = resource.resource_type, resource.resource_name
        if kind == ResourceType.TOPIC:
            self._require(context, Resource.TOPIC, name)
            return self._topic(name)
        if kind == ResourceType.GROUP:
            self._require(context, Resource.GROUP, name)
            return self._group(name)
        self._require(context, Resource.CLUSTER, CLUSTER_NAME)
        if kind == ResourceType.BROKER:
            return self._broker(name)
        if kind == ResourceType.CLIENT_METRICS:
            return self._subscription(name)
        if kind == ResourceType.BROKER_LOGGER:
            self._check_logging_broker(name)
            return _loggers()
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")

    def _require(self, context: RequestContext, resource_type: str, name: str) -> None:
        if self._authorizer.authorize(context.principal, Operation.DESCRIBE_CONFIGS, resource_type, name):
            return
        raise KafkaError(_REFUSALS[resource_type], None)

    # ------------------------------------------------------------ topics
    def _topic(self, name: str) -> list[DescribeConfigsResourceResult]:
        check_topic_name(name)
        image = self._image()
        if name not in image.topics_by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
        own = image.topic_config(name)
        layers = self._broker_layers(image)
        return [
            _topic_entry(setting, own, layers) for setting in TOPIC_SETTINGS.values() if setting.name not in _HIDDEN
        ]

    # ------------------------------------------------------------ groups and subscriptions
    def _group(self, name: str) -> list[DescribeConfigsResourceResult]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        image = self._image()
        own = image.configs.get((ResourceType.GROUP, name), {})
        layers = self._broker_layers(image)
        return [_group_entry(setting, own, layers) for setting in GROUP_SETTINGS.values()]

    def _subscription(self, name: str) -> list[DescribeConfigsResourceResult]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        own = self._image().configs.get((ResourceType.CLIENT_METRICS, name), {})
        return [_subscription_entry(setting, own.get(setting.name)) for setting in SUBSCRIPTION_SETTINGS.values()]

    # ------------------------------------------------------------ brokers
    def _broker(self, name: str) -> list[DescribeConfigsResourceResult]:
        image = self._image()
        if not name:
            defaults = image.configs.get((ResourceType.BROKER, ""), {})
            return [
                _entry(_broker_setting(key), text, [_Given(key, text, Source.ALL_BROKERS)], read_only=False)
                for key, text in sorted(defaults.items())
                if key in DYNAMIC
            ]
        self._check_broker_id(name)
        layers = self._broker_layers(image)
        dynamic = {name for source, texts in layers if source != Source.FILE for name in texts}
        known = {**BROKER_SETTINGS, **unused_settings()}
        names = sorted(known.keys() - INTERNAL_SETTINGS | dynamic)
        return [_broker_entry(_broker_setting(name), layers) for name in names]

    def _broker_layers(self, image: MetadataImage) -> _Layers:
        own_name = str(self._config.node_id)
        return [
            (Source.THIS_BROKER, image.configs.get((ResourceType.BROKER, own_name), {})),
            (Source.ALL_BROKERS, image.configs.get((ResourceType.BROKER, ""), {})),
            (Source.FILE, self._config.given),
        ]

    def _check_broker_id(self, name: str) -> None:
        if _broker_id(name) != self._config.node_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._config.node_id} or empty string, but received {name}",
            )

    def _check_logging_broker(self, name: str) -> None:
        own = self._config.node_id
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        if _broker_id(name) != own:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own} but received {name}")


def _broker_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        sentence = f"Broker id must be an integer, but it is: {name}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, sentence) from None


def _names(image: MetadataImage, kind: int) -> Iterable[str]:
    """Of what has settings of a kind."""
    if kind == ResourceType.TOPIC:
        return image.topics_by_name
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(broker_id) for broker_id, broker in image.brokers.items() if not broker.is_fenced]
    return [name for resource, name in image.configs if resource == kind]


def _broker_setting(name: str) -> Setting:
    return BROKER_SETTINGS.get(name) or NOT_IN_FILES.get(name) or unused_settings().get(name) or _unknown(name)


def _unknown(name: str) -> Setting:
    """Nobody knows what it is, so it may be a secret."""
    return Setting(name, Kind.UNKNOWN, None, None, "")


def _topic_entry(setting: Setting, own: Mapping[str, str], layers: _Layers) -> DescribeConfigsResourceResult:
    synonyms = SYNONYMS.get(setting.name)
    givens = _broker_givens(_broker_setting(synonyms[0][0]), layers) if synonyms else []
    text = own.get(setting.name)
    if text is not None:
        givens = [_Given(setting.name, _in_kafkas_spelling(setting, text), Source.TOPIC), *givens]
    else:
        text, _ = topic_default(setting.name, _merged(layers))
    return _entry(setting, _in_kafkas_spelling(setting, text), givens, read_only=False)


def _group_entry(setting: Setting, own: Mapping[str, str], layers: _Layers) -> DescribeConfigsResourceResult:
    row = BROKER_SETTINGS.get(f"group.{setting.name}") or unused_settings().get(f"group.{setting.name}")
    givens = _broker_givens(row, layers) if row else [_Given(setting.name, setting.default, Source.DEFAULT)]
    if setting.name in own:
        givens = [_Given(setting.name, _in_kafkas_spelling(setting, own[setting.name]), Source.GROUP), *givens]
    return _entry(setting, givens[0].text, givens, read_only=False)


def _subscription_entry(setting: Setting, own: str | None) -> DescribeConfigsResourceResult:
    text = _in_kafkas_spelling(setting, setting.default if own is None else own)
    givens = [] if own is None else [_Given(setting.name, text, Source.CLIENT_METRICS)]
    return _entry(setting, text, givens, read_only=False)


def _broker_entry(setting: Setting, layers: _Layers) -> DescribeConfigsResourceResult:
    value = _in_kafkas_spelling(setting, _merged(layers).get(setting.name, setting.default))
    return _entry(setting, value, _broker_givens(setting, layers), read_only=setting.name not in DYNAMIC)


def _broker_givens(setting: Setting, layers: _Layers) -> list[_Given]:
    """What a broker setting and those that speak where it is silent have, the strongest first; nothing where it is unset."""
    if setting.default is None and not any(setting.name in texts for _, texts in layers):
        return []
    givens = []
    for name in broker_synonyms(setting.name):
        givens += [_Given(name, texts[name], source) for source, texts in layers if name in texts]
        default = _broker_setting(name).default
        if default is not None:
            givens.append(_Given(name, default, Source.DEFAULT))
    return givens


def _merged(layers: _Layers) -> dict[str, str]:
    return {name: text for _, texts in reversed(layers) for name, text in texts.items()}


def _entry(
    setting: Setting, value: str | None, givens: list[_Given], *, read_only: bool
) -> DescribeConfigsResourceResult:
    is_sensitive = setting.kind in (Kind.PASSWORD, Kind.UNKNOWN)
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=None if is_sensitive else value,
        read_only=read_only,
        config_source=givens[0].source if givens else Source.DEFAULT,
        is_sensitive=is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(
                name=given.name,
                value=None if is_sensitive else given.text,
                source=given.source,
            )
            for given in givens
        ],
        config_type=setting.kind,
        documentation=setting.documentation,
    )


def _in_kafkas_spelling(setting: Setting, text: str | None) -> str | None:
    return to_text(parse(setting._replace(check=None), text))


def _loggers() -> list[DescribeConfigsResourceResult]:
    return [
        DescribeConfigsResourceResult(
            name=name, value=level, read_only=False, config_source=Source.LOGGER, is_sensitive=False, documentation=""
        )
        for name, level in log_levels().items()
    ]
