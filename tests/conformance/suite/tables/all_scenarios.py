"""All scenarios, and the known failures, which also occur with Apache Kafka."""

from __future__ import annotations

from tests.conformance.suite.steps import Scenario
from tests.conformance.suite.tables import administration, groups, offsets, records, security, transactions

SCENARIOS: tuple[Scenario, ...] = (
    *records.SCENARIOS,
    *offsets.SCENARIOS,
    *groups.SCENARIOS,
    *transactions.SCENARIOS,
    *administration.SCENARIOS,
)


def scenarios_of(nodes: int) -> tuple[Scenario, ...]:
    """The scenarios for a cluster of this number of nodes; its nodes have the ids 1 to `nodes`."""
    cluster = administration.cluster_of(nodes)
    return tuple(cluster if one.name == cluster.name else one for one in SCENARIOS)


SECURITY_SCENARIOS = security.SCENARIOS
"""They need a secured listener."""

KNOWN_FAILURES: dict[tuple[str, str], str] = {
    ("aiokafka", "a record without a key in a compacted topic"): "it does not know the error INVALID_RECORD",
    ("franz-go", "a static member leaves and returns: consumer protocol (KIP-848)"): (
        "a static member does not send a leave request, so its successor waits for the session timeout"
    ),
    ("rdkafka", "a static member leaves and returns: consumer protocol (KIP-848)"): (
        "it describes groups with requests from before KIP-848, which return no members of consumer groups"
    ),
    ("rdkafka", "an invalid config value"): "its alter_configs ignores the error of a resource",
    ("kafka-python", "configs are described without DescribeConfigs"): "it ignores the error of a resource",
    ("kafkajs", "a transactional id without Write"): "it initializes the id at the first transaction, not before",
    ("kafkajs", "by a timestamp after the last record"): "it returns the end offset if no record is as late",
}
"""By client and scenario: failures caused by the client, with Apache Kafka 4.3.1 too."""

FLAKY: dict[tuple[str, str], str] = {
    ("kafka-python", "new partitions of a topic are read"): (
        "a poll that ends while the group rebalances loses the assignment (docs/conformance.md)"
    )
}
"""The same for scenarios that usually pass: neither result is reported."""

CLIENT_FAULTS = KNOWN_FAILURES.keys() | FLAKY.keys()
