"""One history of a cluster, from its seed to what went wrong."""

from __future__ import annotations

import logging
import traceback

from tests.simulation.cluster.troubles import Troubles
from tests.simulation.cluster.world import World
from tests.simulation.running import Failure

_log = logging.getLogger("barnabas")


def play(seed: int) -> Failure | None:
    """Play a history; None when everything held, else what did not, and when."""
    level, _log.level = _log.level, logging.CRITICAL + 1  # what nodes complain of is part of it
    world = World(seed)
    try:
        Troubles(world).play()
    except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to this seed
        what = f"seed {seed}, after {world.now_ms} ms: {type(error).__name__}: {error}"
        story = "\n".join(world.story)
        if not isinstance(error, AssertionError):
            story += "\n" + "".join(traceback.format_exception(error))
        return Failure("sim-cluster", seed, what, story)
    finally:
        _log.level = level
    return None
