"""All scenarios, and the known failures, which also occur with Apache Kafka."""

from __future__ import annotations

from tests.conformance.suite.steps import Scenario
from tests.conformance.suite.tables import administration, groups, offsets, records, transactions

SCENARIOS: tuple[Scenario, ...] = (
    *records.SCENARIOS,
    *offsets.SCENARIOS,
    *groups.SCENARIOS,
    *transactions.SCENARIOS,
    *administration.SCENARIOS,
)

KNOWN_FAILURES: dict[tuple[str, str], str] = {
    ("aiokafka", "a record without a key in a compacted topic"): "it knows no error INVALID_RECORD",
    ("franz-go", "a static member leaves and comes back: consumer protocol (KIP-848)"): (
        "a static member does not tell the broker that it goes, so its successor waits for the end of the session"
    ),
    ("rdkafka", "a static member leaves and comes back: consumer protocol (KIP-848)"): (
        "it asks for groups as before KIP-848, and sees no members of a group of the new protocol"
    ),
    ("rdkafka", "a setting's value that cannot be"): "its alter_configs does not look at a resource's error",
    ("kafkajs", "by a time after the last record"): "it tells the end where no record is as late",
}
"""By client and scenario: failures caused by the client, with Apache Kafka 4.3.1 too."""

FLAKY: dict[tuple[str, str], str] = {
    ("kafka-python", "new partitions of a topic are read too"): (
        "a poll that ends while the group rebalances loses the assignment (docs/conformance.md)"
    )
}
"""The same for scenarios that usually pass: neither result is reported."""
