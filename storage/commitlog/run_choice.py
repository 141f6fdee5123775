"""Which neighbouring files are rewritten into one next.

RULES    1. The gain of a window of neighbouring files is its dead bytes, and a share of a file's size for each file less; the
            cost is its live bytes, which are read and written. The window with the highest gain * age / (gain + 2 * cost) is
            chosen, which is (1 - u) * age / (1 + u) of a log-structured file system. `age`: of the newest batch in it. Each
            further file adds 1/16, so that similar neighbours become one file.
         2. At least one byte is gained for each byte copied. Exceptions: a file whose dead bytes must go (`is_overdue`), and a
            full disk, where `FULL_COST` bytes may be copied for each byte gained, and the age does not count.
         3. A window without live bytes goes first, the one with the highest gain: it costs nothing. An overdue one is next.
         4. The live bytes of a window fit into one file, and into the free space. A file larger than one is rewritten alone.
         5. Settling chooses the oldest full window: the most neighbours, at most SETTLED_FILES, that were never settled and
            have live bytes and entries within SETTLED_BYTES and SETTLED_ENTRIES.
NOT HERE The live bytes (live_bytes.py), the rewriting (run_file.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from storage.config.config_def import MAX_LONG

MAX_SOURCES: Final = 16
FILE_SHARE: Final = 256
"""A file less is worth this part of the file size: small files become few."""
FULL_COST: Final = 8
SETTLED_FILES: Final = 16
SETTLED_BYTES: Final = 15 << 28
"""Positions in a file have 32 bits."""
SETTLED_ENTRIES: Final = 1 << 20
"""They are in memory when the queue file of a run is made."""


class Candidate(NamedTuple):
    """A sealed file that may be rewritten."""

    live: int
    dead: int
    age_ms: int
    is_overdue: bool
    entries: int = 0
    """Of batches, live or dead."""
    is_settled: bool = False


class Window(NamedTuple):
    """Neighbouring files, by number."""

    files: range
    live: int


def choose(
    candidates: Sequence[Candidate | None], file_bytes: int, *, is_full: bool = False, max_live: int | None = None
) -> Window | None:
    """The best window; None if there is none. A file that must stay is None. `max_live`: how much can be copied now."""
    most = MAX_LONG if max_live is None else max_live
    ranked = [
        ranked
        for first in range(len(candidates))
        for ranked in _windows_from(candidates, first, file_bytes, most, is_full=is_full)
    ]
    return max(ranked, key=lambda ranked: ranked[0], default=(None, None))[1]


def choose_unsettled(candidates: Sequence[Candidate | None], max_live: int) -> Window | None:
    """The window to be settled next (rule 5); None if there is none. `max_live`: how much can be copied now."""
    first = live = entries = 0
    for number, candidate in enumerate(candidates):
        if candidate is None or candidate.is_settled:
            first, live, entries = number + 1, 0, 0
            continue
        is_full = (
            number - first == SETTLED_FILES
            or live + candidate.live > SETTLED_BYTES
            or entries + candidate.entries > SETTLED_ENTRIES
        )
        if number > first and is_full:
            if live <= max_live:
                return Window(range(first, number), live)
            first, live, entries = number, 0, 0
        live, entries = live + candidate.live, entries + candidate.entries
    return None


def _windows_from(
    candidates: Sequence[Candidate | None], first: int, file_bytes: int, max_live: int, *, is_full: bool
) -> Iterator[tuple[tuple[bool, bool, float], Window]]:
    live = gain = 0
    age_ms: int | None = None
    is_overdue = False
    for number in range(first, min(first + MAX_SOURCES, len(candidates))):
        candidate = candidates[number]
        if candidate is None:
            break
        live += candidate.live
        gain += candidate.dead + (file_bytes // FILE_SHARE if number > first else 0)
        age_ms = candidate.age_ms if age_ms is None else min(age_ms, candidate.age_ms)
        is_overdue = (is_overdue or candidate.is_overdue) and not is_full
        if live > max_live or (live > file_bytes and number > first):
            break
        is_worth = FULL_COST * gain >= live if is_full else gain >= live or is_overdue
        if gain and is_worth:
            weight = 1 if is_full else max(age_ms, 0) + 1
            share = gain / (gain + 2 * live) * (1 + (number - first) / MAX_SOURCES)
            worth = share * weight if live else gain
            yield (live == 0, is_overdue, worth), Window(range(first, number + 1), live)
