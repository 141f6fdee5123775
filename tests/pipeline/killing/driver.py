"""`barnabas ...` as the kill tests start it: on a driver that is warm, or with an hour of death.

    python -m tests.pipeline.killing.driver N FOLDER pipeline archive ...

N is the change below the folder before which it dies (`dying.py`); 0 is never.
"""

from __future__ import annotations

import os
import runpy
import sys

from tests.pipeline.killing.dying import die_before
from tests.pipeline.killing.warm import PORT, come_in

if __name__ == "__main__":
    _, last, below, *words = sys.argv
    if PORT in os.environ:
        come_in()
    if int(last):
        die_before(int(last), below)
    sys.argv = ["barnabas", *words]
    runpy.run_module("barnabas", run_name="__main__", alter_sys=True)
