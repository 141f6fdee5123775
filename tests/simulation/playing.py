"""Playing histories from seeds, and what is told of one that went wrong."""

from __future__ import annotations

import logging
import traceback
from random import Random

from tests.simulation.history import History
from tests.simulation.limits import small_limits
from tests.simulation.running import Failure

_log = logging.getLogger("barnabas")


def play(seed: int, *, is_compacting: bool | None = None) -> Failure | None:
    """Go through one history; what went wrong, if anything did."""
    level, _log.level = _log.level, logging.CRITICAL  # recoveries warn of what they find, and find much
    history: History | None = None
    try:
        dice = Random(seed)
        with small_limits(dice):
            history = History(dice, is_compacting=is_compacting)
            history.run()
    except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to this seed
        trace = [] if history is None else history.trace
        steps = "\n".join(f"{number:4} {step}" for number, step in enumerate(trace, 1))
        where = "".join(traceback.format_exception(error))
        return Failure("sim", seed, f"seed {seed}: {type(error).__name__}: {error}", f"{steps}\n{where}")
    finally:
        _log.level = level
    return None
