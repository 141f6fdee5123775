"""The pending disk lookups of all partitions: what runs in reader threads, and what waits for it.

RULES    1. A lookup runs once; everything that waits for it continues after it, whatever the outcome, and repeats the call that
            returned it.
         2. Lookups of one request, such as the first use of many logs, run in groups: a group is one job of a reader thread
            and continues as a whole, so its partitions can share what follows. Opening a log from its summary takes less
            than handing a job to a thread and back.
         3. At most _GROUPS groups of a log directory are queued for the reader threads. On a slow disk this leaves threads to
            other requests. It also limits the open files that the file handle cache does not know yet.
         4. Pending file operations of a log run before its lookup: they may create the files.
         5. Retention frees space and continues on a full disk: its lookups run in the background thread, wait for no operation,
            and end without a result if they need space.
NOT HERE The result of a lookup (storage/io/disk_lookup.py), threads (broker/io/reader_pool.py).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from replication.cooperative_tasks import no_op
from replication.io_executor import IoExecutor, IoResult
from replication.partition.partition import Partition
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.log import Log

_GROUP_SIZE: Final = 8
_GROUPS: Final = 2

Then = Callable[[], None]
ThenAll = Callable[[Sequence[Partition]], None]


class _Queued(NamedTuple):
    """A lookup that waits for its group."""

    partition: Partition
    log: Log
    lookup: DiskLookup
    then: ThenAll


class DiskLookups:
    """The pending lookups of one broker."""

    def __init__(
        self, executor: IoExecutor, on_failure: Callable[[str, StorageError], None], on_finish: Callable[[], None]
    ) -> None:
        """`on_failure` is called with a log directory whose disk failed, `on_finish` after each successful lookup."""
        self._executor = executor
        self._on_failure = on_failure
        self._on_finish = on_finish
        self._waiting: dict[DiskLookup, list[Then]] = {}
        self._queued: defaultdict[str, deque[_Queued]] = defaultdict(deque)  # by log directory
        self._running_groups: defaultdict[str, int] = defaultdict(int)
        self._starting: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, log: Log, lookup: DiskLookup, then: Then) -> bool:
        """Run a lookup, then call `then`; returns whether that was done already."""
        waiting = self._waiting.get(lookup)
        if waiting is not None:
            waiting.append(then)
            return False
        self._waiting[lookup] = [then]
        if log.files.has_pending_ops:
            named = self._executor.directory_op(log.directory, no_op)
            read = partial(self._read, log, lookup)
            named.then(lambda _: self._executor.write(log.directory, 0, no_op).then(read))
        else:
            self._read(log, lookup)
        return lookup not in self._waiting

    def drop(self, lookup: DiskLookup) -> None:
        """The caller does not wait for a lookup; forgets it unless others do."""
        if lookup not in self._waiting:
            lookup.drop()

    def _read(self, log: Log, lookup: DiskLookup, _: IoResult | None = None) -> None:
        """Run a lookup on a thread, after the operations that it had to wait for."""
        read = self._executor.read(log.directory, partial(log.files.run_guarded, lookup.run))
        read.then(lambda io: self._on_read(log, lookup, io.value))

    def run_in_background(self, log: Log, lookup: DiskLookup, then: Callable[[bool], None]) -> None:
        """Run a lookup in the background thread (rule 5); `then` gets whether it had the space that it needed."""
        self._waiting.setdefault(lookup, []).append(partial(then, True))
        if len(self._waiting[lookup]) == 1:
            read = self._executor.background(log.directory, partial(log.files.run_guarded, lookup.run))
            read.then(lambda io: self._on_background_read(log, lookup, then, io.value))

    def _on_background_read(
        self, log: Log, lookup: DiskLookup, then: Callable[[bool], None], error: StorageError | None
    ) -> None:
        if error is None or not error.is_full:
            self._on_read(log, lookup, error)
            return
        del self._waiting[lookup][0]
        if self._waiting[lookup]:  # requests wait for it too
            self._read(log, lookup)
        else:
            del self._waiting[lookup]
            log.cancel_opening(lookup)
        then(False)

    def wait_together(self, lookups: Iterable[tuple[Partition, DiskLookup]], then: ThenAll) -> None:
        """Run lookups in groups; `then` is called with the partitions of each finished group (rule 2)."""
        directories: dict[str, None] = {}
        for partition, lookup in lookups:
            log = partition.log
            if lookup in self._waiting or log.files.has_pending_ops:
                self.wait(log, lookup, partial(then, (partition,)))
            else:
                self._waiting[lookup] = []
                self._queued[log.directory].append(_Queued(partition, log, lookup, then))
                directories[log.directory] = None
        for directory in directories:
            self._start_groups(directory)

    def _start_groups(self, directory: str) -> None:
        if directory in self._starting:  # an executor without threads has run a group; the loop below continues
            return
        self._starting.add(directory)
        queued = self._queued[directory]
        while queued and self._running_groups[directory] < _GROUPS:
            group = [queued.popleft()]
            while queued and len(group) < _GROUP_SIZE and queued[0].then == group[0].then:
                group.append(queued.popleft())
            self._running_groups[directory] += 1
            failures: dict[DiskLookup, StorageError] = {}
            run = self._executor.read(directory, partial(_run_group, deque(group), failures))
            run.then(partial(self._on_group_read, directory, group, failures))
        self._starting.discard(directory)

    def _on_group_read(
        self, directory: str, group: Sequence[_Queued], failures: dict[DiskLookup, StorageError], io: IoResult
    ) -> None:
        for _, log, lookup, _ in group:
            self._finish(log, lookup, failures.get(lookup, io.value))
        group[0].then([partition for partition, _, _, _ in group])
        for _, _, lookup, _ in group:
            self._continue(lookup)
        self._running_groups[directory] -= 1
        self._start_groups(directory)

    def _on_read(self, log: Log, lookup: DiskLookup, error: StorageError | None) -> None:
        self._finish(log, lookup, error)
        self._continue(lookup)

    def _finish(self, log: Log, lookup: DiskLookup, error: StorageError | None) -> None:
        if log.is_offline:
            pass  # deleted: there is no result
        elif error is None:
            lookup.finish()
            self._on_finish()
        else:
            self._on_failure(log.directory, error)

    def _continue(self, lookup: DiskLookup) -> None:
        for then in self._waiting.pop(lookup):
            then()
        lookup.done()


def _run_group(group: deque[_Queued], failures: dict[DiskLookup, StorageError]) -> None:
    """Run the lookups of a group (in a thread); on a full disk the job is repeated from the one that found no space."""
    while group:
        _, log, lookup, _ = group[0]
        try:
            log.files.run_guarded(lookup.run)
        except StorageError as error:
            if error.is_full:
                raise
            failures[lookup] = error
        group.popleft()
