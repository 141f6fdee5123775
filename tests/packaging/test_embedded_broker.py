"""The embedded broker with the real daemon: an orphaned process.

NOT HERE Startup errors and restarts (`tests/unit/barnabas/test_embedded.py`, `tests/process/test_start.py`).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

STARTER = """
import sys, barnabas
broker = barnabas.Broker(sys.argv[1]).start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


def test_an_orphaned_daemon_stops_cleanly(tmp_path: Path) -> None:
    """embedded.py rule 3: its parent process is killed, and it stops cleanly."""
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, tmp_path / "data"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert starter.stdin is not None
    assert starter.stdout is not None
    with starter, starter.stdin, starter.stdout:
        gone = os.pidfd_open(int(starter.stdout.readline()))
        starter.send_signal(signal.SIGKILL)
        assert select.select([gone], [], [], 10)[0], "the daemon is still there"
        os.close(gone)
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
