"""Which records compaction may remove: those with a later record of the same key.

In a compacted topic the key of a record is derived from its value.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.simulation.checker.history import Outcome
from kbroker.simulation.checker.index import NEVER, Index, Observations, PartitionIndex, acknowledged, effect_end


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
        """Return whether a later record has the same key. `offset` is -1 if it is not known."""
        return bool(self._keys) and self._last.get(key_of(value, self._keys), -1) > offset


class _Record(NamedTuple):
    """`sent`: the step at which its send began. `written`: a step by which it was in the log; NEVER if unknown."""

    offset: int
    sent: int
    written: int


class SupersedingRecords:
    """The records of a partition because of which compaction may have removed earlier ones of their keys.

    Only a durable record supersedes: the cleaner does not read above the recovery point. No Loss removes a durable
    record, so its offset never holds another value, a later Loss does not name its offset, and in the end its key has
    a record at its offset or a later one. `seen`: all observations of the partition's conflicting offsets.
    """

    def __init__(self, index: Index, partition: PartitionIndex, seen: Observations) -> None:
        self._partition = partition
        self._final = LastOffsets(partition.final, partition.keys)
        self._records: dict[int, list[_Record]] = {}
        # The step of the first send of each key whose offset is not known.
        self._unobserved: dict[int, int] = {}
        if not partition.keys:
            return
        for offset, first_value in partition.value_at.items():
            values = [first_value]
            if offset in partition.conflicting_offsets:
                values = _last_values(seen, partition, offset)
            for value in values:
                sender = index.senders.get(value)
                sent, written = (0, NEVER) if sender is None else (sender.begun, effect_end(sender))
                self._records.setdefault(key_of(value, partition.keys), []).append(_Record(offset, sent, written))
        for value, sent in _unobserved_values(partition):
            self._unobserved.setdefault(key_of(value, partition.keys), sent)

    def may_have_removed(self, value: int, offset: int, until: int) -> bool:
        """Return whether compaction may have removed the record with this value and offset before step `until`."""
        if not self._partition.keys:
            return False
        key = key_of(value, self._partition.keys)
        if self._unobserved.get(key, NEVER) < until and self._remains(value, offset + 1, 0):
            return True
        return any(
            record.offset > offset
            and record.sent < until
            and not self._partition.may_have_lost(record.offset, max(record.written, until), NEVER)
            and self._remains(value, record.offset, record.sent)
            for record in self._records.get(key, ())
        )

    def _remains(self, value: int, offset: int, sent: int) -> bool:
        """Return whether the final polls returned a record of this key at `offset` or later, or need not have."""
        return (
            not self._partition.final
            or self._final.is_superseded(value, offset - 1)
            or self._partition.may_be_deleted(offset, sent)
        )


def _last_values(seen: Observations, partition: PartitionIndex, offset: int) -> list[int]:
    """Return the values after which no other value was observed at the offset."""
    observations = seen.by_offset.get((partition.tp, offset), [])
    return [
        value
        for value in dict.fromkeys(observation.value for observation in observations)
        if (last := max(observation.until for observation in observations if observation.value == value))
        and not any(observation.value != value and observation.since > last for observation in observations)
    ]


def _unobserved_values(partition: PartitionIndex) -> Iterable[tuple[int, int]]:
    """Yield (value, step of its send) of records that may have been written and whose offsets are not known."""
    for operation in partition.sends:
        send = operation.action
        if operation.outcome is Outcome.FAILED or (acknowledged(operation) and send.base_offset is not None):
            continue
        for value in send.values:
            if value not in partition.offset_of:
                yield value, operation.begun
