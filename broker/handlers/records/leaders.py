"""The current leader in Produce and Fetch responses (KIP-951).

RULES    1. Leader and leader epoch are those of the metadata image; -1 if unknown.
         2. Endpoints are those of the client's listener; a leader that is not active has none.
NOT HERE Which errors return the leader (`delayed_produce.py`, `delayed_fetch.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.messages.produce_fetch import LeaderIdAndEpoch, NodeEndpoint
from replication.metadata.image import MetadataImage


def current_leader(image: MetadataImage, topic: str, index: int) -> LeaderIdAndEpoch:
    """Leader and epoch of a partition."""
    topic_image = image.topics_by_name.get(topic)
    state = None if topic_image is None else topic_image.partitions.get(index)
    if state is None:
        return LeaderIdAndEpoch()
    return LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)


def node_endpoints(image: MetadataImage, leaders: Iterable[LeaderIdAndEpoch], listener: str) -> list[NodeEndpoint]:
    """The endpoints of these leaders, each once."""
    endpoints: list[NodeEndpoint] = []
    for leader_id in dict.fromkeys([leader.leader_id for leader in leaders]):
        broker = image.brokers.get(leader_id)
        endpoint = broker.endpoint(listener) if broker is not None and broker.is_active else None
        if broker is not None and endpoint is not None:
            endpoints.append(NodeEndpoint(node_id=leader_id, host=endpoint.host, port=endpoint.port, rack=broker.rack))
    return endpoints
