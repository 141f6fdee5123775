"""Starts `barnabas ...` for the kill tests: on a warm driver, or with a planned kill.

    python -m tests.pipeline.killing.driver N FOLDER pipeline archive ...

The process kills itself before its N-th change below the folder (`kill_at_step.py`); 0 is never.
"""

from __future__ import annotations

import os
import runpy
import sys

from tests.pipeline.killing.kill_at_step import end_before_change
from tests.pipeline.killing.warm_driver import PORT, attach

if __name__ == "__main__":
    _, last, below, *words = sys.argv
    if PORT in os.environ:
        attach()
    if int(last):
        end_before_change(int(last), below)
    sys.argv = ["barnabas", *words]
    runpy.run_module("barnabas", run_name="__main__", alter_sys=True)
