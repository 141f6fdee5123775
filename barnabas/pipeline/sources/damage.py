"""Errors of the segment source."""

from __future__ import annotations


class DamagedBatch(Exception):
    """A batch is invalid; the reader of the file adds its position."""


class WrongChecksum(DamagedBatch):
    """A batch has a wrong CRC. Above the recovery point this is the end of the log."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the batch of offset {offset} has a wrong CRC")
        self.offset = offset


class DamagedLog(Exception):
    """A file of the log cannot be read; the message names file and position."""


class MissingRecords(Exception):
    """Requested records no longer exist (`failOnDataLoss`)."""


class MissingFile(Exception):
    """A file that the plan names is gone, and nothing of it was read; the message names it."""


class BadOption(Exception):
    """An option of the source is invalid."""
