"""A cache with a limit of memory, in which several threads do not compute a value twice."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")
CACHE_BYTES = 128 << 20


class HistoryBlockCache:
    """Keeps the values that were used last, of at most `max_bytes`. Thread-safe."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._computing: dict[Hashable, threading.Event] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], tuple[T, int]]) -> T:
        """Return the value of a key. `compute` returns it and its size in bytes, and what it raises is not kept.

        While a thread computes a value, others that need it wait. A value larger than the cache is not kept.
        """
        while True:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    return cast(T, self._values[key][0])
                computing = self._computing.get(key)
                if computing is None:
                    event = self._computing[key] = threading.Event()
                    break
            computing.wait()
        try:
            value, size = compute()
            with self._lock:
                self._keep(key, value, size)
            return value
        finally:
            with self._lock:
                del self._computing[key]
            event.set()

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._values or key in self._computing

    def _keep(self, key: Hashable, value: object, size: int) -> None:
        if size > self.max_bytes:
            return
        self._values[key] = value, size
        self.size += size
        while self.size > self.max_bytes:
            _, (_, freed) = self._values.popitem(last=False)
            self.size -= freed
