"""DescribeConfigs and ListConfigResources (KIP-226, KIP-524, KIP-1142).

RULES    1. Config sources in order of precedence: topic, this broker's dynamic config, cluster-wide dynamic config,
            settings file, default. Synonyms are in this order.
         2. A group config's default is the broker config with the prefix "group."; a client metrics subscription has its own
            defaults.
         3. A broker shows every setting of its file. One of a listener (`listener.name.…`) has the general one as synonym. The
            value of an unknown one is not shown: it may be a secret.
         4. A topic config's synonyms start with the first broker config that sets it; a default from another one
            (log.retention.minutes) has no synonyms, as in Apache Kafka.
NOT HERE Changing configs (`topics.py`), the definitions (`storage/config/log_config.py`,
         `broker/config/config_definitions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker.config.broker_config import BrokerConfig
from broker.config.config_definitions import BROKER_SETTINGS, INTERNAL_SETTINGS
from broker.config.dynamic_configs import DYNAMIC, broker_setting, is_dynamic, usable_configs
from broker.config.ignored_configs import IGNORED
from broker.config.listener_prefix import general_name
from broker.config.ssl_definitions import IGNORED_AND_SSL
from broker.handlers.admin.broker_config_validation import check_node_id
from broker.handlers.authorization import DENIALS, AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.process.log_levels import log_levels
from broker.security.authorizer import Authorizer, Operation, Resource
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
from replication.metadata.acls import CLUSTER_NAME
from replication.metadata.client_metrics import SUBSCRIPTION_SETTINGS
from replication.metadata.group_configs import GROUP_SETTINGS
from replication.metadata.image import MetadataImage, ResourceType
from replication.metadata.topic_names import check_topic_name
from storage.config.config_def import Kind, Setting, parse, to_text
from storage.config.log_config import OPTIONAL_TOPIC_SETTINGS, SYNONYMS, TOPIC_SETTINGS, broker_synonyms, topic_default


class ConfigSource:
    """Source of a config value, with the numbers of the protocol."""

    TOPIC = 1
    THIS_BROKER = 2
    ALL_BROKERS = 3
    FILE = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


_Layers = list[tuple[int, Mapping[str, str]]]
"""A broker's configs by source, in order of precedence."""

_LISTED = [
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
]


class ConfigHandlers(AuthorizingHandlers):
    """The handlers of DescribeConfigs and ListConfigResources."""

    def __init__(self, image: Callable[[], MetadataImage], config: BrokerConfig, authorizer: Authorizer) -> None:
        self._image = image
        self._config = config
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.DESCRIBE_CONFIGS, 1, 4, self.describe_configs),
            Route(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, self.list_config_resources),
        ]

    def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse:
        """Handle ListConfigResources; version 0 lists client metrics subscriptions only."""
        if not self._is_authorized(context, Operation.DESCRIBE_CONFIGS):
            return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, config_resources=[])
        requested_types = (
            [ResourceType.CLIENT_METRICS] if context.api_version == 0 else request.resource_types or _LISTED
        )
        if not set(requested_types) <= set(_LISTED):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
        found = [
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in dict.fromkeys(requested_types)
            for name in _names(self._image(), kind, context.connection.listener_name)
        ]
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=found)

    def describe_configs(self, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """Handle DescribeConfigs; errors are per resource, and resources without the right are last."""
        topics = _TopicEntries(self._broker_layers(self._image()))
        results = [self._describe(context, request, resource, topics) for resource in request.resources]
        return DescribeConfigsResponse(results=sorted(results, key=lambda result: result.error_code in DENIALS))

    def _describe(
        self,
        context: RequestContext,
        request: DescribeConfigsRequest,
        resource: DescribeConfigsResource,
        topics: _TopicEntries,
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            error_code=0,
            error_message="",
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        try:
            keys, entries = resource.configuration_keys, self._entries(context, resource, topics)
            result.configs = [entry for entry in entries if not keys or entry.name in keys]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message or ""
        for entry in result.configs:
            if not request.include_synonyms:
                entry.synonyms = []
            if not request.include_documentation:
                entry.documentation = None
        return result

    def _entries(
        self, context: RequestContext, resource: DescribeConfigsResource, topics: _TopicEntries
    ) -> Iterable[DescribeConfigsResourceResult]:
        kind, name = resource.resource_type, resource.resource_name
        if kind == ResourceType.TOPIC:
            self._require(context, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name)
            return self._topic(name, topics)
        if kind == ResourceType.GROUP:
            self._require(context, Operation.DESCRIBE_CONFIGS, Resource.GROUP, name)
            return self._group(name)
        self._require(context, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
        if kind == ResourceType.BROKER:
            return self._broker(name)
        if kind == ResourceType.CLIENT_METRICS:
            return self._subscription(name)
        if kind == ResourceType.BROKER_LOGGER:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            check_node_id(name, self._config.node_id, "Broker", f"broker id, expected {self._config.node_id} but")
            return _loggers()
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")

    # ------------------------------------------------------------ topics
    def _topic(self, name: str, topics: _TopicEntries) -> list[DescribeConfigsResourceResult]:
        check_topic_name(name)
        image = self._image()
        if name not in image.topics_by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
        return topics.of(image.topic_config(name))

    # ------------------------------------------------------------ groups and subscriptions
    def _group(self, name: str) -> list[DescribeConfigsResourceResult]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        image = self._image()
        overrides = image.configs.get((ResourceType.GROUP, name), {})
        layers = self._broker_layers(image)
        return [_group_entry(setting, overrides, layers) for setting in GROUP_SETTINGS.values()]

    def _subscription(self, name: str) -> list[DescribeConfigsResourceResult]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        overrides = self._image().configs.get((ResourceType.CLIENT_METRICS, name), {})
        return [_subscription_entry(setting, overrides.get(setting.name)) for setting in SUBSCRIPTION_SETTINGS.values()]

    # ------------------------------------------------------------ brokers
    def _broker(self, name: str) -> list[DescribeConfigsResourceResult]:
        image = self._image()
        if not name:
            defaults = image.configs.get((ResourceType.BROKER, ""), {})
            rows = [(key, text, _broker_setting(key)) for key, text in sorted(defaults.items())]
            return [
                _entry(setting, text, [_synonym(key, text, ConfigSource.ALL_BROKERS)])
                for key, text, setting in rows
                if is_dynamic(key) or setting.kind is Kind.UNKNOWN
            ]
        node_id = self._config.node_id
        check_node_id(name, node_id, "Broker", f"broker id, expected {node_id} or empty string, but")
        layers = self._broker_layers(image)
        dynamic = {name for source, texts in layers if source != ConfigSource.FILE for name in texts}
        definitions = {**BROKER_SETTINGS, **IGNORED_AND_SSL}
        names = sorted(definitions.keys() - INTERNAL_SETTINGS | dynamic | self._config.given.keys())
        return [_broker_entry(_broker_setting(name), layers) for name in names]

    def _broker_layers(self, image: MetadataImage) -> _Layers:
        node_name = str(self._config.node_id)
        return [
            (ConfigSource.THIS_BROKER, usable_configs(image.configs.get((ResourceType.BROKER, node_name), {}))),
            (ConfigSource.ALL_BROKERS, usable_configs(image.configs.get((ResourceType.BROKER, ""), {}))),
            (ConfigSource.FILE, self._config.given),
        ]


def _names(image: MetadataImage, kind: int, listener: str) -> Iterable[str]:
    """The names of the resources of a type; of brokers those with this listener, fenced ones included."""
    if kind == ResourceType.TOPIC:
        return image.topics_by_name
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(broker_id) for broker_id, broker in image.brokers.items() if broker.endpoint(listener)]
    return [name for resource, name in image.configs if resource == kind]


def _broker_setting(name: str) -> Setting:
    """The definition of a broker config (rule 3)."""
    general = general_name(name)
    found = broker_setting(name if general is None else general)
    if found is None:
        return Setting(name, Kind.UNKNOWN, None, None, "")
    return found if general is None else found._replace(name=name, default=None)


class _TopicEntries:
    """The entries of the topics in one response: those that all topics inherit are created once."""

    def __init__(self, layers: _Layers) -> None:
        self._layers = layers
        self._inherited: dict[str, DescribeConfigsResourceResult] = {}

    def of(self, overrides: Mapping[str, str]) -> list[DescribeConfigsResourceResult]:
        """The entries of a topic with these configs."""
        return [
            self._entry(setting, overrides)
            for name, setting in TOPIC_SETTINGS.items()
            if name in overrides or name not in OPTIONAL_TOPIC_SETTINGS
        ]

    def _entry(self, setting: Setting, overrides: Mapping[str, str]) -> DescribeConfigsResourceResult:
        text = overrides.get(setting.name)
        if text is None:
            entry = self._inherited.get(setting.name)
            if entry is None:
                default, _ = topic_default(setting.name, _merged(self._layers))
                entry = _entry(setting, _normalize(setting, default), self._broker_values(setting))
                self._inherited[setting.name] = entry
            return entry
        own = _synonym(setting.name, _normalize(setting, text), ConfigSource.TOPIC)
        return _entry(setting, own.value, [own, *self._broker_values(setting)])

    def _broker_values(self, setting: Setting) -> list[DescribeConfigsSynonym]:
        broker_names = SYNONYMS.get(setting.name)
        return _broker_values(_broker_setting(broker_names[0][0]), self._layers) if broker_names else []


def _group_entry(setting: Setting, overrides: Mapping[str, str], layers: _Layers) -> DescribeConfigsResourceResult:
    row = BROKER_SETTINGS.get(f"group.{setting.name}") or IGNORED.get(f"group.{setting.name}")
    default = _synonym(setting.name, setting.default, ConfigSource.DEFAULT)
    synonyms = _broker_values(row, layers) if row else [default]
    if setting.name in overrides:
        text = _normalize(setting, overrides[setting.name])
        synonyms = [_synonym(setting.name, text, ConfigSource.GROUP), *synonyms]
    return _entry(setting, synonyms[0].value, synonyms)


def _subscription_entry(setting: Setting, text: str | None) -> DescribeConfigsResourceResult:
    value = _normalize(setting, setting.default if text is None else text)
    synonyms = [] if text is None else [_synonym(setting.name, value, ConfigSource.CLIENT_METRICS)]
    return _entry(setting, value, synonyms)


def _broker_entry(setting: Setting, layers: _Layers) -> DescribeConfigsResourceResult:
    value = _normalize(setting, _merged(layers).get(setting.name, setting.default))
    return _entry(setting, value, _broker_values(setting, layers), read_only=setting.name not in DYNAMIC)


def _broker_values(setting: Setting, layers: _Layers) -> list[DescribeConfigsSynonym]:
    """The values of a broker config and its synonyms, in order of precedence; empty if unset."""
    if setting.default is None and not any(setting.name in texts for _, texts in layers):
        return []
    synonyms = []
    general = general_name(setting.name)
    for name in broker_synonyms(setting.name) if general is None else (setting.name, general):
        synonyms += [_synonym(name, texts[name], source) for source, texts in layers if name in texts]
        default = _broker_setting(name).default
        if default is not None:
            synonyms.append(_synonym(name, default, ConfigSource.DEFAULT))
    return synonyms


def _synonym(name: str, value: str | None, source: int) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=value, source=source)


def _merged(layers: _Layers) -> dict[str, str]:
    return {name: text for _, texts in reversed(layers) for name, text in texts.items()}


def _entry(
    setting: Setting, value: str | None, synonyms: list[DescribeConfigsSynonym], *, read_only: bool = False
) -> DescribeConfigsResourceResult:
    """A config with its value; `synonyms` are all its values, in order of precedence."""
    is_sensitive = setting.kind in (Kind.PASSWORD, Kind.UNKNOWN)
    if is_sensitive:
        value = None
        for synonym in synonyms:
            synonym.value = None
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=value,
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_sensitive=is_sensitive,
        synonyms=synonyms,
        config_type=setting.kind,
        documentation=setting.documentation,
    )


def _normalize(setting: Setting, text: str | None) -> str | None:
    return to_text(parse(setting._replace(check=None), text))


def _loggers() -> list[DescribeConfigsResourceResult]:
    return [
        DescribeConfigsResourceResult(
            name=name,
            value=level,
            read_only=False,
            config_source=ConfigSource.LOGGER,
            is_sensitive=False,
            documentation="",
        )
        for name, level in log_levels().items()
    ]
