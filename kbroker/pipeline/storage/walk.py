"""Recursive directory listing that terminates on any arrangement of symbolic links."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import DirectoryEntry, Storage


class _Level(NamedTuple):
    """A directory on the path from the start of the walk to the current entry."""

    path: str
    real_path: str | None
    remaining: Iterator[DirectoryEntry]


def walk(
    storage: Storage,
    path: str = "",
    *,
    skip: Callable[[str], bool] = lambda name: False,
    tolerant: bool = False,
) -> Iterator[DirectoryEntry]:
    """Yield every file below a directory, without the names for which `skip` returns True.

    Yields nothing if the directory does not exist, and omits what disappears during the walk. Links to directories are
    followed, except links to a directory on the current path and links to a directory that another link has led to:
    such a link is yielded as an entry with is_directory. With `tolerant`, a directory that cannot be listed is yielded
    as an entry; otherwise it raises PipelineError.
    """
    levels = [_Level(path, storage.real_path(path), iter(storage.list_directory(path)))]
    link_targets: set[str] = set()  # directories that were entered through a link
    while levels:
        level = levels[-1]
        entry = next(level.remaining, None)
        if entry is None:
            levels.pop()
        elif not skip(entry.name):
            entry = entry._replace(name=f"{level.path}/{entry.name}" if level.path else entry.name)
            child = _enter(storage, entry, levels, link_targets, tolerant) if entry.is_directory else None
            if child is None:
                yield entry
            else:
                levels.append(child)


def _enter(
    storage: Storage, entry: DirectoryEntry, levels: Sequence[_Level], link_targets: set[str], tolerant: bool
) -> _Level | None:
    """Return the level of a directory entry, or None if the directory is not entered."""
    try:
        real_path = storage.real_path(entry.name)
        parent = levels[-1].real_path
        is_link = (
            real_path is not None
            and parent is not None
            and real_path != f"{parent.rstrip('/')}/{entry.name.rpartition('/')[2]}"
        )
        if is_link and real_path is not None:
            if real_path in link_targets or any(level.real_path == real_path for level in levels):
                return None
            link_targets.add(real_path)
        return _Level(entry.name, real_path, iter(storage.list_directory(entry.name)))
    except PipelineError:
        if tolerant:
            return None
        raise
