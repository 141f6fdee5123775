"""How a client learns where to send what: the registry of brokers and topics is the metadata image (seeds.md M4)."""

from __future__ import annotations

from broker.addresses import Addresses
from broker.handlers.metadata import MetadataHandlers
from broker.security.authorizer import AllowAll
from protocol.api import ApiKey
from protocol.messages import stored
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.support.replica_world import SELF, World


def routes_of(world: World, *topics: str) -> MetadataResponse:
    """What broker 1 tells a client."""
    handlers = MetadataHandlers(
        lambda: world.image,
        Addresses(SELF, frozenset()),
        AllowAll(),
        lambda *_: None,
        auto_create=False,
        internal_topics=lambda _: None,
        partition_limit=100,
    )
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in topics])
    answer = handlers.metadata(world.context(ApiKey.METADATA, 12), request)
    assert isinstance(answer, MetadataResponse)
    return answer


def test_clients_read_brokers_topics_and_leaders_from_any_brokers_image(tmp_path) -> None:
    """M4: brokers register, topics are records; no further service is asked, and every change is seen at once."""
    world = World(tmp_path)
    world.create("t", partitions=2, replicas=(1, 2, 3), leader=2)
    answer = routes_of(world, "t")
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
        (1, "host1", 9001), (2, "host2", 9002), (3, "host3", 9003),
    ]  # fmt: skip
    assert [(p.leader_id, p.replica_nodes) for p in answer.topics[0].partitions] == [(2, [1, 2, 3])] * 2
    world.change("t", 1, leader=3)
    world.apply(stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, fenced=1))
    answer = routes_of(world, "t")
    assert [broker.node_id for broker in answer.brokers] == [2, 3]
    assert [(p.leader_id, p.leader_epoch) for p in answer.topics[0].partitions] == [(2, 0), (3, 1)]
