"""Requests about the cluster and its users, and the responses of Apache Kafka 4.3.1, as in admin_cases.py.

Rows are named by topic-partition, user, or the parts of an entity; a row without a name is of the whole response.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages import cluster, common, quotas_scram
from protocol.messages.common import TopicPartitions
from protocol.messages.stored_records import EntityData
from tests.support.admin_cases import INVALID_ASSIGNMENT, INVALID_REQUEST, NONE, UNKNOWN_TOPIC, Answer, Case

E = ErrorCode

# ---- ElectLeaders ----------------------------------------------------------------------------------------

_NOT_NEEDED = "Leader election not needed for topic partition."


def _elect(wanted: dict[str, list[int]] | None, kind: int, answer: Answer) -> Case:
    topics = None if wanted is None else [TopicPartitions(topic=t, partitions=p) for t, p in wanted.items()]
    return Case(cluster.ElectLeadersRequest(election_type=kind, topic_partitions=topics), answer)


ELECT = [
    *(_elect({"t1": [0, 1]}, kind, [(f"t1-{index}", E.ELECTION_NOT_NEEDED, _NOT_NEEDED) for index in (0, 1)])
      for kind in (0, 1)),
    _elect({"t1": [9], "nope": [0], "c.c": [-1]}, 0, [
        ("c.c--1", UNKNOWN_TOPIC, "No such partition as c.c--1"),
        ("nope-0", UNKNOWN_TOPIC, "No such topic as nope"),
        ("t1-9", UNKNOWN_TOPIC, "No such partition as t1-9"),
    ]),
    _elect(None, 0, []),
    _elect(None, 1, []),
    _elect({}, 0, [("", NONE, None)]),
    *(_elect({"t1": [0]}, kind, [
        ("", INVALID_REQUEST, None), ("t1-0", INVALID_REQUEST, f"Unknown election type {kind}")]) for kind in (2, -1)),
]  # fmt: skip

# ---- AlterPartitionReassignments ---------------------------------------------------------------------------

_NO_BROKER = "The manual partition assignment includes broker {}, but no such broker is registered."


def _reassign(wanted: dict[str, list[tuple[int, list[int] | None]]], answer: Answer, *, may_grow: bool = True) -> Case:
    topics = [
        common.Topic(
            name=name, partitions=[cluster.ReassignablePartition(partition_index=i, replicas=r) for i, r in partitions]
        )
        for name, partitions in wanted.items()
    ]
    return Case(
        cluster.AlterPartitionReassignmentsRequest(topics=topics, allow_replication_factor_change=may_grow), answer
    )


def _move(replicas: list[int] | None, code: ErrorCode, sentence: str | None) -> Case:
    return _reassign({"t1": [(0, replicas)]}, [("t1-0", code, sentence)])


REASSIGN = [
    _move([1], NONE, None),
    _move(None, E.NO_REASSIGNMENT_IN_PROGRESS, None),
    _move([], INVALID_ASSIGNMENT, "The manual partition assignment includes an empty replica list."),
    _move([2], INVALID_ASSIGNMENT, _NO_BROKER.format(2)),
    _move([1, 1], INVALID_ASSIGNMENT, "The manual partition assignment includes the broker 1 more than once."),
    _reassign({"t1": [(0, [1, 2])]}, [("t1-0", INVALID_ASSIGNMENT, _NO_BROKER.format(2))], may_grow=False),
    _reassign({"t1": [(0, [1])]}, [("t1-0", NONE, None)], may_grow=False),
    _reassign({"t1": [(9, [1]), (0, [-1])], "nope": [(0, [1])]}, [
        ("nope-0", UNKNOWN_TOPIC, "Unable to find a topic named nope."),
        ("t1-0", INVALID_ASSIGNMENT, _NO_BROKER.format(-1)),
        ("t1-9", UNKNOWN_TOPIC, "Unable to find partition t1:9."),
    ]),
    _reassign({}, [("", NONE, None)]),
    _reassign({"t1": []}, []),
]  # fmt: skip

UNREGISTER = [
    Case(cluster.UnregisterBrokerRequest(broker_id=number),
         [("", E.BROKER_ID_NOT_REGISTERED, f"Broker ID {number} is not currently registered")])
    for number in (9, -1)
]  # fmt: skip

# ---- AlterClientQuotas -----------------------------------------------------------------------------------

_RATE, _CONNECTIONS = "producer_byte_rate", "connection_creation_rate"
Parts = dict[str, str | None]


def altered(entity: Parts, *changes: tuple[str, float | None]) -> quotas_scram.AlteredQuotas:
    """Changes of an entity's quotas; None deletes one."""
    return quotas_scram.AlteredQuotas(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[quotas_scram.QuotaChange(key=key, value=value or 0.0, remove=value is None) for key, value in changes],
    )


def _quota(
    entity: Parts,
    *changes: tuple[str, float | None],
    message: str | None = None,
    ours: str | None = None,
    why: str = "",
) -> Case:
    in_order = {kind: entity[kind] for kind in ("client-id", "user", "ip", "x") if kind in entity}
    name = ",".join(f"{kind}={text}" for kind, text in in_order.items())
    request = quotas_scram.AlterClientQuotasRequest(entries=[altered(entity, *changes)], validate_only=True)
    answer = [(name, INVALID_REQUEST if message else NONE, message)]
    return Case(request, answer, [(name, INVALID_REQUEST, ours)] if ours else None, why)


_MIXED = "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"

QUOTAS = [
    _quota({"user": "a"}, (_RATE, 1.0), ("consumer_byte_rate", 2.0)),
    _quota({"user": "a", "client-id": "b"}, ("controller_mutation_rate", 1.5)),
    _quota({"user": None}, ("request_percentage", 0.1)),
    _quota({"ip": "1.2.3.4"}, (_CONNECTIONS, 5.0)),
    _quota({"ip": None}, (_CONNECTIONS, 5.0)),
    _quota({"ip": "0:0:0:0:0:0:0:1"}, (_CONNECTIONS, 5.0)),
    _quota({"ip": "localhost"}, (_CONNECTIONS, 5.0), ours="localhost is not a valid IP or resolvable host.",
           why="it is not resolved: it would limit no address"),
    _quota({"ip": "300.1.1.1"}, (_CONNECTIONS, 1.0), message="300.1.1.1 is not a valid IP or resolvable host."),
    _quota({"user": "a"}, (_RATE, 2.0**63)),
    _quota({"user": "a"}, (_RATE, 1.0000009)),
    _quota({"user": "a"}, (_RATE, 1.0000011), message=f"{_RATE} cannot be a fractional value."),
    _quota({"user": "a"}, (_RATE, 0.9999999), message=f"{_RATE} cannot be a fractional value."),
    _quota({"user": "a"}),
    _quota({"user": "a"}, (_RATE, None), ("nope", None)),
    *(_quota({"user": "a"}, (_RATE, value), message=f"Quota {_RATE} must be greater than 0") for value in (0.0, -1.0)),
    _quota({"user": "a"}, (_RATE, 1.5), message=f"{_RATE} cannot be a fractional value."),
    _quota({"user": "a"}, (_RATE, 1e300), message=f"Proposed value for {_RATE} is too large for a LONG."),
    _quota({"user": "a"}, (_RATE, float("nan")), ours=f"Quota {_RATE} must be greater than 0", why="not a number"),
    _quota({"user": "a"}, (_RATE, 1.0), (_RATE, 2.0),
           message="Ignoring duplicate entity ClientQuotaEntity(entries={user=a})",
           ours="A quota appears more than once.", why="that is what is wrong"),
    _quota({"ip": "1.2.3.4"}, (_CONNECTIONS, 5.5), message=f"{_CONNECTIONS} cannot be a fractional value."),
    _quota({"user": "a"}, ("nope", 1.0), message="Invalid configuration key nope"),
    _quota({"user": "a"}, (_CONNECTIONS, 1.0), message=f"Invalid configuration key {_CONNECTIONS}"),
    _quota({"ip": "1.2.3.4"}, (_RATE, 1.0), message=f"Invalid configuration key {_RATE}"),
    _quota({}, (_RATE, 1.0), message="Invalid empty client quota entity"),
    _quota({"x": "a"}, (_RATE, 1.0), message="Unhandled client quota entity type: x"),
    _quota({"user": ""}, (_RATE, 1.0), message="Empty user not supported"),
    _quota({"client-id": ""}, (_RATE, 1.0), message="Empty client-id not supported"),
    _quota({"user": "a", "ip": "1.2.3.4"}, (_RATE, 1.0), message=_MIXED),
    _quota({"ip": "not an ip"}, (_CONNECTIONS, 1.0), message="not an ip is not a valid IP or resolvable host."),
]  # fmt: skip

# ---- AlterUserScramCredentials ---------------------------------------------------------------------------


def credential(name: str, mechanism: int = 1, iterations: int = 4096) -> quotas_scram.ScramCredentialUpsertion:
    return quotas_scram.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"s" * 8, salted_password=b"p" * 32
    )


def gone(name: str, mechanism: int = 1) -> quotas_scram.ScramCredentialDeletion:
    return quotas_scram.ScramCredentialDeletion(name=name, mechanism=mechanism)


def _scram(
    *changes: quotas_scram.ScramCredentialDeletion | quotas_scram.ScramCredentialUpsertion, answer: Answer
) -> Case:
    request = quotas_scram.AlterUserScramCredentialsRequest(
        deletions=[change for change in changes if isinstance(change, quotas_scram.ScramCredentialDeletion)],
        upsertions=[change for change in changes if isinstance(change, quotas_scram.ScramCredentialUpsertion)],
    )
    return Case(request, answer)


_TWICE = "A user credential cannot be altered twice in the same request"
_NONE_SUCH = "Attempt to delete a user credential that does not exist"

SCRAM = [
    _scram(answer=[("", NONE, None)]),
    _scram(gone("a"), answer=[("a", E.RESOURCE_NOT_FOUND, _NONE_SUCH)]),
    _scram(gone("a"), gone("a", 2), answer=[("a", E.RESOURCE_NOT_FOUND, _NONE_SUCH)]),
    _scram(gone("a"), credential("a"), answer=[("a", E.RESOURCE_NOT_FOUND, _NONE_SUCH)]),
    _scram(credential("b"), credential("b", 2), answer=[("b", E.DUPLICATE_RESOURCE, _TWICE)]),
    _scram(credential("b"), credential("b"), answer=[("b", E.DUPLICATE_RESOURCE, _TWICE)]),
    _scram(gone("a", 2), credential("a"), answer=[("a", E.RESOURCE_NOT_FOUND, _NONE_SUCH)]),
    _scram(credential("a", iterations=4095), answer=[("a", E.UNACCEPTABLE_CREDENTIAL, "Too few iterations")]),
    _scram(credential("a", 2, 16_385), answer=[("a", E.UNACCEPTABLE_CREDENTIAL, "Too many iterations")]),
    _scram(credential(""), answer=[("", E.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")]),
    *(_scram(change, answer=[("a", E.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")])
      for change in (credential("a", 0), credential("a", 3), gone("a", 9))),
]  # fmt: skip

CLUSTER_CASES = {"elect": ELECT, "reassign": REASSIGN, "unregister": UNREGISTER, "quotas": QUOTAS, "scram": SCRAM}
"""By API."""
