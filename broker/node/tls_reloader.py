"""Replaces certificates at run time: when dynamic configs change, and when a file has changed.

RULES    1. Files are read in a thread; new connections use what was read when the event loop has it.
         2. Apache Kafka reads a changed file only when a config of the broker is set again. The check of files by time is an
            addition: certificates that a tool renews need no request.
NOT HERE Which stores may replace others (`broker/security/node_tls.py`).
"""

from __future__ import annotations

from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.io.worker_thread import WorkerThread
from broker.node.kraft_runtime import RuntimeDependencies
from broker.security.node_tls import NodeTls, TlsChange
from replication.io_executor import IoResult, Run

_INTERVAL: Final = "barnabas.ssl.reload.interval.ms"


class TlsReloader:
    """Checks the stores of a node."""

    def __init__(self, dependencies: RuntimeDependencies, tls: NodeTls) -> None:
        self._timers, self._clock = dependencies.timers, dependencies.clock
        self._thread = WorkerThread(dependencies.loop, "tls-stores")
        self._tls = tls
        self._config: BrokerConfig | None = None

    def configure(self, config: BrokerConfig) -> None:
        """Applies the dynamic configs; the first call starts the checks."""
        if not self._tls.is_used:
            return
        is_first, self._config = self._config is None, config
        self._check()
        if is_first:
            self._schedule(config.number(_INTERVAL))

    def run(self, job: Run) -> IoResult:
        """Runs what reads stores, in the thread."""
        return self._thread.put(job)

    def stop(self) -> None:
        """Ends the thread."""
        self._thread.stop()

    def _schedule(self, interval_ms: int) -> None:
        def run() -> None:
            self._check()
            self._schedule(interval_ms)

        self._timers.schedule(self._clock.mono_ms() + interval_ms, run)

    def _check(self) -> None:
        config = self._config
        assert config is not None, "configure was called"
        found: list[TlsChange] = []
        checked = self._thread.put(lambda: found.extend(self._tls.find_changes(config)))
        checked.then(lambda _: self._tls.adopt(found))
