"""All scenarios, and what is known to fail against Apache Kafka as well."""

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

KNOWN: dict[tuple[str, str], str] = {
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
"""By client and scenario: what fails for a reason of the client's own, against Apache Kafka 4.3.1 too."""

NOW_AND_THEN: dict[tuple[str, str], str] = {
    ("kafka-python", "new partitions of a topic are read too"): (
        "a poll that ends while the group rebalances loses the assignment (docs/conformance.md)"
    ),
}
"""The same for what passes in most plays and not in all: neither is news."""
