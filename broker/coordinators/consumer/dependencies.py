"""What the parts of the consumer protocol share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker.coordinators.classic.classic_group import ClassicGroup
from broker.coordinators.consumer.consumer_group import ConsumerGroup
from broker.coordinators.group_config import GroupConfigManager, GroupSettings
from broker.coordinators.runtime.coordinator_runtime import ShardContext
from replication.metadata.image import MetadataImage


class GroupDependencies(NamedTuple):
    """The shard's groups and context, settings, the cluster's metadata and a source of member ids."""

    classic_groups: dict[str, ClassicGroup]
    consumer_groups: dict[str, ConsumerGroup]
    other_groups: set[str]
    """The ids of share and streams groups, which Apache Kafka has written."""
    context: ShardContext
    settings: GroupSettings
    configs: GroupConfigManager
    image: Callable[[], MetadataImage]
    new_uuid: Callable[[], str]
