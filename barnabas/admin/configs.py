"""Configurations of topics, brokers, groups, client metrics and loggers: describe, set, delete.

RULES    1. A sensitive value is never returned by a cluster; it is shown as MASKED.
         2. A change is incremental: configs that are not named keep their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka.protocol.admin.configs import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)

from barnabas.admin.client import Client
from barnabas.admin.errors import check

MASKED = "(sensitive)"
KINDS = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
"""Resource types by the word that verbs use."""
SOURCES = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "file",
    5: "default",
    6: "logger",
    7: "client-metrics",
    8: "group",
}
"""ConfigSource; `cluster` is the dynamic default of all brokers, `file` the node's settings, `default` Kafka's."""
OPERATIONS = {"set": 0, "delete": 1, "append": 2, "subtract": 3}
"""Operations of IncrementalAlterConfigs, by name."""
Changes = Mapping[str, tuple[str, str | None]]
"""By config, the name of an operation and the value."""


class Synonym(NamedTuple):
    """A config that would give the value if the ones before it were not set."""

    name: str
    value: str | None
    source: str


class ConfigRow(NamedTuple):
    """A config of a resource. A null value is None; a sensitive one is MASKED."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    sensitive: bool
    synonyms: list[Synonym]
    documentation: str


def describe(client: Client, kind: str, name: str, *, documentation: bool = False) -> list[ConfigRow]:
    """Returns all configs of a resource by name. Raises Refused.

    Args:
        client: The cluster.
        kind: A key of KINDS.
        name: Of the resource; empty for the defaults of all brokers.
        documentation: Whether the rows have Kafka's sentences.
    """
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=KINDS[kind], resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=documentation)
    found = client.ask(request, _node(kind, name)).results[0]
    subject = subject_of(kind, name)
    check(found.error_code, found.error_message, f"describe {subject}", f"DescribeConfigs on {_resource(kind, name)}")
    return sorted(_row(entry) for entry in found.configs)


def _row(entry: Any) -> ConfigRow:
    source = SOURCES.get(entry.config_source, "unknown")
    synonyms = [
        Synonym(synonym.name, synonym.value, SOURCES.get(synonym.source, "unknown")) for synonym in entry.synonyms or ()
    ]
    return ConfigRow(
        entry.name,
        MASKED if entry.is_sensitive else entry.value,
        source,
        source == "default",
        entry.read_only,
        entry.is_sensitive,
        synonyms,
        entry.documentation or "",
    )


def alter(client: Client, kind: str, name: str, changes: Changes, *, validate_only: bool = False) -> None:
    """Changes configs of a resource. Raises Refused."""
    kinds: Any = IncrementalAlterConfigsRequest.AlterConfigsResource
    entries = [
        kinds.AlterableConfig(name=key, config_operation=OPERATIONS[operation], value=value)
        for key, (operation, value) in changes.items()
    ]
    resource = kinds(resource_type=KINDS[kind], resource_name=name, configs=entries)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    node = _node(kind, name)
    response = client.ask_controller(request) if node is None else client.ask(request, node)
    found = response.responses[0]
    subject = subject_of(kind, name)
    check(found.error_code, found.error_message, f"alter {subject}", f"AlterConfigs on {_resource(kind, name)}")


def list_resources(client: Client, kind: str) -> list[str]:
    """Returns the names of resources of a kind: those with configs for client metrics and groups. Raises Refused."""
    if kind == "topic":
        return sorted(topic.name for topic in client.metadata().topics)
    if kind in {"broker", "broker-logger"}:
        return [str(node) for node in client.node_ids()]
    response = client.ask(ListConfigResourcesRequest(resource_types=[KINDS[kind]], min_version=int(kind == "group")))
    check(response.error_code, None, f"list configs of kind {kind}", "DescribeConfigs on the cluster")
    return sorted(found.resource_name for found in response.config_resources)


def subject_of(kind: str, name: str) -> str:
    """A resource in a sentence: `topic flights`, `the defaults of all brokers`."""
    return "the defaults of all brokers" if kind == "broker" and not name else f"{kind.replace('-', ' ')} {name}"


def _resource(kind: str, name: str) -> str:
    """The resource whose right is needed."""
    return f"{kind} {name}" if kind in {"topic", "group"} else "the cluster"


def _node(kind: str, name: str) -> int | None:
    """The node that must answer: a broker answers for its own configs and loggers."""
    return int(name) if kind in {"broker", "broker-logger"} and name else None
