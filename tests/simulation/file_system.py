"""A POSIX file system in memory that knows what of it would survive a loss of power.

RULES    1. A file has its bytes as everybody sees them, its bytes on the platter, and the changes in between: writes and
            cuts, in order. A sync brings the platter up to date.
         2. Losing power keeps of each file's changes, file by file: all, none, the first few with the next one torn, or any
            of them (also later ones without earlier ones), each torn at either end. What is missing inside is zeros, or
            rubbish. A cut is journaled: when it is lost, what was written after it is lost too.
         3. A name that was made, changed or removed is durable when its directory was synced. A loss of power keeps the
            first so many changes of names: of all directories together (a journal: ext4, XFS), or of each directory by
            itself, as `journals` says. A name may be durable before the bytes of its file are: a rename may survive
            without data.
         4. A sync that fails has lost what it was to write: some of it reaches the platter, the rest never will, though
            it can be read until the pages are dropped (`drop_pages`). Later syncs succeed.
NOT HERE Failures, short reads, the interface of storage (simulated_disk.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from random import Random

Change = tuple[int, bytes] | int
"""A write at a position, or a cut to a size."""


def fail(number: int) -> OSError:
    """What the system raises."""
    return OSError(number, os.strerror(number))


class FileNode:
    """A file, whatever its names."""

    __slots__ = ("changes", "data", "modified_ms", "platter")

    def __init__(self) -> None:
        self.data = bytearray()
        self.platter = bytearray()
        self.changes: list[Change] = []
        self.modified_ms = 0

    def write(self, data: bytes, position: int) -> None:
        """Write where everybody sees it."""
        self.changes.append((position, data))
        _write(self.data, position, data)

    def truncate(self, size: int) -> None:
        """Cut, or lengthen with zeros."""
        self.changes.append(size)
        _cut(self.data, size)

    def sync(self) -> None:
        """Bring the platter up to date."""
        if self.changes:
            self.platter[:] = self.data
            self.changes.clear()

    def fail_to_sync(self, dice: Random) -> None:
        """Lose what was to be written (rule 4)."""
        self._reach_platter(dice)
        self.changes.clear()

    def drop_pages(self) -> None:
        """Show what lies on the platter, where nothing is still to be written."""
        if not self.changes:
            self.data[:] = self.platter

    def lose_power(self, dice: Random) -> None:
        """Keep what lies on the platter and what rule 2 allows."""
        if self.changes:
            self._reach_platter(dice)
            self.changes.clear()
        self.data[:] = self.platter

    def _reach_platter(self, dice: Random) -> None:
        platter, changes = self.platter, self.changes
        fate = dice.randrange(5)
        if fate == 0:
            platter[:] = self.data
        elif fate <= 2:
            keep = dice.randrange(len(changes) + 1)
            for change in changes[:keep]:
                _change(platter, change)
            if keep < len(changes):
                self._tear(platter, changes[keep], dice)
        elif fate == 3:
            self._keep_any(dice)

    @staticmethod
    def _tear(platter: bytearray, change: Change, dice: Random) -> None:
        """A write of which only the beginning survives; the file may be as long as if all of it had."""
        if isinstance(change, int):
            return
        position, data = change
        whole = len(data)
        _write(platter, position, data[: dice.randrange(whole + 1)])
        if dice.random() < 0.4 and len(platter) < position + whole:
            missing = position + whole - len(platter)
            platter += dice.randbytes(missing) if dice.random() < 0.3 else bytes(missing)

    def _keep_any(self, dice: Random) -> None:
        for change in self.changes:
            if isinstance(change, int):
                if dice.random() < 0.5:
                    return
                _cut(self.platter, change)
            else:
                position, data = change
                start, end = 0, len(data)
                luck = dice.random()
                if luck < 0.2:
                    continue
                if luck < 0.4:
                    start, end = sorted((dice.randrange(end + 1), dice.randrange(end + 1)))
                _write(self.platter, position + start, data[start:end])


class DirectoryNode:
    """A directory: names as everybody sees them, and those on the platter."""

    __slots__ = ("names", "platter")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.platter: dict[str, Node] = {}


Node = FileNode | DirectoryNode
NameChange = tuple[DirectoryNode, dict[str, Node | None]]
"""In one directory: names with what they mean from now on, None for nothing; all of them, or none, survive."""


class FileSystem:
    """The tree, and what of its names is not durable yet."""

    def __init__(self, *, journals: bool) -> None:
        self._journals = journals
        self._root = DirectoryNode()
        self._changes: list[NameChange] = []

    def find(self, path: str) -> Node | None:
        """What has this name; None when nothing has."""
        node: Node | None = self._root
        for name in path.split("/"):
            if name:
                if not isinstance(node, DirectoryNode):
                    return None
                node = node.names.get(name)
        return node

    def file(self, path: str) -> FileNode:
        """A file that is there."""
        node = self.find(path)
        if node is None:
            raise fail(errno.ENOENT)
        if isinstance(node, DirectoryNode):
            raise fail(errno.EISDIR)
        return node

    def directory(self, path: str) -> DirectoryNode:
        """A directory that is there."""
        node = self.find(path)
        if node is None:
            raise fail(errno.ENOENT)
        if isinstance(node, FileNode):
            raise fail(errno.ENOTDIR)
        return node

    def make_file(self, path: str) -> FileNode:
        """The file of this name, made when there is none."""
        node = self.find(path)
        if node is None:
            node = FileNode()
            parent, name = self._place(path)
            self._change(parent, {name: node})
        if isinstance(node, DirectoryNode):
            raise fail(errno.EISDIR)
        return node

    def make_directory(self, path: str) -> None:
        """A new directory."""
        parent, name = self._place(path)
        if name in parent.names:
            raise fail(errno.EEXIST)
        self._change(parent, {name: DirectoryNode()})

    def rename(self, source: str, target: str) -> None:
        """Another name, in the same directory, instead of a file that may have it."""
        parent, name = self._place(source)
        new_parent, new_name = self._place(target)
        assert parent is new_parent, "storage renames within a directory"
        node = parent.names.get(name)
        if node is None:
            raise fail(errno.ENOENT)
        if isinstance(parent.names.get(new_name), DirectoryNode):
            raise fail(errno.ENOTEMPTY)
        self._change(parent, {name: None, new_name: node})

    def remove(self, path: str) -> None:
        """Take a name away: a file's, or an empty directory's."""
        parent, name = self._place(path)
        node = parent.names.get(name)
        if node is None:
            raise fail(errno.ENOENT)
        if isinstance(node, DirectoryNode) and node.names:
            raise fail(errno.ENOTEMPTY)
        self._change(parent, {name: None})

    def sync_directory(self, directory: DirectoryNode) -> None:
        """Make the changes of its names durable; a journal makes those durable too that came before (rule 3)."""
        mine = [number for number, change in enumerate(self._changes) if change[0] is directory]
        if mine:
            done = range(mine[-1] + 1) if self._journals else mine
            for number in done:
                _keep_names(self._changes[number])
            gone = set(done)
            self._changes = [change for number, change in enumerate(self._changes) if number not in gone]

    def sync_all(self) -> None:
        """Make everything durable."""
        for change in self._changes:
            _keep_names(change)
        self._changes.clear()
        for file in self._files(self._root):
            file.sync()

    def make_durable(self, path: str) -> None:
        """A file that was written some time ago, if it is there, with all names that lead to it."""
        file = self.find(path)
        while isinstance(file, FileNode) and (path := path.rpartition("/")[0]):
            file.sync()
            self.sync_directory(self.directory(path))

    def lose_power(self, dice: Random) -> None:
        """Keep what rules 2 and 3 allow."""
        kept: dict[int, int] = {}
        for change in self._changes:
            who = 0 if self._journals else id(change[0])
            kept[who] = kept.get(who, 0) + 1
        for who, count in kept.items():
            kept[who] = dice.choice((0, count, dice.randrange(count + 1)))
        for change in self._changes:
            who = 0 if self._journals else id(change[0])
            kept[who] -= 1
            if kept[who] >= 0:
                _keep_names(change)
        self._changes.clear()
        self._show_platter(self._root, dice)

    def drop_pages(self, path: str) -> None:
        """Show below a directory what lies on the platter, where nothing is still to be written."""
        for file in self._files(self.directory(path)):
            file.drop_pages()

    def _show_platter(self, directory: DirectoryNode, dice: Random) -> None:
        directory.names = dict(directory.platter)
        for node in directory.names.values():
            if isinstance(node, FileNode):
                node.lose_power(dice)
            else:
                self._show_platter(node, dice)

    def _files(self, directory: DirectoryNode) -> Iterator[FileNode]:
        for node in directory.names.values():
            if isinstance(node, FileNode):
                yield node
            else:
                yield from self._files(node)

    def _place(self, path: str) -> tuple[DirectoryNode, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self.directory(parent), name

    def _change(self, directory: DirectoryNode, names: dict[str, Node | None]) -> None:
        _apply(directory.names, names)
        self._changes.append((directory, names))


def _keep_names(change: NameChange) -> None:
    _apply(change[0].platter, change[1])


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
