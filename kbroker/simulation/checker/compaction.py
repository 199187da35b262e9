"""Which records compaction may remove: those with a later record of the same key.

In a compacted topic the key of a record is derived from its value.
"""

from collections.abc import Mapping


def key_of(value: int, keys: int) -> int:
    """Return the key of a value, from 0 to `keys` - 1."""
    return value % keys


class LastOffsets:
    """The last offset of each key in a partition. `values`: its values by offset. `keys` is 0 without compaction."""

    def __init__(self, values: Mapping[int, int], keys: int) -> None:
        self._keys = keys
        self._last: dict[int, int] = {}
        if keys:
            for offset, value in values.items():
                key = key_of(value, keys)
                self._last[key] = max(offset, self._last.get(key, -1))

    def is_superseded(self, value: int, offset: int = -1) -> bool:
        """Whether a later record has the same key. `offset` is -1 if it is not known."""
        return bool(self._keys) and self._last.get(key_of(value, self._keys), -1) > offset
