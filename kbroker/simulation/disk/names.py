"""Names of a simulated file system, and which of them a power loss can take.

Changes of names go into one journal, in order, as those of ext4 and xfs do: what a power loss leaves is the state
after some prefix of it. `sync` of a directory makes durable everything up to the last change in that directory, which
includes whatever came before it in other directories. What ext4 and xfs do beyond this, POSIX does not promise, and it
is not so here: that the sync of a file or of an empty directory makes its own name durable.
"""

import posixpath
from collections.abc import Callable, Iterator
from random import Random
from typing import Literal, NamedTuple

from kbroker.simulation.disk.content import Content

# A journal is not endless: when it holds so many changes the older half is written.
JOURNAL_LIMIT = 2000

Kind = Literal["create", "mkdir", "rename", "unlink", "rmdir"]


class Change(NamedTuple):
    """`target` is the new name of a rename, `content` what a created file holds."""

    kind: Kind
    path: str
    target: str = ""
    content: Content | None = None


class Names:
    """One state of the tree: the files' contents, and the entries of each directory. Paths are normal."""

    def __init__(self) -> None:
        self.files: dict[str, Content] = {}
        self.directories: dict[str, dict[str, None]] = {"/": {}, ".": {}}

    def apply(self, change: Change) -> None:
        """Changes fit the state: whoever asked for them has been refused otherwise."""
        kind, path, target, content = change
        if kind == "create":
            assert content is not None
            self.files[path] = content
            self._enter(path)
        elif kind == "mkdir":
            self.directories[path] = {}
            self._enter(path)
        elif kind == "rename":
            self._leave(path)
            self._move(path, target)
            self._enter(target)
        elif kind == "unlink":
            del self.files[path]
            self._leave(path)
        else:
            del self.directories[path]
            self._leave(path)

    def _move(self, old: str, new: str) -> None:
        content = self.files.pop(old, None)
        if content is not None:
            self.files[new] = content
            return
        entries = self.directories.pop(old)
        self.directories[new] = entries
        for name in entries:
            self._move(f"{old}/{name}", f"{new}/{name}")

    def _enter(self, path: str) -> None:
        self.directories[parent_of(path)][posixpath.basename(path)] = None

    def _leave(self, path: str) -> None:
        del self.directories[parent_of(path)][posixpath.basename(path)]

    def within(self, path: str) -> Iterator[str]:
        """Everything in and below a directory and at last itself: in the order in which it can be removed."""
        for name in list(self.directories.get(path, ())):
            yield from self.within(posixpath.join(path, name) if path != "." else name)
        yield path

    def copy(self, of: Callable[[Content], Content]) -> "Names":
        """The same names; `of` gives what each file holds there."""
        copy = Names()
        copy.files = {path: of(content) for path, content in self.files.items()}
        copy.directories = {path: dict(entries) for path, entries in self.directories.items()}
        return copy


class NameJournal:
    """`current` is what programs see, `durable` what is on the disk for sure, `pending` the changes in between."""

    def __init__(self, durable: Names | None = None) -> None:
        self.durable = durable or Names()
        self.current = self.durable.copy(_itself)
        self.pending: list[Change] = []

    def copy(self) -> "NameJournal":
        """Nothing that happens to the one has an effect on the other, contents included."""
        copies: dict[Content, Content] = {}

        def of(content: Content) -> Content:
            copy = copies.get(content)
            if copy is None:
                copy = copies[content] = content.copy()
            return copy

        copy = NameJournal(self.durable.copy(of))
        copy.pending = [each._replace(content=of(each.content)) if each.content else each for each in self.pending]
        copy.current = self.current.copy(of)
        return copy

    def change(self, change: Change) -> None:
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
                # It had another name before.
                directory = path

    def _write(self, count: int) -> None:
        for change in self.pending[:count]:
            self.durable.apply(change)
        del self.pending[:count]

    def after_power_loss(self, random: Random) -> Names:
        """One of the states in which the disk may be, with the files' contents as they may be."""
        chance = random.random()
        count = len(self.pending)
        written = 0 if chance < 0.3 else count if chance < 0.5 else random.randint(0, count)
        left = self.durable.copy(_itself)
        for change in self.pending[:written]:
            left.apply(change)
        return left.copy(lambda content: content.after_power_loss(random))

    def is_sure(self, path: str, content: Content) -> bool:
        """Whether a power loss can neither take this name nor have it mean another file than this."""
        if self.durable.files.get(path) is not content:
            return False
        return not any(
            kind != "create" and (old == path or path.startswith(old + "/")) for kind, old, _, _ in self.pending
        )

    def is_sure_of_one(self, former: str, path: str, content: Content) -> bool:
        """Whether a power loss leaves the file one of these names: it had the former, and all that is not yet on the
        disk is that it has been given this one."""
        passing = [(old, target) for _, old, target, _ in self.pending if old in (former, path)]
        return self.durable.files.get(former) is content and passing == [(former, path)]

    def sure(self) -> list[str]:
        """Names of files and directories that a power loss cannot take, sorted."""
        passing = self.durable.copy(_itself)
        sure = dict.fromkeys([*passing.files, *passing.directories])
        for change in self.pending:
            if change.kind == "rename":
                for path in passing.within(change.path):
                    sure.pop(path, None)
            elif change.kind in ("unlink", "rmdir"):
                sure.pop(change.path, None)
            passing.apply(change)
        return sorted(sure)


def _itself(content: Content) -> Content:
    return content


def parent_of(path: str) -> str:
    return posixpath.dirname(path) or "."
