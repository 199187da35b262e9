"""The orders of Java's collections, for decisions of Kafka that depend on them (pure)."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from kbroker.coordinator.java_hash import java_hash

E = TypeVar("E")

MIN_CAPACITY = 16


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """Return keys, each once, in the order of a HashMap into which they were put."""
    unique = list(dict.fromkeys(keys))
    return _by_bucket(unique, len(unique), MIN_CAPACITY)


def computed_map_order(keys: Iterable[str], capacity: int) -> list[str]:
    """Return keys in the order of a HashMap with an initial capacity, for which computeIfAbsent was called for each.

    It puts a key before the others of its bucket, and grows one key later.
    """
    unique = list(dict.fromkeys(keys))
    return _by_bucket(unique[::-1], len(unique) - 1, 1 << max(capacity - 1, 0).bit_length())


def _by_bucket(keys: list[str], count: int, capacity: int) -> list[str]:
    while count > capacity * 3 // 4:
        capacity *= 2

    def bucket(key: str) -> int:
        value = java_hash(key)
        return (value ^ value >> 16) & (capacity - 1)

    return sorted(keys, key=bucket)


class PriorityQueue(Generic[E]):
    """A heap with the order of Java's PriorityQueue among equal elements, which heapq has not."""

    def __init__(self, key: Callable[[E], Any], elements: Iterable[E] = ()) -> None:
        self._key = key
        self._elements: list[E] = []
        for element in elements:
            self.push(element)

    def __len__(self) -> int:
        return len(self._elements)

    def push(self, element: E) -> None:
        elements, value = self._elements, self._key(element)
        index = len(elements)
        elements.append(element)
        while index and value < self._key(elements[(index - 1) // 2]):
            elements[index] = elements[(index - 1) // 2]
            index = (index - 1) // 2
        elements[index] = element

    def pop(self) -> E:
        """Remove and return the first of the elements with the lowest key."""
        elements, last = self._elements, self._elements.pop()
        if not elements:
            return last
        first, index, value = elements[0], 0, self._key(last)
        while (child := 2 * index + 1) < len(elements):
            if child + 1 < len(elements) and self._key(elements[child + 1]) < self._key(elements[child]):
                child += 1
            if value <= self._key(elements[child]):
                break
            elements[index] = elements[child]
            index = child
        elements[index] = last
        return first
