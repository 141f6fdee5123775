"""One history of a quorum, from its seed to what went wrong."""

from __future__ import annotations

import traceback

from replication.raft.follower_log_sync import ForkedLog
from tests.simulation.quorum.troubles import Troubles
from tests.simulation.quorum.world import World
from tests.simulation.running import Failure


def play(seed: int) -> Failure | None:
    """Play a history; None when everything held, else what did not, and when."""
    world = World(seed)
    try:
        Troubles(world).play()
    except (AssertionError, ForkedLog) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Failure("sim-quorum", seed, f"seed {seed}, after {world.now_ms} ms: {error or place.line}")
    return None
