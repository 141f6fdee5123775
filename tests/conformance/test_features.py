"""A cluster of Apache Kafka 3.9 is upgraded to 4.3 step by step, by both brokers: the same responses and the same records."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from barnabas import Broker
from protocol.messages.admin import CreateTopicsRequest, IncrementalAlterConfigsRequest
from protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.stored_records import ClearElrRecord, ConfigRecord, FeatureLevelRecord
from replication.metadata.metadata_records import read_batches
from tests.support.config_cases import BROKER, SET, resource
from tests.support.feature_cases import ELIGIBLE, GROUP, KRAFT, METADATA, SAFE, UP, Update, updates
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.loading import topic
from tests.support.raw_client import RawClient
from tests.support.waiting import until

STEPS: list[list[Update]] = [
    [(ELIGIBLE, 1, UP)],
    [(METADATA, 20, SAFE)],
    [(METADATA, 21, UP)],
    [(METADATA, 22, UP)],
    [(METADATA, 21, SAFE)],
    [(METADATA, 25, UP)],
    [(METADATA, 22, SAFE)],
    [(GROUP, 1, UP)],
    [(GROUP, 0, SAFE)],
    [(ELIGIBLE, 1, UP)],
    [(ELIGIBLE, 0, SAFE)],
    [(ELIGIBLE, 1, UP)],
    [(METADATA, 29, UP), (GROUP, 1, UP), ("transaction.version", 2, UP)],
    [(METADATA, 25, SAFE)],
    [(METADATA, 30, UP), ("streams.version", 1, UP), (KRAFT, 1, UP)],
    [(METADATA, 29, SAFE)],
]


def shown(client: RawClient) -> dict[str, tuple[int, int]]:
    """The finalized features of the ApiVersions response."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    response = client.ask(request, 4)
    assert response.finalized_features_epoch >= 0
    return {f.name: (f.min_version_level, f.max_version_level) for f in response.finalized_features}


def script(client: RawClient) -> list[Any]:
    """The response of each step, and the final features."""
    own = resource(BROKER, "1", ("min.insync.replicas", SET, "1"))
    (altered,) = client.ask(IncrementalAlterConfigsRequest(resources=[own]), 1).responses
    response: list[Any] = [altered.error_code, shown(client)]
    for number, step in enumerate(STEPS):
        answer = client.ask(updates(*step), 2)
        response.append((step, answer.error_code, answer.error_message))
        client.ask(CreateTopicsRequest(topics=[topic(f"t{number}", 1)], timeout_ms=10_000), 7)
    until(lambda: shown(client).get(METADATA) == (30, 30), "the last level is known")
    response.append(shown(client))
    for version, how in ((0, UP), (1, UP), (1, SAFE)):
        answer = client.ask(updates((GROUP, 0, how)), version)
        results = [(row.feature, row.error_code, row.error_message) for row in answer.results]
        response.append((answer.error_code, answer.error_message, results))
    return response


def written(directory: Path) -> list[Any]:
    """The feature and config records of the metadata log, without repeated levels, which Kafka writes again."""
    (segment,) = (directory / "__cluster_metadata-0").glob("*.log")
    found: list[Any] = []
    level = 0
    for batch in read_batches(segment.read_bytes()):
        levels = {r.name: r.feature_level for r in batch.messages if isinstance(r, FeatureLevelRecord)}
        found += [] if levels == {METADATA: level} else sorted(levels.items())
        level = levels.get(METADATA, level)
        found += [repr(record) for record in batch.messages if isinstance(record, ConfigRecord | ClearElrRecord)]
    return found


def test_version_0_reports_that_a_level_may_be_downgraded() -> None:
    """As the protocol defines it; Kafka 4.3 ignores the field."""
    update = FeatureUpdateKey(feature=GROUP, max_version_level=0, allow_downgrade=True)
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        assert shown(client)[GROUP] == (1, 1)
        answer = client.ask(UpdateFeaturesRequest(feature_updates=[update]), 0)
        assert (answer.error_code, answer.error_message) == (0, None)
        assert GROUP not in shown(client)


@needs_kafka
def test_a_cluster_is_upgraded_as_in_kafka(tmp_path: Path) -> None:
    """Responses, finalized features and metadata records; Kafka formatted the directory for 3.9."""
    ApacheKafka(data_dir=tmp_path / "kafka").format("--release-version", "3.9-IV0")
    shutil.copytree(tmp_path / "kafka", tmp_path / "ours")
    with ApacheKafka(data_dir=tmp_path / "kafka") as kafka, RawClient(kafka.bootstrap) as client:
        theirs = script(client)
    with Broker(data_dir=tmp_path / "ours") as broker, RawClient(broker.bootstrap) as client:
        ours = script(client)
    assert ours == theirs
    assert written(tmp_path / "ours") == written(tmp_path / "kafka")
    with ApacheKafka(data_dir=tmp_path / "ours") as kafka, RawClient(kafka.bootstrap) as client:
        levels = dict(ours[len(STEPS) + 2])
        del levels[GROUP]
        assert shown(client) == levels
