"""A POSIX file system in memory that models which changes survive a power loss.

RULES    1. A file has its visible bytes, its durable bytes, and the changes in between (writes and truncations, in order). A
            sync makes all changes durable.
         2. A power loss keeps of each file's changes: all, none, a prefix with the next write torn, or any subset, each torn at
            either end. Missing bytes are zeros or garbage. Truncations are journaled: if one is lost, so are later writes.
         3. Creating, renaming or removing a name is durable after its directory is synced. A power loss keeps a prefix of the
            name changes: of all directories together (a journal: ext4, XFS) or of each directory, as `journals` says. A
            name can be durable before its file's bytes, so a rename can survive without the data.
         4. A failed sync loses its changes: some reach the disk, the others never do, although they stay readable until the
            page cache is dropped (`drop_pages`). Later syncs succeed.
         5. The time of the last change is a number that no two changes share. After a power loss that of a file or directory
            with changes that were not durable tells nothing: it may be the last one although the changes are lost.
NOT HERE Errors, short reads, the `Disk` interface (simulated_disk.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import count
from random import Random

Change = tuple[int, bytes] | int
"""A write at a position, or a truncation to a size."""


def fail(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class FileNode:
    """A file, independent of its names."""

    __slots__ = ("_clock", "changed", "changes", "data", "durable", "durable_changed", "inode", "modified_ms")

    def __init__(self, clock: Iterator[int]) -> None:
        """`clock`: numbers the changes of the file system."""
        self._clock = clock
        self.inode = self.changed = self.durable_changed = next(clock)
        """`changed`: the time of the last change (ctime)."""
        self.data = bytearray()
        self.durable = bytearray()
        self.changes: list[Change] = []
        self.modified_ms = 0

    def write(self, data: bytes, position: int) -> None:
        self.changes.append((position, data))
        self.changed = next(self._clock)
        _write(self.data, position, data)

    def truncate(self, size: int) -> None:
        """Shorten the file, or extend it with zeros."""
        self.changes.append(size)
        self.changed = next(self._clock)
        _cut(self.data, size)

    def sync(self) -> None:
        if self.changes:
            self.durable[:] = self.data
            self.durable_changed = self.changed
            self.changes.clear()

    def fail_sync(self, random: Random) -> None:
        """Fail a sync: some changes become durable, the others are lost (rule 4)."""
        self._persist_some(random)
        self.changes.clear()

    def drop_pages(self) -> None:
        """Show the durable bytes, unless changes are pending."""
        if not self.changes:
            self.data[:] = self.durable

    def lose_power(self, random: Random) -> None:
        """Keep the durable bytes and what rule 2 allows."""
        if self.changes:
            self._persist_some(random)
            self.changes.clear()
            self.changed = random.choice((self.changed, self.durable_changed))
        self.data[:] = self.durable

    def _persist_some(self, random: Random) -> None:
        durable, changes = self.durable, self.changes
        outcome = random.randrange(5)
        if outcome == 0:
            durable[:] = self.data
        elif outcome <= 2:
            keep = random.randrange(len(changes) + 1)
            for change in changes[:keep]:
                _change(durable, change)
            if keep < len(changes):
                self._tear(durable, changes[keep], random)
        elif outcome == 3:
            self._persist_any(random)

    @staticmethod
    def _tear(durable: bytearray, change: Change, random: Random) -> None:
        """Persist a prefix of a write; the file may still get its full size."""
        if isinstance(change, int):
            return
        position, data = change
        whole = len(data)
        _write(durable, position, data[: random.randrange(whole + 1)])
        if random.random() < 0.4 and len(durable) < position + whole:
            missing = position + whole - len(durable)
            durable += random.randbytes(missing) if random.random() < 0.3 else bytes(missing)

    def _persist_any(self, random: Random) -> None:
        for change in self.changes:
            if isinstance(change, int):
                if random.random() < 0.5:
                    return
                _cut(self.durable, change)
            else:
                position, data = change
                start, end = 0, len(data)
                drawn = random.random()
                if drawn < 0.2:
                    continue
                if drawn < 0.4:
                    start, end = sorted((random.randrange(end + 1), random.randrange(end + 1)))
                _write(self.durable, position + start, data[start:end])


class DirectoryNode:
    """A directory: its visible and its durable names."""

    __slots__ = ("changed", "durable", "inode", "names")

    def __init__(self, clock: Iterator[int]) -> None:
        self.inode = self.changed = next(clock)
        """`changed`: the time of the last change of a name."""
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | DirectoryNode
NameChange = tuple[DirectoryNode, dict[str, Node | None]]
"""A directory and its changed names, None for a removed one; the change survives completely or not at all."""


class FileSystem:
    """The directory tree and its pending name changes."""

    def __init__(self, *, journals: bool) -> None:
        self._journals = journals
        self._clock = count()
        self._root = DirectoryNode(self._clock)
        self._changes: list[NameChange] = []

    def find(self, path: str) -> Node | None:
        """The node at a path; None if it does not exist."""
        node: Node | None = self._root
        for name in path.split("/"):
            if name:
                if not isinstance(node, DirectoryNode):
                    return None
                node = node.names.get(name)
        return node

    def file(self, path: str) -> FileNode:
        node = self.find(path)
        if node is None:
            raise fail(errno.ENOENT)
        if isinstance(node, DirectoryNode):
            raise fail(errno.EISDIR)
        return node

    def directory(self, path: str) -> DirectoryNode:
        node = self.find(path)
        if node is None:
            raise fail(errno.ENOENT)
        if isinstance(node, FileNode):
            raise fail(errno.ENOTDIR)
        return node

    def make_file(self, path: str) -> FileNode:
        """The file at a path, created if needed."""
        node = self.find(path)
        if node is None:
            node = FileNode(self._clock)
            parent, name = self._parent_and_name(path)
            self._change(parent, {name: node})
        if isinstance(node, DirectoryNode):
            raise fail(errno.EISDIR)
        return node

    def make_directory(self, path: str) -> None:
        parent, name = self._parent_and_name(path)
        if name in parent.names:
            raise fail(errno.EEXIST)
        self._change(parent, {name: DirectoryNode(self._clock)})

    def rename(self, source: str, target: str) -> None:
        """Rename within a directory, replacing an existing file."""
        parent, name = self._parent_and_name(source)
        new_parent, new_name = self._parent_and_name(target)
        assert parent is new_parent, "storage renames within a directory"
        node = parent.names.get(name)
        if node is None:
            raise fail(errno.ENOENT)
        if isinstance(parent.names.get(new_name), DirectoryNode):
            raise fail(errno.ENOTEMPTY)
        self._change(parent, {name: None, new_name: node})

    def remove(self, path: str) -> None:
        parent, name = self._parent_and_name(path)
        node = parent.names.get(name)
        if node is None:
            raise fail(errno.ENOENT)
        if isinstance(node, DirectoryNode) and node.names:
            raise fail(errno.ENOTEMPTY)
        self._change(parent, {name: None})

    def sync_directory(self, directory: DirectoryNode) -> None:
        """Make a directory's name changes durable; with a journal, all earlier changes too (rule 3)."""
        mine = [number for number, change in enumerate(self._changes) if change[0] is directory]
        if mine:
            done = range(mine[-1] + 1) if self._journals else mine
            for number in done:
                _persist_names(self._changes[number])
            gone = set(done)
            self._changes = [change for number, change in enumerate(self._changes) if number not in gone]

    def sync_all(self) -> None:
        for change in self._changes:
            _persist_names(change)
        self._changes.clear()
        for file in self._files(self._root):
            file.sync()

    def make_durable(self, path: str) -> None:
        """Make an old file and its path durable, if it exists."""
        file = self.find(path)
        while isinstance(file, FileNode) and (path := path.rpartition("/")[0]):
            file.sync()
            self.sync_directory(self.directory(path))

    def lose_power(self, random: Random) -> None:
        """Keep what rules 2 and 3 allow."""
        kept: dict[int, int] = {}
        for change in self._changes:
            journal = 0 if self._journals else id(change[0])
            kept[journal] = kept.get(journal, 0) + 1
        for journal, pending in kept.items():
            kept[journal] = random.choice((0, pending, random.randrange(pending + 1)))
        for change in self._changes:
            journal = 0 if self._journals else id(change[0])
            kept[journal] -= 1
            if kept[journal] >= 0:
                _persist_names(change)
        self._changes.clear()
        self._load_durable(self._root, random)

    def drop_pages(self, path: str) -> None:
        """Drop the page cache of all files below a directory."""
        for file in self._files(self.directory(path)):
            file.drop_pages()

    def _load_durable(self, directory: DirectoryNode, random: Random) -> None:
        directory.names = dict(directory.durable)
        for node in directory.names.values():
            if isinstance(node, FileNode):
                node.lose_power(random)
            else:
                self._load_durable(node, random)

    def _files(self, directory: DirectoryNode) -> Iterator[FileNode]:
        for node in directory.names.values():
            if isinstance(node, FileNode):
                yield node
            else:
                yield from self._files(node)

    def _parent_and_name(self, path: str) -> tuple[DirectoryNode, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self.directory(parent), name

    def _change(self, directory: DirectoryNode, names: dict[str, Node | None]) -> None:
        _apply(directory.names, names)
        directory.changed = next(self._clock)
        self._changes.append((directory, names))


def _persist_names(change: NameChange) -> None:
    _apply(change[0].durable, change[1])


def _apply(known: dict[str, Node], names: dict[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            known.pop(name, None)
        else:
            known[name] = node


def _change(content: bytearray, change: Change) -> None:
    if isinstance(change, int):
        _cut(content, change)
    else:
        _write(content, *change)


def _write(content: bytearray, position: int, data: bytes) -> None:
    if not data:
        return
    if position > len(content):
        content += bytes(position - len(content))
    content[position : position + len(data)] = data


def _cut(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content += bytes(size - len(content))
