"""The file with the summaries of all cleanly closed logs in a log directory.

FORMAT   `.barnabas-log-summaries`, text: a line `1 <broker epoch> <CRC-32C of all that follows, hexadecimal>`, then a line
         `<topic>-<partition> <stamp> <body>` for each log (log/log_summary.py). Apache Kafka ignores files in a log directory.
RULES    1. Written before the clean-shutdown marker, and valid only with the marker of the same broker epoch: Apache Kafka and
            earlier versions leave the file as it is and write markers of their own.
         2. Read and deleted with the marker, before anything changes (log_directory.py).
         3. An invalid file, or none, costs time only: logs are opened from their files.
NOT HERE Whether a summary is still that of its log (log/log_summary.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from protocol.crc32c import crc32c
from storage.io.disk import Disk
from storage.log.log_summary import LogSummary

LOG_SUMMARIES: Final = ".barnabas-log-summaries"

_VERSION = "1"

_log = logging.getLogger("barnabas.storage")


def write_summaries(disk: Disk, directory: str, broker_epoch: int, summaries: Mapping[str, LogSummary]) -> None:
    """Replace the file durably; the summaries are by name of the log."""
    text = "".join([f"{name} {stamp} {body}\n" for name, (stamp, body) in summaries.items()]).encode()
    head = f"{_VERSION} {broker_epoch} {crc32c(text):08x}\n".encode()
    disk.replace_atomically(f"{directory}/{LOG_SUMMARIES}", head + text)


def read_summaries(disk: Disk, directory: str, broker_epoch: int) -> dict[str, LogSummary]:
    """The summaries of the clean shutdown in this broker epoch, by name of the log; empty without a valid file."""
    path = f"{directory}/{LOG_SUMMARIES}"
    if not disk.exists(path):
        return {}
    head, _, text = disk.read(path).partition(b"\n")
    fields = head.decode("ascii", "replace").split(" ")
    if fields != [_VERSION, str(broker_epoch), f"{crc32c(text):08x}"]:
        if fields[1:2] == [str(broker_epoch)]:
            _log.warning("%s is damaged. Ignoring it: logs are opened from their files", path)
        return {}
    summaries: dict[str, LogSummary] = {}
    for line in text.decode().splitlines():
        name, stamp, body = line.split(" ", 2)
        summaries[name] = LogSummary(stamp, body)
    return summaries
