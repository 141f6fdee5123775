"""One node of either broker, and a follower of it (tests/support/follower_harness.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.follower_harness import BOTH, Cluster, FollowerHarness, running, unregistered_follower


@pytest.fixture(scope="module", params=BOTH)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One node with a controller listener."""
    with running(request.param) as made:
        yield made


@pytest.fixture
def harness(cluster: Cluster) -> Iterator[FollowerHarness]:
    """A follower that has not registered."""
    with unregistered_follower(cluster) as made:
        yield made
