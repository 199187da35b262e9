"""Who watches which nodes, in a coordination service that keeps this itself."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from kbroker.metadata.store.coordination import WatchEvent

K = TypeVar("K")


class WatchManager(Generic[K]):
    """Watches that fire once. A watcher is named by a key; it hears of an event once, the earliest watcher first."""

    def __init__(self) -> None:
        # By path; a dict keeps the order of registration.
        self._of_nodes: dict[str, dict[K, None]] = {}
        self._of_children: dict[str, dict[K, None]] = {}

    def add(self, path: str, watcher: K, *, children: bool = False) -> None:
        watches = self._of_children if children else self._of_nodes
        watches.setdefault(path, {})[watcher] = None

    def forget(self, is_gone: Callable[[K], bool]) -> None:
        for watches in (self._of_nodes, self._of_children):
            for path in list(watches):
                left = {watcher: None for watcher in watches[path] if not is_gone(watcher)}
                if left:
                    watches[path] = left
                else:
                    del watches[path]

    def fire(self, events: Iterable[WatchEvent]) -> Iterator[tuple[K, WatchEvent]]:
        """Who hears what; they watch no longer."""
        for event in events:
            watches = self._of_children if event.kind == "children" else self._of_nodes
            watchers = watches.pop(event.path, {})
            if event.kind == "deleted":
                watchers |= self._of_children.pop(event.path, {})
            for watcher in watchers:
                yield watcher, event
