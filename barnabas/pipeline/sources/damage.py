"""What is wrong with the files, or with what was asked of them, in a sentence."""

from __future__ import annotations


class DamagedBatch(Exception):
    """A batch cannot be what a broker wrote; whoever reads the file says where it lies."""


class WrongChecksum(DamagedBatch):
    """Its bytes are not those that its CRC is of: where nothing behind it is known to be durable, the log ends there."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the batch of offset {offset} does not have the CRC that it says")
        self.offset = offset


class DamagedLog(Exception):
    """A file of the log cannot be read; the message names file and position."""


class MissingRecords(Exception):
    """Records that were wanted are no longer there (`failOnDataLoss`)."""


class BadOption(Exception):
    """An option of the source cannot be what is meant."""
