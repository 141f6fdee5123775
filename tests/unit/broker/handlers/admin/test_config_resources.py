"""ListConfigResources: the brokers that are named; DescribeConfigs: many topics."""

from __future__ import annotations

from pathlib import Path

from broker.config.broker_config import BrokerConfig
from broker.handlers.admin.configs import ConfigHandlers
from broker.security.authorizer import AllowAll
from protocol.api import ApiKey
from protocol.messages import stored_records
from protocol.messages.admin import DescribeConfigsRequest, DescribeConfigsResource, ListConfigResourcesRequest
from replication.metadata.image import ResourceType
from tests.support.replica_harness import ReplicaHarness


def test_fenced_brokers_have_configs_too(tmp_path: Path) -> None:
    """As in Apache Kafka: an operator finds the configs of a broker that is down."""
    harness = ReplicaHarness(tmp_path)
    handlers = ConfigHandlers(lambda: harness.image, BrokerConfig({}), AllowAll())
    harness.apply(stored_records.BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=102, fenced=1))
    for kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        request = ListConfigResourcesRequest(resource_types=[kind])
        answer = handlers.list_config_resources(harness.context(ApiKey.LIST_CONFIG_RESOURCES, 1), request)
        assert [one.resource_name for one in answer.config_resources] == ["1", "2", "3"]


def test_what_topics_inherit_is_described_once_for_all_of_them(tmp_path: Path) -> None:
    """A client may ask for thousands of topics, and no other client is served meanwhile."""
    harness = ReplicaHarness(tmp_path)
    handlers = ConfigHandlers(lambda: harness.image, BrokerConfig({}), AllowAll())
    for name in ("u", "v"):
        harness.create(name, retention_ms=5 if name == "u" else 7)
    resources = [DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name) for name in ("u", "v")]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
    answer = handlers.describe_configs(harness.context(ApiKey.DESCRIBE_CONFIGS, 4), request)
    first, second = ({entry.name: entry for entry in result.configs} for result in answer.results)
    assert (first.pop("retention.ms").value, second.pop("retention.ms").value) == ("5", "7")
    assert [name for name, entry in first.items() if entry is not second[name]] == []
