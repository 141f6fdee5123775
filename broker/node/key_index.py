"""The key index of a node: the indexer, searches, and their two processes.

RULES    1. Building has a low priority and a process of its own: a search never waits for it.
         2. A process starts with its first job and ends when it is not used, or hangs. A job of a search takes seconds; one of
            the indexer may sync a file of 2 GiB.
NOT HERE The parts (replication/partition/key_indexer.py, key_search.py, `broker/io/index_process.py`).
"""

from __future__ import annotations

from typing import Final

from broker.handlers.records.search_page import SearchPage
from broker.io.helper_main import BACKGROUND
from broker.io.index_process import IndexProcess
from broker.node.kraft_runtime import RuntimeDependencies
from broker.security.authorizer import Authorizer
from replication.partition.key_indexer import KeyIndexer
from replication.partition.key_search import KeySearch
from replication.partition.replica_manager import ReplicaManager

_PATIENCE_OF_BUILDER: Final = 15
_PATIENCE_OF_SEARCHER: Final = 1
"""Minutes."""


class KeyIndex:
    """Indexer and searches of one broker."""

    def __init__(self, dependencies: RuntimeDependencies, replicas: ReplicaManager, authorizer: Authorizer) -> None:
        loop = dependencies.loop
        self._builder = IndexProcess(loop, "key index", BACKGROUND, _PATIENCE_OF_BUILDER)
        self._searcher = IndexProcess(loop, "key search", 0, _PATIENCE_OF_SEARCHER)
        self.indexer = KeyIndexer(replicas, self._builder)
        self.search = KeySearch(replicas, self.indexer, self._searcher)
        self.page = SearchPage(self.search, authorizer, dependencies.timers, dependencies.clock)
        """Searches over HTTP."""

    def check_processes(self) -> None:
        """Ends processes that had no job since the last call, or hang; called each minute."""
        self._builder.check()
        self._searcher.check()

    def stop(self) -> None:
        """Ends both processes; unfinished files are written again after the next start."""
        self.indexer.stop()
        self._builder.stop()
        self._searcher.stop()
