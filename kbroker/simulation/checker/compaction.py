"""What compaction may remove: a record that is followed by another one of its key.

In a compacted topic the key of a record follows from its value.
"""

from collections.abc import Mapping


def key_of(value: int, keys: int) -> int:
    """Return the key, one of `keys`."""
    return value % keys


class LastOffsets:
    """The last offset of each key in a partition with these `values` by offset. `keys` is 0 without compaction."""

    def __init__(self, values: Mapping[int, int], keys: int) -> None:
        self._keys = keys
        self._last: dict[int, int] = {}
        if keys:
            for offset, value in values.items():
                key = key_of(value, keys)
                self._last[key] = max(offset, self._last.get(key, -1))

    def is_superseded(self, value: int, offset: int = -1) -> bool:
        """Whether a later record has the key of this one. `offset` is -1 if it is not known."""
        return bool(self._keys) and self._last.get(key_of(value, self._keys), -1) > offset
