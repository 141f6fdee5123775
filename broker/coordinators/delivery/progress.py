"""Which records of a schedule partition are done: delivered, or cancelled before they were due.

FORMAT   the metadata of the committed offset: "1", then for each step ";end_offset,due_ms,offset", in decimal.
         The committed offset is the end offset of the last step.
RULES    1. A step (end offset, due, offset) says: of the records before the end offset, those that are due before `due_ms`, or
            at it with at most this offset, are done. A record is done if one step covers it.
         2. Records are delivered in the order of (due, offset) among those read so far, so one step is usually enough. The
            wall clock set back, or more late records than one transaction can have, add a step; it is dropped when a later
            step covers it.
         3. An offset without such metadata was set by an operator: all records before it are done, and no others.
         4. A log that lost records at its end (unclean election, loss of power) gets new records with their offsets. These are
            not done, so the steps end where the log of the committed leader epoch ends.
NOT HERE Delivering (`deliverer.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from storage.config.config_def import MAX_LONG

_VERSION: Final = "1"
MAX_STEPS: Final = 32
"""More are not started: no new records are read until a step is dropped. The metadata stay below 2 KiB."""


class Step(NamedTuple):
    """Of the records before `end_offset`, those up to (`due_ms`, `offset`) are done (rule 1)."""

    end_offset: int
    due_ms: int
    offset: int

    def covers(self, other: Step) -> bool:
        """Whether all records that are done by `other` are done by this step too."""
        return self.end_offset >= other.end_offset and self[1:] >= other[1:]


class Progress(NamedTuple):
    """The steps, by ascending end offset and descending (due, offset)."""

    steps: tuple[Step, ...] = ()

    @property
    def end_offset(self) -> int:
        """The end offset of the last step: 0 without steps."""
        return self.steps[-1].end_offset if self.steps else 0

    def is_done(self, due_ms: int, offset: int) -> bool:
        """Whether a record is done."""
        return any(offset < step.end_offset and (due_ms, offset) <= step[1:] for step in self.steps)

    def advanced(self, end_offset: int, due_ms: int, offset: int) -> Progress:
        """The progress with another step."""
        new = Step(end_offset, due_ms, offset)
        return Progress(tuple(sorted([*(step for step in self.steps if not new.covers(step)), new])))

    def limited_to(self, end_offset: int) -> Progress:
        """The progress for the records before `end_offset` only (rule 4)."""
        limited = Progress()
        for step in reversed(self.steps):  # those that become equal in their end are covered by the next one
            limited = limited.advanced(min(step.end_offset, end_offset), *step[1:])
        return limited

    def metadata(self) -> str:
        """The metadata of the committed offset."""
        return ";".join([_VERSION, *(",".join(map(str, step)) for step in self.steps)])


def read_progress(committed_offset: int, metadata: str | None) -> Progress:
    """The progress of a committed offset; -1 without one."""
    if committed_offset < 0:
        return Progress()
    version, *steps = (metadata or "").split(";")
    try:
        if version == _VERSION:
            return Progress(tuple(Step(*map(int, step.split(","))) for step in steps))
    except (TypeError, ValueError):
        pass  # not ours: rule 3
    return Progress((Step(committed_offset, MAX_LONG, MAX_LONG),))
