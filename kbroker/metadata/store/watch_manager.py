"""The watches of an embedded or simulated coordination service."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from kbroker.metadata.store.coordination import WatchEvent

K = TypeVar("K")


class WatchManager(Generic[K]):
    """Watches that fire once, in the order in which they were set. `K` identifies a watcher."""

    def __init__(self) -> None:
        # By path; a dict keeps the order of registration.
        self._node_watches: dict[str, dict[K, None]] = {}
        self._child_watches: dict[str, dict[K, None]] = {}

    def add(self, path: str, watcher: K, *, children: bool = False) -> None:
        """Watch a node, or its list of children."""
        watches = self._child_watches if children else self._node_watches
        watches.setdefault(path, {})[watcher] = None

    def remove(self, is_closed: Callable[[K], bool]) -> None:
        """Remove the watches of closed watchers."""
        for watches in (self._node_watches, self._child_watches):
            for path in list(watches):
                remaining = {watcher: None for watcher in watches[path] if not is_closed(watcher)}
                if remaining:
                    watches[path] = remaining
                else:
                    del watches[path]

    def fire(self, events: Iterable[WatchEvent]) -> Iterator[tuple[K, WatchEvent]]:
        """Yield (watcher, event) for each watch that the events fire, and remove these watches."""
        for event in events:
            watches = self._child_watches if event.kind == "children" else self._node_watches
            watchers = watches.pop(event.path, {})
            if event.kind == "deleted":
                watchers |= self._child_watches.pop(event.path, {})
            for watcher in watchers:
                yield watcher, event

    def lose_all(self) -> Iterator[tuple[K, WatchEvent]]:
        """Remove all watches, and yield (watcher, event) for each: the service no longer reports changes to them."""
        for path in dict.fromkeys((*self._node_watches, *self._child_watches)):
            watchers = self._node_watches.pop(path, {}) | self._child_watches.pop(path, {})
            for watcher in watchers:
                yield watcher, WatchEvent("lost", path)
