"""The directory entries of a simulated file system, and which of them survive a power loss.

Changes of directory entries go into one journal, in order, as on ext4 and xfs: a power loss leaves the state after some
prefix of it. The sync of a directory makes durable every change up to the last one in that directory, including earlier
changes in other directories. On ext4 and xfs, the sync of a file or of an empty directory also makes its own name
durable; POSIX does not guarantee that, and it is not so here.
"""

import posixpath
from collections.abc import Callable, Iterator
from random import Random
from typing import Literal, NamedTuple

from kbroker.simulation.disk.file import Inode

# A journal with more changes than this writes the older half.
JOURNAL_LIMIT = 2000

Kind = Literal["create", "mkdir", "rename", "unlink", "rmdir"]


class DirectoryChange(NamedTuple):
    """`target` is the new name of a rename, `inode` the content of a created file."""

    kind: Kind
    path: str
    target: str = ""
    inode: Inode | None = None


class DirectoryTree:
    """A state of the directory tree: the inode of each file, the entries of each directory. Paths are normalized."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: dict[str, dict[str, None]] = {"/": {}, ".": {}}

    def apply(self, change: DirectoryChange) -> None:
        """Apply a change that the disk has already checked."""
        kind, path, target, inode = change
        if kind == "create":
            assert inode is not None
            self.files[path] = inode
            self._add_entry(path)
        elif kind == "mkdir":
            self.directories[path] = {}
            self._add_entry(path)
        elif kind == "rename":
            self._remove_entry(path)
            self._move(path, target)
            self._add_entry(target)
        elif kind == "unlink":
            del self.files[path]
            self._remove_entry(path)
        else:
            del self.directories[path]
            self._remove_entry(path)

    def _move(self, old: str, new: str) -> None:
        inode = self.files.pop(old, None)
        if inode is not None:
            self.files[new] = inode
            return
        entries = self.directories.pop(old)
        self.directories[new] = entries
        for name in entries:
            self._move(f"{old}/{name}", f"{new}/{name}")

    def _add_entry(self, path: str) -> None:
        self.directories[parent_of(path)][posixpath.basename(path)] = None

    def _remove_entry(self, path: str) -> None:
        del self.directories[parent_of(path)][posixpath.basename(path)]

    def walk_bottom_up(self, path: str) -> Iterator[str]:
        """Yield everything below a path, then the path: an order in which it can be removed."""
        for name in list(self.directories.get(path, ())):
            yield from self.walk_bottom_up(posixpath.join(path, name) if path != "." else name)
        yield path

    def copy(self, copy_inode: Callable[[Inode], Inode]) -> "DirectoryTree":
        """Return a tree with the same names, whose inodes `copy_inode` returns."""
        copy = DirectoryTree()
        copy.files = {path: copy_inode(inode) for path, inode in self.files.items()}
        copy.directories = {path: dict(entries) for path, entries in self.directories.items()}
        return copy


class DirectoryJournal:
    """`current` is what programs see, `durable` what is certainly on the disk, `pending` the changes in between."""

    def __init__(self, durable: DirectoryTree | None = None) -> None:
        self.durable = durable or DirectoryTree()
        self.current = self.durable.copy(_same)
        self.pending: list[DirectoryChange] = []

    def copy(self) -> "DirectoryJournal":
        """Return an independent copy, including the files' content."""
        copies: dict[Inode, Inode] = {}

        def copy_inode(inode: Inode) -> Inode:
            copied = copies.get(inode)
            if copied is None:
                copied = copies[inode] = inode.copy()
            return copied

        copy = DirectoryJournal(self.durable.copy(copy_inode))
        copy.pending = [
            change._replace(inode=copy_inode(change.inode)) if change.inode else change for change in self.pending
        ]
        copy.current = self.current.copy(copy_inode)
        return copy

    def change(self, change: DirectoryChange) -> None:
        self.current.apply(change)
        self.pending.append(change)
        if len(self.pending) > JOURNAL_LIMIT:
            self._write(JOURNAL_LIMIT // 2)

    def sync(self, directory: str) -> None:
        for number in range(len(self.pending) - 1, -1, -1):
            kind, path, target, _ = self.pending[number]
            if directory == parent_of(path) or (target and directory == parent_of(target)):
                self._write(number + 1)
                return
            if kind == "rename" and target == directory:
                # The directory had another name before this change.
                directory = path

    def _write(self, count: int) -> None:
        for change in self.pending[:count]:
            self.durable.apply(change)
        del self.pending[:count]

    def after_power_loss(self, random: Random) -> DirectoryTree:
        """Return one of the states in which the disk may be, including the files' content."""
        chance = random.random()
        count = len(self.pending)
        written = 0 if chance < 0.3 else count if chance < 0.5 else random.randint(0, count)
        left = self.durable.copy(_same)
        for change in self.pending[:written]:
            left.apply(change)
        return left.copy(lambda inode: inode.after_power_loss(random))

    def is_durable(self, path: str, inode: Inode) -> bool:
        """Return whether the name refers to this file after any power loss."""
        if self.durable.files.get(path) is not inode:
            return False
        return not any(
            kind != "create" and (old == path or path.startswith(old + "/")) for kind, old, _, _ in self.pending
        )

    def is_durable_as_either(self, former: str, path: str, inode: Inode) -> bool:
        """Return whether the file has one of these names after any power loss: only its rename may be lost."""
        pending = [(old, target) for _, old, target, _ in self.pending if old in (former, path)]
        return self.durable.files.get(former) is inode and pending == [(former, path)]

    def removed_files(self) -> list[str]:
        """Return the former names of files that a power loss may bring back, sorted."""
        named = {change.target or change.path for change in self.pending if change.kind in ("create", "rename")}
        return sorted({*self.durable.files, *named} - {*self.current.files, *self.current.directories})


def _same(inode: Inode) -> Inode:
    return inode


def parent_of(path: str) -> str:
    return posixpath.dirname(path) or "."
