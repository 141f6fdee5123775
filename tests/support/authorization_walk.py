"""A walk over every API, asked by a client with few rights: harmless requests, and responses without volatile values.

RULES    1. A request names the topics `secret`, `open` and `nowhere`, the groups `g` and `open-g`, the transactional id `tx`.
            With rights it changes nothing, or nothing that a later request shows.
         2. `answer` returns a response as JSON: ids of topics as names, no times, addresses, epochs or generated ids. A text
            that contains Java's description of a request is replaced by the sentence of this broker. Configs that only this
            broker has are left out.
         3. A closed connection is the answer "closed".
NOT HERE The states of rights and the record of Apache Kafka's answers (`tests/conformance/test_acls.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from protocol.api import APIS, ApiKey, request_header_version
from protocol.batch_builder import BatchBuilder
from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages.forwarding import DefaultPrincipalData
from protocol.messages.headers import RequestHeader
from protocol.schema import EMPTY, Message, fields_of
from tests.support.batches import batch
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

SECRET, OPEN, NOWHERE = "secret", "open", "nowhere"
TOPICS: Final = (SECRET, OPEN, NOWHERE)
GROUP, OPEN_GROUP, TX = "g", "open-g", "tx"
NO_DIRECTORY = b"D" * 16

_VOLATILE: Final = frozenset(
    [
        "throttle_time_ms",
        "cluster_id",
        "host",
        "port",
        "controller_id",
        "producer_id",
        "producer_epoch",
        "member_id",
        "session_id",
        "broker_epoch",
        "timestamp",
        "base_offset",
        "log_append_time_ms",
        "log_start_offset",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_dir",
        "total_bytes",
        "usable_bytes",
        "size",
        "documentation",
        "epoch",
        "client_instance_id",
        "subscription_id",
        "node_endpoints",
        "producer_id_start",
        "producer_id_len",
        "unknown_tagged_fields",
        "features",
        "supported_features",
        "finalized_features",
        "finalized_features_epoch",
        "zk_migration_ready",
        "last_timestamp",
        "start_offset",
        "end_offset",
        "current_leader",
        "directories",
        "partition_size",
        "total_volume_bytes",
        "log_end_offset",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "is_cordoned",
        "rack",
    ]
)
_JAVA: Final = re.compile(r"Request Request\(|Principal User:")
_ID: Final = re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])")


class Names(NamedTuple):
    """The ids of the existing topics."""

    secret: bytes
    open: bytes

    def of(self, topic: str) -> bytes:
        return {SECRET: self.secret, OPEN: self.open, NOWHERE: b"N" * 16}[topic]


def transactional_batch() -> bytes:
    builder = BatchBuilder(producer_id=99, producer_epoch=0, base_sequence=0, transactional=True)
    builder.append(RECENT_MS, b"k", b"v")
    return bytes(builder.build())


def _each(field: str, **others: Any) -> list[dict[str, Any]]:
    return [{field: name, **others} for name in TOPICS]


def _creation(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1}


def _resources(*configs: Any) -> list[dict[str, Any]]:
    named = ((2, SECRET), (2, OPEN), (4, "1"), (8, "1"), (16, "m"), (32, GROUP), (32, OPEN_GROUP))
    return [{"resource_type": kind, "resource_name": name, "configs": list(configs)} for kind, name in named]


def _acl_filter(**changes: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": 2, "resource_name_filter": "no-acl", "pattern_type_filter": 3, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1, **changes,
    }  # fmt: skip


def _record_requests(names: Names) -> Iterator[tuple[str, Message]]:
    ids = {topic: {"topic_id": names.of(topic)} for topic in TOPICS}
    for suffix, transaction in (("", None), (" in a transaction", TX), (" in an unnamed transaction", None)):
        records = transactional_batch() if "trans" in suffix else bytes(batch(RECENT_MS))
        data = [{"name": one, **ids[one], "partition_data": [{"index": 0, "records": records}]} for one in TOPICS]
        yield f"Produce{suffix}", _of(0, transactional_id=transaction, acks=1, timeout_ms=9000, topic_data=data)
    for suffix, who in (("", -1), (" by a follower", 2)):
        asked = [
            {"topic": one, **ids[one], "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}]}
            for one in TOPICS
        ]
        state = {"replica_id": who, "replica_epoch": -1}
        yield f"Fetch{suffix}", _of(1, replica_id=who, replica_state=state, max_wait_ms=0, min_bytes=0, topics=asked)
    yield "ListOffsets", _of(2, topics=_each("name", partitions=[{"partition_index": 0, "timestamp": -1}]))
    flags = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    yield "Metadata of all", _of(3, topics=None, allow_auto_topic_creation=False, **flags)
    yield "Metadata", _of(3, topics=_each("name"), allow_auto_topic_creation=False, **flags)
    yield "Metadata by id", _of(3, topics=[{"name": None, **ids[one]} for one in TOPICS], **flags)


def _group_requests(names: Names) -> Iterator[tuple[str, Message]]:
    ids = {topic: {"topic_id": names.of(topic)} for topic in TOPICS}
    committed = [
        {
            "name": one,
            **ids[one],
            "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
        }
        for one in TOPICS
    ]
    yield "OffsetCommit", _of(8, group_id=GROUP, member_id="", topics=committed)
    wanted = [{"name": one, **ids[one], "partition_indexes": [0]} for one in TOPICS]
    one_group = {"group_id": GROUP, "topics": [{"name": one, "partition_indexes": [0]} for one in TOPICS]}
    yield (
        "OffsetFetch",
        _of(9, **one_group, groups=[{"group_id": one, "topics": wanted} for one in (GROUP, OPEN_GROUP)]),
    )
    yield "OffsetFetch of all", _of(9, group_id=GROUP, topics=None, groups=[{"group_id": GROUP, "topics": None}])
    for kind, key in ((0, GROUP), (1, TX)):
        yield f"FindCoordinator {kind}", _of(10, key=key, key_type=kind, coordinator_keys=[key, f"open-{key}"])
    yield "JoinGroup", _of(
        11, group_id=GROUP, session_timeout_ms=9000, rebalance_timeout_ms=9000, member_id="unknown",
        protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
    )  # fmt: skip
    member = {"group_id": GROUP, "generation_id": 1, "member_id": "unknown"}
    yield "Heartbeat", _of(12, **member)
    yield "LeaveGroup", _of(13, group_id=GROUP, member_id="unknown", members=[{"member_id": "unknown"}])
    yield "SyncGroup", _of(14, **member, protocol_type="consumer", protocol_name="range", assignments=[])
    yield "DescribeGroups", _of(15, groups=[GROUP, OPEN_GROUP], include_authorized_operations=True)
    yield "ListGroups", _of(16)


def _topic_requests(names: Names) -> Iterator[tuple[str, Message]]:
    yield "SaslHandshake", _of(17, mechanism="PLAIN")
    yield "SaslAuthenticate", _of(36, auth_bytes=b"")
    creations = [_creation("new"), _creation("open-new"), _creation(SECRET)]
    yield "CreateTopics", _of(19, topics=creations, timeout_ms=9000, validate_only=True)
    yield "DeleteTopics", _of(20, topics=[{"name": NOWHERE}], topic_names=[NOWHERE], timeout_ms=9000)
    yield "DeleteTopics by id", _of(20, topics=[{"topic_id": b"N" * 16}], topic_names=[], timeout_ms=9000)
    deleted = _each("name", partitions=[{"partition_index": 0, "offset": 0}])
    yield "DeleteRecords", _of(21, topics=deleted, timeout_ms=9000)


def _transaction_requests(names: Names) -> Iterator[tuple[str, Message]]:
    for name in (None, TX):
        yield f"InitProducerId {name}", _of(22, transactional_id=name, transaction_timeout_ms=9000)
    for suffix, who in (("", -2), (" by a follower", 2)):
        epochs = _each("topic", partitions=[{"partition": 0, "leader_epoch": 0}])
        yield f"OffsetForLeaderEpoch{suffix}", _of(23, replica_id=who, topics=epochs)
    for suffix, among in (
        ("", TOPICS),
        (" of existing topics", (SECRET, OPEN)),
        (" of an internal topic", ("__consumer_offsets",)),
    ):
        topics = [{"name": name, "partitions": [0]} for name in among]
        producer = {"transactional_id": TX, "producer_id": 99, "producer_epoch": 0}
        yield f"AddPartitionsToTxn{suffix}", _of(
            24, transactions=[{**producer, "topics": topics}], v3_and_below_transactional_id=TX,
            v3_and_below_producer_id=99, v3_and_below_producer_epoch=0, v3_and_below_topics=topics,
        )  # fmt: skip
    yield "AddOffsetsToTxn", _of(25, **producer, group_id=GROUP)
    yield "EndTxn", _of(26, **producer, committed=True)
    marker = {"producer_id": 99, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
    yield "WriteTxnMarkers", _of(27, markers=[{**marker, "topics": [{"name": NOWHERE, "partition_indexes": [0]}]}])
    offsets = [
        {"name": one, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}
        for one in TOPICS
    ]
    yield "TxnOffsetCommit", _of(28, **producer, group_id=GROUP, topics=offsets)


def _acl_requests(names: Names) -> Iterator[tuple[str, Message]]:
    yield "DescribeAcls", _of(29, **_acl_filter())
    yield "CreateAcls", _of(
        30,
        creations=[
            {"resource_type": 4, "resource_name": "x", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
             "operation": 3, "permission_type": 3},
        ],
    )  # fmt: skip
    for name, change in (
        ("ANY", {"operation": 1}),
        ("an unknown number", {"operation": 99}),
        ("MATCH", {"resource_pattern_type": 2}),
    ):
        creation = {
            "resource_type": 2,
            "resource_name": "x",
            "resource_pattern_type": 3,
            "principal": "User:a",
            "host": "*",
        }
        yield f"CreateAcls of {name}", _of(30, creations=[{**creation, "operation": 3, "permission_type": 3, **change}])
    yield (
        "CreateAcls of bad principals",
        _of(30, creations=[{**creation, "operation": 3, "permission_type": 3, "principal": one} for one in ("me", "")]),
    )
    yield "DescribeAcls of an unknown number", _of(29, **_acl_filter(resource_type_filter=55))
    yield "DeleteAcls", _of(31, filters=[_acl_filter()])
    for number in (0, 99):
        changed = ({"resource_type_filter": number}, {"permission_type": number})
        yield f"DeleteAcls of {number}", _of(31, filters=[_acl_filter(**one) for one in changed])


def _config_requests(names: Names) -> Iterator[tuple[str, Message]]:
    described = [
        {"resource_type": one["resource_type"], "resource_name": one["resource_name"],
         "configuration_keys": ["retention.ms", "log.retention.ms", "metrics", "consumer.session.timeout.ms"]}
        for one in _resources()
    ]  # fmt: skip
    yield "DescribeConfigs", _of(32, resources=described)
    yield "AlterConfigs", _of(33, resources=_resources(), validate_only=True)
    yield "AlterReplicaLogDirs", _of(34, dirs=[{"path": "/none", "topics": _each("name", partitions=[0])}])
    yield "DescribeLogDirs", _of(35, topics=[{"topic": NOWHERE, "partitions": [0]}])
    yield (
        "CreatePartitions",
        _of(37, topics=[{"name": one, "count": 2} for one in TOPICS], timeout_ms=9000, validate_only=True),
    )
    yield "CreateDelegationToken", _of(38, renewers=[], max_lifetime_ms=1)
    yield "RenewDelegationToken", _of(39, hmac=b"none", renew_period_ms=1)
    yield "ExpireDelegationToken", _of(40, hmac=b"none", expiry_time_period_ms=1)
    yield "DescribeDelegationToken", _of(41, owners=None)
    yield "DeleteGroups", _of(42, groups_names=["no-group", "open-none"])


def _cluster_requests(names: Names) -> Iterator[tuple[str, Message]]:
    elected = [{"topic": one, "partitions": [0]} for one in TOPICS]
    yield "ElectLeaders", _of(43, topic_partitions=elected)
    yield "ElectLeaders of all", _of(43, topic_partitions=None)
    yield "IncrementalAlterConfigs", _of(44, resources=_resources(), validate_only=True)
    cancelled = [{"name": one, "partitions": [{"partition_index": 0, "replicas": None}]} for one in TOPICS]
    yield "AlterPartitionReassignments", _of(45, topics=cancelled)
    yield "ListPartitionReassignments", _of(46, topics=None)
    yield "OffsetDelete", _of(47, group_id="no-group", topics=_each("name", partitions=[{"partition_index": 0}]))
    yield (
        "DescribeClientQuotas",
        _of(48, components=[{"entity_type": "user", "match_type": 2, "match": None}], strict=False),
    )
    quota = {"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": []}
    yield "AlterClientQuotas", _of(49, entries=[quota], validate_only=True)
    yield "DescribeUserScramCredentials", _of(50, users=[{"name": "a"}])
    yield "AlterUserScramCredentials", _of(51, deletions=[{"name": "a", "mechanism": 1}], upsertions=[])
    yield "DescribeQuorum", _of(55, topics=[{"topic_name": "nothing", "partitions": [{"partition_index": 0}]}])
    feature = {"feature": "nothing", "max_version_level": 1}
    yield "UpdateFeatures", _of(57, feature_updates=[feature], validate_only=True)
    yield "DescribeCluster", _of(60, include_cluster_authorized_operations=True)
    yield "DescribeProducers", _of(61, topics=_each("name", partition_indexes=[0]))
    yield "UnregisterBroker", _of(64, broker_id=77)
    yield "DescribeTransactions", _of(65, transactional_ids=["no-tx", "open-tx"])
    yield "ListTransactions", _of(66, state_filters=["Empty"], producer_id_filters=[98765])
    beat = {"member_epoch": 5, "topic_partitions": None}
    yield (
        "ConsumerGroupHeartbeat",
        _of(68, group_id="no-cg", member_id="m", subscribed_topic_names=[SECRET, OPEN], **beat),
    )
    yield "ConsumerGroupDescribe", _of(69, group_ids=["no-cg", "open-cg"], include_authorized_operations=True)
    yield "ListConfigResources", _of(74, resource_types=[16])
    yield "DescribeTopicPartitions of all", _of(75, topics=[])
    yield "DescribeTopicPartitions", _of(75, topics=[{"name": one} for one in TOPICS])
    voter = {"voter_id": 2, "voter_directory_id": NO_DIRECTORY}
    yield "AddRaftVoter", _of(80, cluster_id="other", timeout_ms=9000, **voter, listeners=[])
    yield "RemoveRaftVoter", _of(81, cluster_id="other", **voter)


def requests(names: Names) -> Iterator[tuple[str, Message]]:
    """Every request for a broker, with a unique name."""
    for part in (
        _record_requests,
        _group_requests,
        _topic_requests,
        _transaction_requests,
        _acl_requests,
        _config_requests,
        _cluster_requests,
    ):
        yield from part(names)


def controller_requests(names: Names) -> Iterator[tuple[str, Message]]:
    """Every request for a controller; those that a broker has too are from `requests`."""
    shared = {19, 20, 29, 30, 31, 32, 33, 37, 43, 44, 45, 46, 49, 51, 55, 57, 64, 80, 81, 17, 36, 38, 39, 40}
    yield from ((name, one) for name, one in requests(names) if one.API_KEY in shared)
    topics = [{"topic_name": "__cluster_metadata", "partitions": []}]
    yield "Fetch", _of(1, cluster_id="other", max_wait_ms=0, min_bytes=0, topics=[])
    yield "Vote", _of(52, cluster_id="other", voter_id=1, topics=topics)
    yield "BeginQuorumEpoch", _of(53, cluster_id="other", voter_id=1, topics=topics)
    yield "EndQuorumEpoch", _of(54, cluster_id="other", topics=topics)
    yield "AlterPartition", _of(56, broker_id=1, broker_epoch=5, topics=[{"topic_id": b"N" * 16, "partitions": []}])
    inner = _of(19, topics=[_creation("inside")], timeout_ms=9000, validate_only=True)
    header = RequestHeader(request_api_key=19, request_api_version=7, correlation_id=1, client_id="c")
    principal = b"\0\0" + encode(DefaultPrincipalData(type="User", name="other", token_authenticated=False), 0)
    yield "Envelope", _of(
        58, request_data=encode(header, request_header_version(19, 7)) + encode(inner, 7), request_principal=principal,
        client_host_address=bytes((10, 0, 0, 9)),
    )  # fmt: skip
    yield "FetchSnapshot", _of(59, cluster_id="other", topics=[])
    yield "DescribeCluster of controllers", _of(60, include_cluster_authorized_operations=True, endpoint_type=2)
    node = {"incarnation_id": b"I" * 16, "listeners": [], "features": []}
    yield "BrokerRegistration", _of(62, broker_id=77, cluster_id="other", rack=None, log_dirs=[NO_DIRECTORY], **node)
    state = {"current_metadata_offset": 1, "want_fence": False, "want_shut_down": False}
    yield "BrokerHeartbeat", _of(63, broker_id=77, broker_epoch=5, **state)
    yield "AllocateProducerIds", _of(67, broker_id=1, broker_epoch=5)
    yield "ControllerRegistration", _of(70, controller_id=77, **node)
    yield "AssignReplicasToDirs", _of(73, broker_id=77, broker_epoch=5, directories=[])
    feature = {"min_supported_version": 0, "max_supported_version": 1}
    voter = {"voter_id": 2, "voter_directory_id": NO_DIRECTORY, "listeners": [], "k_raft_version_feature": feature}
    yield "UpdateRaftVoter", _of(82, cluster_id="other", current_leader_epoch=1, **voter)


def _of(api: int, **values: Any) -> Message:
    return message(APIS[api].request, **values)


def fit(found: Message, version: int) -> Message:
    """The message with the fields that a version has; the others get their defaults."""
    for field in fields_of(type(found)):
        value = getattr(found, field.name)
        if not field.is_in(version):
            setattr(found, field.name, [] if field.default is EMPTY else field.default)
        elif isinstance(value, Message):
            fit(value, version)
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, Message):
                    fit(one, version)
        elif value is None and not field.is_nullable_in(version) and field.wire.kind == "array":
            setattr(found, field.name, [])
        elif value is None and not field.is_nullable_in(version) and field.wire.kind != "struct":
            setattr(found, field.name, "")
    return found


def _ask_loaded(client: RawClient, request: Message, version: int) -> Message | None:
    """The response; None while the coordinator loads."""
    response = client.ask(request, version)
    return None if getattr(response, "error_code", 0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else response


def answer(bootstrap: str, request: Message, version: int, names: Names, source: str) -> Any:
    """The response to a request of a client at the address `source`, comparable (rule 2)."""
    fitting = fit(request, version)
    with RawClient(bootstrap, source=source, timeout_s=20) as client:
        try:
            response = until(lambda: _ask_loaded(client, fitting, version), "the coordinator has producer ids")
        except (EOFError, ConnectionResetError):
            return "closed"
    return _comparable(response, version, names)


def _comparable(found: Any, version: int, names: Names) -> Any:
    if isinstance(found, Message):
        fields = {
            field.name: getattr(found, field.name)
            for field in fields_of(type(found))
            if field.is_in(version) and field.name not in _VOLATILE
        }
        if fields.get("topic_id") is not None:
            fields["topic_id"] = _topic_name(fields["topic_id"], names)
        return {
            name: _comparable(value, version, names) for name, value in fields.items() if value not in (None, [], "")
        }
    if isinstance(found, list):
        if found and not isinstance(found[0], Message):
            return sorted(found)
        items = [_comparable(one, version, names) for one in found if not _is_own_config(one)]
        return sorted(items, key=repr)
    if isinstance(found, bytes | bytearray | memoryview):
        return len(found) > 0
    if isinstance(found, str):
        return "Cluster authorization failed." if _JAVA.match(found) else _ID.sub("ID", found)
    return found


def _is_own_config(found: Any) -> bool:
    """Whether it is a config that only this broker has."""
    return str(getattr(found, "name", "")).startswith("barnabas.")


def _topic_name(topic_id: bytes, names: Names) -> str:
    known = {names.secret: SECRET, names.open: OPEN, b"N" * 16: NOWHERE, bytes(16): "none"}
    return known.get(topic_id, "unknown")


def api_name(request: Message) -> str:
    """Kafka's name of a request's API."""
    assert request.API_KEY is not None
    return ApiKey(request.API_KEY).name
