"""The catalog of a commit log: the states of all slots at the end of a sealed file, so that a start reads one file instead of
the states in all queue files.

FORMAT   `catalog` in the directory of the commit log: magic `BCLC`, version 4, number of files 4, CRC-32C 4 of all other bytes;
         then
             files, oldest first, 68 bytes each: start 8, generation 4, the first 56 bytes of its queue file
             states, by slot number: size of the state 4, number 4, topic id 16, partition 4, incarnation 4, start of the first
             file with its data 8, end offset 8, the numbers 4 of segments, cuts, aborted transactions, leader epochs and
             producer snapshots, size of the topic 2; then values of 8 bytes: segments, cuts, aborted transactions and leader
             epochs as in a queue file (slots.py), offset and size of each snapshot; then the snapshots (base64) and the topic
RULES    1. It is made from queue files alone. The state of a slot is that of the last queue file that has one, of those up to
            the last one that the catalog names. Deleted partitions have none. How often it was updated does not change a byte.
         2. A start uses it if the last file that it names has a valid header and the queue file that it had: the header of
            that contains the CRC of all bytes. The states in queue files up to that one are not read. Of old ones nothing but
            the header is read, and compared; one that is not in the catalog, as that of a later run, is checked as a whole.
            Without such a catalog all queue files are read.
         3. It replaces the one before after files are sealed or replaced, in the thread that does this. A crash before that
            leaves an older catalog: the states of later queue files are read after it.
NOT HERE The states of files (slots.py, sealing.py), loading a log (recovery.py).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct, pack, unpack_from
from typing import Any, Final, NamedTuple

from protocol.crc32c import crc32c
from protocol.primitives import Buffer
from storage.commitlog.log_file import LogFile, LogName, name_at
from storage.commitlog.queue_file import HEADER, parse_queue
from storage.commitlog.slots import LogicalSegment, Slot, SlotId, states_in
from storage.engine import AbortedTransaction
from storage.io.disk import Disk

CATALOG: Final = "catalog"

_HEAD: Final = Struct(">4sIII")
_FILE: Final = Struct(f">qI{HEADER.size}s")
_STATE: Final = Struct(">II16siiqqIIIIIH")
_STATE_START: Final = Struct(">II")
_MAGIC: Final = b"BCLC"
_VERSION: Final = 1


class Catalog(NamedTuple):
    """A valid catalog."""

    files: dict[LogName, bytes]
    """The header of each file's queue file, oldest first."""
    states: Buffer

    @property
    def last(self) -> LogName | None:
        """The file at whose end the slots had these states."""
        return max(self.files, default=None)


EMPTY: Final = Catalog({}, b"")


def read_catalog(disk: Disk, directory: str) -> Catalog:
    """The catalog in the directory of a commit log; an empty one if there is none, or it is invalid."""
    path = f"{directory}/{CATALOG}"
    data = disk.read(path) if disk.exists(path) else b""
    if len(data) < _HEAD.size:
        return EMPTY
    magic, version, count, crc = _HEAD.unpack_from(data)
    states_at = _HEAD.size + count * _FILE.size
    if (magic, version) != (_MAGIC, _VERSION) or crc != _crc(count, memoryview(data)[_HEAD.size :]):
        return EMPTY
    files = {
        LogName(start, generation): header
        for start, generation, header in _FILE.iter_unpack(data[_HEAD.size : states_at])
    }
    return Catalog(files, memoryview(data)[states_at:])


def write_catalog(disk: Disk, directory: str, catalog: Catalog) -> None:
    """Replace the catalog durably."""
    files = b"".join([_FILE.pack(*name, header) for name, header in catalog.files.items()])
    body = b"".join([files, catalog.states])
    count = len(catalog.files)
    head = _HEAD.pack(_MAGIC, _VERSION, count, _crc(count, body))
    disk.replace_atomically(f"{directory}/{CATALOG}", head + body)


def remove_catalog(disk: Disk, directory: str) -> None:
    """Remove it durably: the next start reads and checks all queue files."""
    disk.unlink(f"{directory}/{CATALOG}", missing_ok=True)
    disk.sync_dir(directory)


def _crc(count: int, body: Buffer) -> int:
    return crc32c(body, crc32c(_HEAD.pack(_MAGIC, _VERSION, count, 0)))


# ---- updates -------------------------------------------------------------------------------------------------


def update_catalog(disk: Disk, directory: str, files: Sequence[LogFile]) -> None:
    """Make the catalog that of these sealed files, which are all of the log, oldest first; a no-op if it is.

    The catalog on disk is one of this log, or there is none.
    """
    headers = {name_at(file.path): header_of_queue(file) for file in files}
    known = read_catalog(disk, directory)
    if known.files == headers or not headers:
        return
    if known.last is not None and known.last not in headers and not _is_in_a_run(known.last, files):
        known = EMPTY
    after = known.last or LogName(-1, 0)
    states: dict[int, bytes] = {}
    for file in files:
        if name_at(file.path) > after:
            assert file.queue_file is not None, "it is sealed"
            found = parse_queue(disk.read(file.queue_file.path), file.start)
            if found is None:
                return  # the next start makes it again
            states.update((state[0], packed_state(state)) for state in states_in(found[1]))
    write_catalog(disk, directory, Catalog(headers, merged(known.states, states)))


def _is_in_a_run(name: LogName, files: Sequence[LogFile]) -> bool:
    """Whether a run replaces a file of which the catalog was right."""
    return any(
        file.queue_file is not None and file.queue_file.header.first <= name.start <= file.start for file in files
    )


def header_of_queue(file: LogFile) -> bytes:
    """The first bytes of a sealed file's queue file."""
    assert file.queue_file is not None, "it is sealed"
    return file.queue_file.header.packed


def merged(states: Buffer, changes: Mapping[int, bytes]) -> bytes:
    """Packed states with those of some slots replaced, added, or removed if they are empty."""
    view = memoryview(states)
    pieces: list[Buffer] = []
    begin = at = size = 0
    found = -1
    for number in sorted(changes):
        while at < len(view):
            size, found = _STATE_START.unpack_from(view, at)
            if found >= number:
                break
            at += size
        pieces += [view[begin:at], changes[number]]
        if at < len(view) and found == number:
            at += size
        begin = at
    return b"".join([*pieces, view[begin:]])


# ---- states --------------------------------------------------------------------------------------------------


def packed_state(state: Sequence[Any]) -> bytes:
    """A state of a queue file (slots.py), packed; empty for a deleted partition."""
    if len(state) == 1:
        return b""
    number, topic_id, partition, incarnation, begin, end_offset, *lists, snapshots, topic = state
    texts = [data.encode() for _, data in snapshots]
    numbers = [value for values in lists for entry in values for value in entry]
    numbers += [value for (offset, _), data in zip(snapshots, texts, strict=True) for value in (offset, len(data))]
    name = topic.encode()
    size = _STATE.size + 8 * len(numbers) + sum(map(len, texts)) + len(name)
    head = _STATE.pack(
        size,
        number,
        bytes.fromhex(topic_id),
        partition,
        incarnation,
        begin,
        end_offset,
        *map(len, lists),
        len(texts),
        len(name),
    )
    return b"".join([head, pack(f">{len(numbers)}q", *numbers), *texts, name])


def packed_states(slots: Iterable[Slot]) -> bytes:
    """The states of slots."""
    return b"".join([packed_state(slot.state()) for slot in sorted(slots, key=lambda slot: slot.number)])


def slots_in(states: Buffer) -> Iterator[Slot]:
    """The slots with these packed states."""
    shared: dict[bytes, tuple[bytes, str]] = {}  # one object for the topic id and name of all its partitions
    at = 0
    while at < len(states):
        size, number, topic_id, partition, incarnation, begin, end_offset, *counts, length = _STATE.unpack_from(
            states, at
        )
        end = at + size
        name = bytes(states[end - length : end])
        topic_id, topic = shared.setdefault(topic_id + name, (topic_id, name.decode()))
        slot = Slot(SlotId(topic_id, partition, incarnation), topic)
        slot.number, slot.begin, slot.end_offset = number, begin, end_offset
        _restore_lists(slot, states, at + _STATE.size, counts)
        yield slot
        at = end


def _restore_lists(slot: Slot, states: Buffer, at: int, counts: Sequence[int]) -> None:
    segments, cuts, aborted, epochs, snapshots = counts
    numbers = unpack_from(f">{3 * segments + 2 * cuts + 4 * aborted + 2 * epochs + 2 * snapshots}q", states, at)
    slot.segments = [LogicalSegment(*numbers[first : first + 3]) for first in range(0, 3 * segments, 3)]
    first = 3 * segments
    if cuts:
        slot.cuts = tuple([(numbers[n], numbers[n + 1]) for n in range(first, first + 2 * cuts, 2)])
    first += 2 * cuts
    if aborted:
        slot.set_aborted([AbortedTransaction(*numbers[n : n + 4]) for n in range(first, first + 4 * aborted, 4)])
    first += 4 * aborted
    slot.set_epochs([(numbers[n], numbers[n + 1]) for n in range(first, first + 2 * epochs, 2)])
    first += 2 * epochs
    at += 8 * len(numbers)
    found = []
    for n in range(first, first + 2 * snapshots, 2):
        found.append((numbers[n], b64decode(states[at : at + numbers[n + 1]])))
        at += numbers[n + 1]
    slot.snapshots = tuple(found)
