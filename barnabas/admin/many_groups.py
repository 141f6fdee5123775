"""Descriptions and committed offsets of many groups, with few requests.

RULES    1. A request asks a coordinator for up to BATCH of its groups.
         2. A group that such a request does not answer, for any reason, is missing in the result: the caller asks for it alone
            (`groups.py`), which looks its coordinator up again, or gives the error. So a cluster older than KIP-709 is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from barnabas.admin.client import Client
from barnabas.admin.errors import Refused
from barnabas.admin.groups import (
    Committed,
    GroupDescription,
    classic_description,
    classic_request,
    consumer_description,
    consumer_request,
    offsets_in,
    offsets_request,
)
from barnabas.client.topic_partition import TopicPartition

BATCH = 100


def describe_groups(client: Client, names: Iterable[str]) -> dict[str, GroupDescription]:
    """Returns groups of either protocol by name; some may be missing (rule 2)."""
    found: dict[str, GroupDescription] = {}
    for node, batch in _batches(client, names):
        for make, read in ((consumer_request, consumer_description), (classic_request, classic_description)):
            left = [name for name in batch if name not in found]
            try:
                groups = client.ask(make(left), node).groups if left else ()
            except Refused:
                continue
            found |= {group.group_id: read(group, node) for group in groups if not group.error_code}
    return {name: group for name, group in found.items() if group.state != "Dead"}


def committed_offsets_of(client: Client, names: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
    """Returns all committed offsets of groups, by name and partition; some groups may be missing (rule 2)."""
    found = {}
    for node, batch in _batches(client, names):
        try:
            groups = client.ask(offsets_request(batch, min_version=8), node).groups
        except Refused:
            continue
        for group in groups:
            try:
                found[group.group_id] = offsets_in(group, group.group_id)
            except Refused:
                continue
    return found


def _batches(client: Client, names: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Up to BATCH groups of one coordinator each."""
    by_node: dict[int, list[str]] = {}
    for name, node in client.coordinators(names).items():
        by_node.setdefault(node, []).append(name)
    for node, led in by_node.items():
        for at in range(0, len(led), BATCH):
            yield node, led[at : at + BATCH]
